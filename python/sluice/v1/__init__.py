"""vLLM's module names."""
