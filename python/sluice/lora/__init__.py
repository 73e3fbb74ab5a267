"""Adapters."""

from sluice.lora.request import LoRARequest

__all__ = ["LoRARequest"]
