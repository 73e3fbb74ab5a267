"""vLLM's older name of AsyncLLM."""

from sluice.async_llm import AsyncLLMEngine

__all__ = ["AsyncLLMEngine"]
