"""Which adapter a request uses."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LoRARequest:
    """An adapter (LoRA) in a folder in the format of Hugging Face's peft.

    The first request that names it loads it; the model must have been loaded with enable_lora=True. lora_int_id only
    tells adapters apart, as in vLLM: use a number of its own for each.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str

    def __post_init__(self) -> None:
        if self.lora_int_id < 1:
            raise ValueError(f"lora_int_id must be at least 1, but is {self.lora_int_id}")
        if not self.lora_path:
            raise ValueError("lora_path is empty (expected a folder)")

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def path(self) -> str:
        return self.lora_path


__all__ = ["LoRARequest"]
