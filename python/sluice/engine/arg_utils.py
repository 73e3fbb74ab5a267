"""Arguments of an engine as an object."""

from typing import Any


class EngineArgs:
    """Keyword arguments of LLM, kept for later."""

    def __init__(self, model: str, **options: Any):
        self.arguments: dict[str, Any] = {"model": model, **options}


class AsyncEngineArgs(EngineArgs):
    """Keyword arguments of AsyncLLM, for AsyncLLM.from_engine_args()."""


__all__ = ["AsyncEngineArgs", "EngineArgs"]
