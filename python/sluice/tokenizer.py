"""The model's tokenizer, with the methods of Hugging Face's that scripts use most."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluice._session import Session


class Tokenizer:
    """Made by LLM.get_tokenizer()."""

    def __init__(self, session: "Session"):
        self._session = session

    @property
    def vocab_size(self) -> int:
        return self._session.model["vocab_size"]

    @property
    def eos_token_id(self) -> int | None:
        return next(iter(self._session.model["eos_token_ids"]), None)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self._session.core.tokenize(text, add_special_tokens)

    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return self._session.core.detokenize(ids, skip_special_tokens).decode(errors="replace")

    def batch_decode(self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool = False) -> list[str]:
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> str | list[str]:
        """The vocabulary's spelling of tokens, with byte-level symbols."""
        if isinstance(ids, int):
            return self._session.core.token_text(ids)
        return [self._session.core.token_text(i) for i in ids]

    def apply_chat_template(
        self,
        conversation: list[dict],
        *,
        tools: list[dict] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        **chat_template_kwargs: Any,
    ) -> str | list[int]:
        """The prompt of a conversation, as token ids or, with tokenize=False, as text."""
        text = self._session.render_chat(
            conversation,
            chat_template,
            {
                "tools": tools,
                "add_generation_prompt": add_generation_prompt,
                "continue_final_message": continue_final_message,
                "chat_template_kwargs": chat_template_kwargs or None,
            },
        )
        return self.encode(text, add_special_tokens=False) if tokenize else text

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        ids = self.encode(text, add_special_tokens)
        return {"input_ids": ids, "attention_mask": [1] * len(ids)}

    def __len__(self) -> int:
        return self.vocab_size


__all__ = ["Tokenizer"]
