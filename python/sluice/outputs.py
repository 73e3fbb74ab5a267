"""Answers, with vLLM's names and fields."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sluice.lora.request import LoRARequest

if TYPE_CHECKING:
    import numpy


@dataclass
class Logprob:
    """The natural logarithm of a token's probability, before penalties and temperature. rank 1 is the likeliest."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    """One answer.

    token_ids: its tokens, the end token included.
    logprobs: for each of them the alternatives by token id, the token itself first; None if not asked for.
    cumulative_logprob: the sum over the tokens; None without logprobs.
    finish_reason: "stop", "length" or "abort"; None while it goes on.
    stop_reason: the stop string or the id of the stop token that ended it; None for an end token.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: LoRARequest | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """The answers to a prompt.

    prompt_logprobs: for each token of the prompt the alternatives by token id, None for the first; None if not asked
        for.
    num_cached_tokens: tokens of the prompt that were found in the prefix cache.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: Any = None
    lora_request: LoRARequest | None = None
    num_cached_tokens: int = 0


@dataclass
class PoolingOutput:
    """What a model returned for a text. data: float32 array of shape [width]; the memory is the engine's own."""

    data: "numpy.ndarray"


@dataclass
class EmbeddingOutput:
    """A vector. data: float32 array of shape [hidden_size]; the memory is the engine's own."""

    data: "numpy.ndarray"

    @property
    def embedding(self) -> list[float]:
        """The vector as a list, as in vLLM. It is copied at every access; `data` is not."""
        return self.data.tolist()

    @property
    def hidden_size(self) -> int:
        return len(self.data)


@dataclass
class ClassificationOutput:
    """A probability for each class. data: float32 array of shape [num_classes]."""

    data: "numpy.ndarray"

    @property
    def probs(self) -> list[float]:
        return self.data.tolist()

    @property
    def num_classes(self) -> int:
        return len(self.data)


@dataclass
class ScoringOutput:
    """How well two texts fit together."""

    score: float


@dataclass
class PoolingRequestOutput:
    """What a model returned for a text. prompt_token_ids: its tokens, with what the model wants around them."""

    request_id: str
    outputs: Any
    prompt_token_ids: list[int]
    finished: bool = True


@dataclass
class EmbeddingRequestOutput(PoolingRequestOutput):
    outputs: EmbeddingOutput


@dataclass
class ClassificationRequestOutput(PoolingRequestOutput):
    outputs: ClassificationOutput


@dataclass
class ScoringRequestOutput(PoolingRequestOutput):
    outputs: ScoringOutput


@dataclass
class BeamSearchSequence:
    """A text that a beam search found.

    tokens: the prompt's and the text's. text: both, decoded. cum_logprob: the sum over the text's tokens.
    """

    tokens: list[int]
    text: str
    cum_logprob: float
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: LoRARequest | None = None


@dataclass
class BeamSearchOutput:
    """The best texts of a beam search, the best one first."""

    sequences: list[BeamSearchSequence]


__all__ = [
    "BeamSearchOutput",
    "BeamSearchSequence",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "Logprob",
    "PoolingOutput",
    "PoolingRequestOutput",
    "RequestOutput",
    "ScoringOutput",
    "ScoringRequestOutput",
]
