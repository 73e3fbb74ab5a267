"""LLMEngine: a model that is asked for what has come of its requests, with vLLM's interface."""

from collections import deque
from collections.abc import Iterable
from typing import Any

from sluice._answers import Answer
from sluice._session import Session
from sluice.engine.arg_utils import EngineArgs
from sluice.inputs import ParsedPrompt, PromptType
from sluice.lora.request import LoRARequest
from sluice.outputs import RequestOutput
from sluice.sampling_params import SamplingParams
from sluice.tokenizer import Tokenizer

_WAIT_S = 0.05  # how soon Ctrl-C is noticed while nothing comes


class LLMEngine:
    """Takes requests one by one. The model computes all the time; step() tells what is new.

    Takes the arguments of LLM. Used by one thread at a time.
    """

    def __init__(self, model: str, **options: Any):
        self._session = Session(model, options)
        self._channel = self._session.core.channel()
        self._parts: deque[tuple] = deque()
        self._answers: dict[int, Answer] = {}
        self._running: dict[str, int] = {}  # request_id -> key
        self._names: dict[int, str] = {}

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, **_: Any) -> "LLMEngine":
        return cls(**engine_args.arguments)

    def add_request(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
    ) -> None:
        """Sends a request. Raises ValueError for a wrong prompt or parameter, and if request_id is in use."""
        if request_id in self._running:
            raise ValueError(f"request_id '{request_id}' is that of a running request")
        parsed, key = ParsedPrompt(prompt), self._session.next_key()
        request = self._session.request(params, lora_request, priority, parsed.cache_salt)
        _, answer = self._session.submit(
            parsed, params, request, self._channel, key, request_id, kind=params.output_kind, lora=lora_request
        )
        self._answers[key] = answer
        self._running[request_id] = key
        self._names[key] = request_id

    def step(self) -> list[RequestOutput]:
        """Waits for news of any request and returns an output for each that has some; [] if none runs."""
        outputs: list[RequestOutput] = []
        while self._running and not outputs:
            self._parts.extend(self._channel.take(_WAIT_S))
            # A part with an error raises; what came with it is for this step or the next one.
            while self._parts and not (outputs and self._parts[0][6]):
                self._take(self._parts.popleft(), outputs)
        return outputs

    def _take(self, part: tuple, outputs: list[RequestOutput]) -> None:
        key, last = part[0], part[1]
        answer = self._answers.get(key)
        if answer is None:  # aborted since
            return
        if last:
            del self._answers[key]
            del self._running[self._names.pop(key)]
        output = answer.add(part)
        if output is not None:
            outputs.append(output)

    def abort_request(self, request_id: str | Iterable[str]) -> None:
        """Ends requests. No step() tells of them any more."""
        for name in [request_id] if isinstance(request_id, str) else list(request_id):
            if name not in self._running:
                continue
            key = self._running.pop(name)
            del self._answers[key], self._names[key]
            self._channel.drop(key)

    def has_unfinished_requests(self) -> bool:
        return bool(self._running)

    def get_num_unfinished_requests(self) -> int:
        return len(self._running)

    def get_tokenizer(self) -> Tokenizer:
        return self._session.tokenizer

    @property
    def model_info(self) -> dict[str, Any]:
        """Facts about the model: name, family, dtype, backend, task, max_model_len, vocab_size, ..."""
        return dict(self._session.model)

    def shutdown(self) -> None:
        """Ends running requests and frees the model."""
        self._session.close()


__all__ = ["LLMEngine"]
