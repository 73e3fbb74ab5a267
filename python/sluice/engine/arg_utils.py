"""Arguments of an engine as an object, and as options of a command line."""

import argparse
import re
from typing import Any

from sluice import _core


class EngineArgs:
    """Keyword arguments of LLM, kept for later. They are attributes of it, too."""

    def __init__(self, model: str, **options: Any):
        self.arguments: dict[str, Any] = {"model": model, **options}

    def __getattr__(self, name: str) -> Any:
        arguments = self.__dict__.get("arguments", {})
        if name in arguments:
            return arguments[name]
        raise AttributeError(f"{type(self).__name__} has no argument '{name}'")

    @staticmethod
    def add_cli_args(parser: Any) -> Any:
        """Adds all options of LLM to a parser of argparse, or to a group of one. Returns the parser.

        Options that are not given are None, which LLM leaves out: LLM(**vars(parser.parse_args())).
        """
        parser.add_argument("--model", help="a folder, a file, or org/name on the Hugging Face hub")
        for words, takes, text in _core.engine_options():
            parser.add_argument(*words, **_FORMS[takes], help=text.replace("%", "%%"))
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> "EngineArgs":
        """The options of add_cli_args() from what a parser found. Other values of the parser are left out."""
        names = {words[0][2:].replace("-", "_") for words, _, _ in _core.engine_options()}
        given = {name: value for name, value in vars(args).items() if name in names and value is not None}
        return cls(args.model, **given)


class AsyncEngineArgs(EngineArgs):
    """Keyword arguments of AsyncLLM, for AsyncLLM.from_engine_args()."""


def _number(text: str) -> Any:
    """Numbers as numbers, everything else as text."""
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    return float(text) if re.fullmatch(r"[+-]?\d*\.\d+", text) else text


_FORMS: dict[str, dict[str, Any]] = {
    "flag": {"action": argparse.BooleanOptionalAction, "default": None},
    "value": {"type": _number},
    "optional": {"nargs": "?", "const": True},
    "list": {"nargs": "+"},
}

__all__ = ["AsyncEngineArgs", "EngineArgs"]
