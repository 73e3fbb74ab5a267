"""vLLM's place of AsyncLLM."""

from sluice.async_llm import AsyncLLM

__all__ = ["AsyncLLM"]
