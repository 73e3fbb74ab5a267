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

    def __init__(self, loop: asyncio.AbstractEventLoop, core: _core.Engine):
        self.channel = core.channel()
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
        """Ends the request, if it still runs."""
        self.channel.drop(key)
        self._parts.pop(key, None)
        self._wakes.pop(key, None)


class _Running:
    """A request of a generator, for abort(). It goes with the generator, also with one that is never finished."""

    def __init__(self, id: int):
        self.id = id


class AsyncLLM:
    """A model for asyncio. Any number of answers may be generated at the same time, in any number of loops.

    Takes the arguments of LLM. Leaving a generator early ends its request.
    """

    def __init__(self, model: str, **options: Any):
        self._session = Session(model, options)
        # A loop owns its inbox, as a reader, until it is closed. An inbox that is freed ends its requests.
        self._inboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[_Inbox]] = (
            weakref.WeakKeyDictionary()
        )
        self._running: weakref.WeakValueDictionary[str, _Running] = weakref.WeakValueDictionary()

    @classmethod
    def from_engine_args(cls, engine_args: AsyncEngineArgs, **_: Any) -> "AsyncLLM":
        return cls(**engine_args.arguments)

    def _inbox(self) -> _Inbox:
        loop = asyncio.get_running_loop()
        found = self._inboxes.get(loop)
        inbox = found() if found is not None else None
        if inbox is None:
            inbox = _Inbox(loop, self._session.core)
            self._inboxes[loop] = weakref.ref(inbox)
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
        self._check_id(request_id)
        inbox, key = self._inbox(), self._session.next_key()
        inbox.open(key)
        try:
            answer, id = self._submit(inbox, key, prompt, sampling_params, request_id, lora_request, priority)
            running = self._running[request_id] = _Running(id)
            finished = False
            while not finished:
                for output in self._outputs(answer, await inbox.next(key)):
                    finished = output.finished
                    yield output
        finally:
            inbox.close(key)
            self._running.pop(request_id, None)

    def _check_id(self, request_id: str) -> None:
        if request_id in self._running:
            raise ValueError(f"request_id '{request_id}' is that of a running request")

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
        self._check_id(request_id)
        inbox, key = self._inbox(), self._session.next_key()
        inbox.open(key)
        try:
            text = (ParsedPrompt(prompt).value, None)
            id, tokens = self._session.submit_pooling([text], pooling_params, inbox.channel, key)
            running = self._running[request_id] = _Running(id)
            (part,) = await inbox.next(key)
            yield PoolingRequestOutput(request_id, PoolingOutput(vectors(part)[0]), tokens[0])
        finally:
            inbox.close(key)
            self._running.pop(request_id, None)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Ends requests soon. Generators of texts yield a last output with the finish reason "abort"; others raise."""
        for name in [request_id] if isinstance(request_id, str) else request_id:
            running = self._running.get(name)
            if running is not None:
                self._session.core.cancel(running.id)

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
