"""A parser of command lines for scripts."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any


class FlexibleArgumentParser(argparse.ArgumentParser):
    """argparse's parser. In the names of options, '_' may stand for '-'."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        end = words.index("--") if "--" in words else len(words)
        return super().parse_known_args([*map(_dashed, words[:end]), *words[end:]], namespace)


def _dashed(word: str) -> str:
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


__all__ = ["FlexibleArgumentParser"]
