"""A loaded model, and requests to it: what LLM and AsyncLLM share."""

import itertools
import json
import threading
from collections.abc import Sequence
from typing import Any

from sluice import _core, _runtime
from sluice._answers import Answer, TokenTexts
from sluice._options import open_engine
from sluice.inputs import ParsedPrompt
from sluice.logger import logger
from sluice.lora.request import LoRARequest
from sluice.pooling_params import PoolingParams
from sluice.sampling_params import RequestOutputKind, SamplingParams
from sluice.tokenizer import Tokenizer


class Session:
    """Owns the engine. Thread-safe."""

    def __init__(self, model: str, arguments: dict[str, Any]):
        self.core, notes = open_engine(model, arguments)
        _runtime.track(self.core)
        for note in notes:
            logger.info("%s", note)
        self.model: dict[str, Any] = self.core.model()
        self.texts = TokenTexts(self.core)
        self._keys = itertools.count()
        self._adapters = dict(self.core.adapters())
        self._adapters_lock = threading.Lock()

    @property
    def tokenizer(self) -> Tokenizer:
        """It keeps the session; a session that kept it would not be freed with its last user."""
        return Tokenizer(self)

    def next_key(self) -> int:
        """A number for a request, unique in this session."""
        return next(self._keys)

    def default_sampling(self) -> SamplingParams:
        """vLLM's defaults, changed by the checkpoint's generation_config.json."""
        return SamplingParams(**self.model["default_sampling"])

    def adapter(self, request: LoRARequest | None) -> str:
        """The name of the request's adapter, which is loaded if it is not yet; "" without a request."""
        if request is None:
            return ""
        with self._adapters_lock:
            known = self._adapters.get(request.lora_name)
            if known is None:
                self.core.load_adapter(request.lora_name, request.lora_path)
                self._adapters[request.lora_name] = request.lora_path
            elif known != request.lora_path:
                raise ValueError(f"lora_name='{request.lora_name}' is taken: it is the adapter in {known}")
        return request.lora_name

    def request(
        self, params: SamplingParams, lora: LoRARequest | None, priority: int = 0, cache_salt: str | None = None
    ) -> _core.Request:
        """A request without a prompt. It can be submitted any number of times."""
        body = params.body()
        if cache_salt is not None:
            body = json.dumps(json.loads(body) | {"cache_salt": cache_salt})
        return self.core.request(body, self.adapter(lora), priority)

    def submit(
        self,
        prompt: ParsedPrompt,
        params: SamplingParams,
        request: _core.Request,
        channel: _core.Channel,
        key: int,
        request_id: str,
        *,
        kind: RequestOutputKind = RequestOutputKind.FINAL_ONLY,
        lora: LoRARequest | None = None,
        add_special_tokens: bool = True,
    ) -> tuple[int, Answer]:
        """Sends a request. Returns the engine's id of it, for cancel(), and the answer that collects its parts."""
        value = prompt.value
        most = params.truncate_prompt_tokens
        if most is not None:
            value = self._last_tokens(value, most, add_special_tokens)
        stream = kind is not RequestOutputKind.FINAL_ONLY
        id, tokens = self.core.submit(request, value, add_special_tokens, channel, key, stream)
        return id, Answer(
            request_id,
            prompt.text,
            tokens,
            params.n,
            self.texts,
            kind=kind,
            detokenize=params.detokenize,
            logprobs=params.logprobs is not None,
            lora=lora,
        )

    def _last_tokens(self, value: str | list[int], most: int, add_special_tokens: bool) -> list[int]:
        """vLLM keeps the end of a prompt that is too long. -1: up to the context."""
        if most != -1 and most < 1:
            raise ValueError(f"truncate_prompt_tokens={most} is not supported (expected -1 or at least 1)")
        tokens = self.core.tokenize(value, add_special_tokens) if isinstance(value, str) else value
        return tokens[-(self.model["max_model_len"] - 1 if most == -1 else most) :]

    def submit_pooling(
        self,
        texts: Sequence[tuple[str | list[int], str | None]],
        params: PoolingParams,
        channel: _core.Channel,
        key: int,
    ) -> tuple[int, list[list[int]]]:
        """Sends texts or pairs of texts. Returns the engine's id, and the tokens of each text."""
        return self.core.submit_pooling(list(texts), params.body(), channel, key)

    def render_chat(self, messages: list[dict], chat_template: str | None, fields: dict[str, Any]) -> str:
        """The prompt of a conversation."""
        if fields.get("continue_final_message") and fields.get("add_generation_prompt"):
            raise ValueError("continue_final_message=True needs add_generation_prompt=False")
        given = {name: value for name, value in fields.items() if value is not None}
        body = json.dumps({"messages": _plain(messages), **given})
        return self.core.render(body, chat_template or "")

    def close(self) -> None:
        self.core.close()


def _plain(value: Any) -> Any:
    """Messages may be objects of a client library; JSON has dicts."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return _plain(value.model_dump()) if hasattr(value, "model_dump") else value
