"""AsyncLLM: answers as async generators, with vLLM's interface."""

import asyncio
import weakref
from collections.abc import AsyncGenerator, Iterable
from typing import Any

from sluice import _core
from sluice._answers import Answer
from sluice._offline import vectors
from sluice._session import Session
from sluice.engine.arg_utils import AsyncEngineArgs
from sluice.inputs import ParsedPrompt, PromptType
from sluice.lora.request import LoRARequest
from sluice.outputs import PoolingOutput, PoolingRequestOutput, RequestOutput
from sluice.pooling_params import PoolingParams
from sluice.sampling_params import RequestOutputKind, SamplingParams
from sluice.tokenizer import Tokenizer


class _Inbox:
    """What came for the requests of one event loop. Used in the loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self.channel = _core.Channel()
        self._parts: dict[int, list[tuple]] = {}
        self._wakes: dict[int, asyncio.Event] = {}
        loop.add_reader(self.channel.descriptor(), self._read)

    def _read(self) -> None:
        for part in self.channel.take(0):
            key = part[0]
            if key in self._parts:
                self._parts[key].append(part)
                self._wakes[key].set()

    def open(self, key: int) -> None:
        self._parts[key] = []
        self._wakes[key] = asyncio.Event()

    async def next(self, key: int) -> list[tuple]:
        """Waits for parts of a request and takes them."""
        wake = self._wakes[key]
        await wake.wait()
        wake.clear()
        parts, self._parts[key] = self._parts[key], []
        return parts

    def close(self, key: int) -> None:
        self.channel.drop(key)
        self._parts.pop(key, None)
        self._wakes.pop(key, None)


class AsyncLLM:
    """A model for asyncio. Any number of answers may be generated at the same time, in any number of loops.

    Takes the arguments of LLM. Leaving a generator early ends its request.
    """

    def __init__(self, model: str, **options: Any):
        self._session = Session(model, options)
        self._inboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Inbox] = weakref.WeakKeyDictionary()
        self._running: dict[str, int] = {}

    @classmethod
    def from_engine_args(cls, engine_args: AsyncEngineArgs, **_: Any) -> "AsyncLLM":
        return cls(**engine_args.arguments)

    def _inbox(self) -> _Inbox:
        loop = asyncio.get_running_loop()
        inbox = self._inboxes.get(loop)
        if inbox is None:
            inbox = self._inboxes[loop] = _Inbox(loop)
        return inbox

    async def generate(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Continues a prompt. Yields the answer so far whenever there is more of it (SamplingParams.output_kind).

        request_id: names the request for abort(); must not be that of a running one. Raises ValueError for a wrong
        prompt or parameter.
        """
        if request_id in self._running:
            raise ValueError(f"request_id '{request_id}' is that of a running request")
        inbox, key = self._inbox(), self._session.next_key()
        inbox.open(key)
        id = None
        try:
            answer, id = self._submit(inbox, key, prompt, sampling_params, request_id, lora_request, priority)
            self._running[request_id] = id
            finished = False
            while not finished:
                for output in self._outputs(answer, await inbox.next(key)):
                    finished = output.finished
                    if finished:
                        id = None
                    yield output
        finally:
            inbox.close(key)
            self._running.pop(request_id, None)
            if id is not None:
                self._cancel(id)

    def _submit(
        self,
        inbox: _Inbox,
        key: int,
        prompt: PromptType,
        params: SamplingParams,
        request_id: str,
        lora: LoRARequest | None,
        priority: int,
    ) -> tuple[Answer, int]:
        parsed = ParsedPrompt(prompt)
        request = self._session.request(params, lora, priority, parsed.cache_salt)
        kind = params.output_kind
        id, answer = self._session.submit(
            parsed, params, request, inbox.channel, key, request_id, kind=kind, lora=lora
        )
        return answer, id

    @staticmethod
    def _outputs(answer: Answer, parts: Iterable[tuple]) -> Iterable[RequestOutput]:
        for part in parts:
            output = answer.add(part)
            if output is not None:
                yield output

    async def encode(
        self, prompt: PromptType, pooling_params: PoolingParams, request_id: str
    ) -> AsyncGenerator[PoolingRequestOutput, None]:
        """What a model for vectors or scores returns for a prompt: one output with an array of shape [width]."""
        inbox, key = self._inbox(), self._session.next_key()
        inbox.open(key)
        id = None
        try:
            text = (ParsedPrompt(prompt).value, None)
            id, tokens = self._session.submit_pooling([text], pooling_params, inbox.channel, key)
            self._running[request_id] = id
            (part,) = await inbox.next(key)
            id = None
            yield PoolingRequestOutput(request_id, PoolingOutput(vectors(part)[0]), tokens[0])
        finally:
            inbox.close(key)
            self._running.pop(request_id, None)
            if id is not None:
                self._cancel(id)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Ends requests soon; their generators yield a last output with the finish reason "abort"."""
        for name in [request_id] if isinstance(request_id, str) else request_id:
            if name in self._running:
                self._session.core.cancel(self._running[name])

    def _cancel(self, id: int) -> None:
        try:
            self._session.core.cancel(id)
        except RuntimeError:  # the engine was closed, which ends all requests
            return

    async def get_tokenizer(self) -> Tokenizer:
        return self._session.tokenizer

    @property
    def model_info(self) -> dict[str, Any]:
        """Facts about the model: name, family, dtype, backend, task, max_model_len, vocab_size, ..."""
        return dict(self._session.model)

    async def check_health(self) -> None:
        """Raises RuntimeError if the engine has failed or was closed."""
        if not self._session.core.healthy():
            raise RuntimeError("The engine has failed.")

    def shutdown(self) -> None:
        """Ends running requests and frees the model."""
        self._session.close()


AsyncLLMEngine = AsyncLLM

__all__ = ["AsyncLLM", "AsyncLLMEngine", "RequestOutputKind"]
