"""Puts the parts of an answer together to outputs."""

from dataclasses import replace
from functools import lru_cache

from sluice import _core
from sluice.lora.request import LoRARequest
from sluice.outputs import CompletionOutput, Logprob, RequestOutput
from sluice.sampling_params import RequestOutputKind


class TokenTexts:
    """The text of each token, for log probabilities."""

    def __init__(self, engine: _core.Engine):
        self.text = lru_cache(maxsize=1 << 17)(lambda token: engine.token_bytes(token).decode(errors="replace"))

    def table(self, alternatives: list[tuple[int, float, int]]) -> dict[int, Logprob]:
        return {token: Logprob(logprob, rank, self.text(token)) for token, logprob, rank in alternatives}


def raise_error(error: tuple[str, str] | None) -> None:
    """Raises the error that ended a request: ValueError if a field of it was wrong, otherwise RuntimeError."""
    if error is None:
        return
    message, param = error
    raise ValueError(message) if param else RuntimeError(message)


class Answer:
    """A request in progress and what came of it so far."""

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        n: int,
        texts: TokenTexts,
        *,
        kind: RequestOutputKind = RequestOutputKind.FINAL_ONLY,
        detokenize: bool = True,
        logprobs: bool = False,
        lora: LoRARequest | None = None,
    ):
        self._texts = texts
        self._kind = kind
        self._detokenize = detokenize
        self._output = RequestOutput(
            request_id,
            prompt,
            prompt_token_ids,
            None,
            [self._choice(i, logprobs, lora) for i in range(n)],
            finished=False,
            lora_request=lora,
        )

    @staticmethod
    def _choice(index: int, logprobs: bool, lora: LoRARequest | None) -> CompletionOutput:
        listed = [] if logprobs else None
        return CompletionOutput(index, "", [], 0.0 if logprobs else None, listed, lora_request=lora)

    def add(self, part: tuple) -> RequestOutput | None:
        """Takes a part of the answer (see convert.h). Returns the output to yield, if there is one."""
        _, last, cached, choices, prompt_logprobs, _, error = part
        raise_error(error)
        out = self._output
        delta = self._kind is RequestOutputKind.DELTA
        out.finished = last
        out.num_cached_tokens = cached
        if prompt_logprobs is not None:
            out.prompt_logprobs = [None, *map(self._texts.table, prompt_logprobs[1:])]
        if delta:
            out.outputs = [self._choice(c.index, c.logprobs is not None, c.lora_request) for c in out.outputs]
        for choice in choices:
            self._extend(out.outputs[choice[0]], choice)
        if last:
            return out
        if self._kind is RequestOutputKind.FINAL_ONLY:
            return None
        return replace(out, outputs=[self._copy(c) for c in out.outputs])

    def _extend(self, to: CompletionOutput, choice: tuple) -> None:
        _, text, token_ids, logprobs, finish_reason, stop_reason = choice
        if self._detokenize:
            to.text += text
        to.token_ids += token_ids
        if logprobs is not None and to.logprobs is not None:
            to.logprobs += map(self._texts.table, logprobs)
            to.cumulative_logprob += sum(alternatives[0][1] for alternatives in logprobs)
        to.finish_reason = finish_reason or to.finish_reason
        to.stop_reason = stop_reason if stop_reason is not None else to.stop_reason

    @staticmethod
    def _copy(choice: CompletionOutput) -> CompletionOutput:
        logprobs = None if choice.logprobs is None else list(choice.logprobs)
        return replace(choice, token_ids=list(choice.token_ids), logprobs=logprobs)
