"""How tokens are chosen: vLLM's SamplingParams, and the further samplers of Sluice (docs/sampling.md)."""

import copy
import json
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from sluice import _core

# Numbers of the engine's table of sampling parameters: name -> (default, help).
_NUMBERS: dict[str, tuple[float, str]] = {name: (default, text) for name, default, text in _core.sampling_parameters()}

# Everything else: name -> default, as in vLLM. The names are those of the request's fields, too, unless they are below.
_OTHERS: dict[str, Any] = {
    "n": 1,
    "best_of": None,
    "seed": None,
    "stop": None,
    "stop_token_ids": None,
    "bad_words": None,
    "dry_sequence_breakers": None,
    "samplers": None,
    "include_stop_str_in_output": False,
    "ignore_eos": False,
    "max_tokens": 16,
    "min_tokens": 0,
    "logprobs": None,
    "prompt_logprobs": None,
    "logit_bias": None,
    "allowed_token_ids": None,
    "skip_special_tokens": True,
}
# What Python itself does with these.
_LOCAL: dict[str, Any] = {
    "detokenize": True,
    "truncate_prompt_tokens": None,
    "output_kind": None,
    "structured_outputs": None,
    "guided_decoding": None,
}
# Parameters of vLLM that the engine lacks, with the values that ask for nothing.
_REFUSED: dict[str, tuple] = {
    "spaces_between_special_tokens": (True,),
    "logits_processors": (None, []),
    "extra_args": (None, {}),
    "flat_logprobs": (False,),
    "skip_reading_prefix_cache": (None, False),
}


class RequestOutputKind(Enum):
    """What a stream yields."""

    CUMULATIVE = 0  # all of the answer so far
    DELTA = 1  # what is new since the last output
    FINAL_ONLY = 2  # one output, when the answer has ended


@dataclass
class StructuredOutputsParams:
    """A grammar for the answer: exactly one of json, regex, choice, grammar, json_object and structural_tag.

    json is a schema, as a dict or as JSON text. grammar is GBNF or Lark.
    """

    json: str | dict | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict | None = None
    disable_fallback: bool = False
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        kinds = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
        given = [kind for kind in kinds if getattr(self, kind) not in (None, False)]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"{type(self).__name__} needs exactly one of {', '.join(kinds)}, but has {found}")

    def body(self) -> dict[str, Any]:
        """The request's field structured_outputs."""
        out = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in out.items() if value not in (None, False)}


@dataclass
class GuidedDecodingParams(StructuredOutputsParams):
    """The older name of StructuredOutputsParams. There is one backend for all grammars, so `backend` must be None."""

    backend: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.backend not in (None, "auto"):
            raise ValueError(f"backend='{self.backend}' is not supported: there is one for all grammars")
        self.backend = None


def _plain(value: Any) -> Any:
    """Numbers of numpy and torch, for JSON."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be a sampling parameter")


class SamplingParams:
    """Sampling parameters with vLLM's names, meanings and defaults.

    Raises TypeError for an unknown parameter and ValueError for one that is out of its range; both name it.
    """

    def __init__(self, n: int = 1, **parameters: Any):
        values = {name: default for name, (default, _) in _NUMBERS.items()}
        values |= _OTHERS | _LOCAL | {"output_kind": RequestOutputKind.CUMULATIVE, "n": n}
        for name, value in parameters.items():
            if name in _REFUSED:
                if value not in _REFUSED[name]:
                    raise ValueError(f"SamplingParams: '{name}' is not supported")
            elif name not in values:
                raise TypeError(f"SamplingParams: unknown parameter '{name}'")
            elif value is not None or name not in _NUMBERS:
                values[name] = value
        if values["seed"] == -1:
            values["seed"] = None
        if values["guided_decoding"] is not None and values["structured_outputs"] is not None:
            raise ValueError("SamplingParams: 'guided_decoding' is the older name of 'structured_outputs'; give one")
        self.__dict__.update(values)
        _core.check_sampling(self.body())

    @staticmethod
    def from_optional(**parameters: Any) -> "SamplingParams":
        """Like the constructor; parameters that are None have their defaults."""
        given = {name: value for name, value in parameters.items() if value is not None or name == "max_tokens"}
        return SamplingParams(**given)

    def clone(self) -> "SamplingParams":
        return copy.copy(self)

    def body(self) -> str:
        """The fields of a request that differ from their defaults, as JSON."""
        out: dict[str, Any] = {}
        for name, (default, _) in _NUMBERS.items():
            value = getattr(self, name)
            if value != default:
                out[name] = value
        for name, default in _OTHERS.items():
            value = getattr(self, name)
            if value is not None and (value != default or name == "max_tokens"):
                out[name] = value
        grammar = self.structured_outputs or self.guided_decoding
        if grammar is not None:
            out["structured_outputs"] = grammar.body()
        return json.dumps(out, default=_plain)

    def __repr__(self) -> str:
        defaults = SamplingParams.__new__(SamplingParams)
        defaults.__dict__.update({name: default for name, (default, _) in _NUMBERS.items()})
        defaults.__dict__.update(_OTHERS | _LOCAL)
        shown = [f"{k}={v!r}" for k, v in self.__dict__.items() if getattr(defaults, k) != v and k != "output_kind"]
        return f"SamplingParams({', '.join(shown)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SamplingParams) and self.__dict__ == other.__dict__


@dataclass
class BeamSearchParams:
    """A search for the likeliest texts (docs/beam-search.md). It samples nothing, so `temperature` must be 0."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        if self.temperature != 0.0:
            raise ValueError(f"temperature={self.temperature} is not supported in a beam search (expected 0.0)")

    def body(self) -> str:
        """The fields of a request, as JSON."""
        return json.dumps(
            {
                "n": self.beam_width,
                "use_beam_search": True,
                "length_penalty": self.length_penalty,
                "max_tokens": self.max_tokens,
                "ignore_eos": self.ignore_eos,
                "include_stop_str_in_output": self.include_stop_str_in_output,
                "logprobs": 0,
            }
        )


__all__ = [
    "BeamSearchParams",
    "GuidedDecodingParams",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
]
