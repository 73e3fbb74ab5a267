"""openai-python, the tests of embeddings: they need a model that embeds."""
from adapters.openai_python import pytest_configure, pytest_unconfigure  # noqa: F401
