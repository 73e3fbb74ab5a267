"""Keyword arguments as options of the engine."""

import json
from typing import Any

from sluice import _core

# Offline, the caller waits for all of its requests anyway.
_DEFAULTS = {"max_num_queued_reqs": 2**31 - 1}


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list, tuple)):
        return json.dumps(value)
    if isinstance(value, (str, int, float)) or hasattr(value, "__fspath__"):
        return str(value)
    text = str(value)
    if text.startswith("torch."):  # torch.bfloat16
        return text.removeprefix("torch.")
    kind = type(value).__name__
    raise TypeError(f"argument '{name}' has the type {kind} (expected a str, number, bool, list or dict)")


def open_engine(model: str, arguments: dict[str, Any]) -> tuple[_core.Engine, list[str]]:
    """Loads a model. Arguments that are None are left out.

    Returns the engine, and a line for each argument that needs nothing. Raises TypeError for an unknown argument and
    ValueError for one that is not supported or has a wrong value; both name it.
    """
    pairs = [(name, _text(name, value)) for name, value in {**_DEFAULTS, **arguments}.items() if value is not None]
    try:
        return _core.open_engine(str(model), pairs)
    except _core.RequestError as error:
        if error.reason == "unknown_option":
            raise TypeError(f"unknown argument '{error.param}': {error}") from None
        if error.reason == "invalid_option" and error.param:
            raise ValueError(f"argument '{error.param}': {error}") from None
        raise
