"""Prompts: texts, token ids, and dicts of them, as in vLLM."""

from collections.abc import Sequence
from typing import Any, TypedDict, Union


class _TextPrompt(TypedDict):
    prompt: str


class TextPrompt(_TextPrompt, total=False):
    """A text to continue. `cache_salt`: cached prefixes are shared only between requests with the same salt."""

    cache_salt: str


class _TokensPrompt(TypedDict):
    prompt_token_ids: list[int]


class TokensPrompt(_TokensPrompt, total=False):
    """Token ids to continue, taken as they are. `prompt` is the text that outputs show."""

    prompt: str
    cache_salt: str


PromptType = Union[str, list[int], TextPrompt, TokensPrompt]

_KEYS = {"prompt", "prompt_token_ids", "cache_salt"}


class ParsedPrompt:
    """A prompt for the engine: `value` is a text or a list of token ids."""

    __slots__ = ("cache_salt", "text", "value")

    def __init__(self, prompt: Any):
        self.cache_salt: str | None = None
        self.text: str | None = None
        if isinstance(prompt, str):
            self.text = self.value = prompt
        elif isinstance(prompt, dict):
            self._read(prompt)
        else:
            self.value = _token_ids(prompt)

    def _read(self, prompt: dict) -> None:
        for key, value in prompt.items():
            if key not in _KEYS and value is not None:
                raise ValueError(f"prompt['{key}'] is not supported (expected {', '.join(sorted(_KEYS))})")
        self.cache_salt = prompt.get("cache_salt")
        self.text = prompt.get("prompt")
        ids = prompt.get("prompt_token_ids")
        if ids is not None:
            self.value = _token_ids(ids)
        elif isinstance(self.text, str):
            self.value = self.text
        else:
            raise ValueError("a prompt needs 'prompt', a str, or 'prompt_token_ids', a list of int")


def _token_ids(ids: Any) -> list[int]:
    if isinstance(ids, Sequence) or hasattr(ids, "tolist"):
        listed = ids.tolist() if hasattr(ids, "tolist") else list(ids)
        if all(isinstance(i, int) and not isinstance(i, bool) for i in listed):
            return listed
    raise TypeError(f"a prompt is a str, a list of int or a dict, not {type(ids).__name__}")


def parse_prompts(prompts: Any) -> list[ParsedPrompt]:
    """One prompt, or a sequence of prompts, as a list."""
    single = isinstance(prompts, (str, dict)) or (
        isinstance(prompts, Sequence) and len(prompts) > 0 and isinstance(prompts[0], int)
    )
    if not single and not hasattr(prompts, "__iter__"):
        raise TypeError(f"prompts are a str, a list or a dict, not {type(prompts).__name__}")
    return [ParsedPrompt(p) for p in ([prompts] if single else prompts)]


__all__ = ["ParsedPrompt", "PromptType", "TextPrompt", "TokensPrompt", "parse_prompts"]
