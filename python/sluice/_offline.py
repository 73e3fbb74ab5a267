"""Sends many requests and waits for all of them."""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sluice import _core
from sluice._answers import raise_error
from sluice._session import Session

_WAIT_S = 0.05  # how soon Ctrl-C is noticed while nothing comes


class Progress:
    """tqdm's bar, where tqdm is installed and a bar is wanted; otherwise nothing."""

    def __init__(self, wanted: bool | Callable[..., Any], total: int, what: str):
        self._bar = None
        if not wanted or total == 0:
            return
        make = wanted if callable(wanted) else _tqdm()
        if make is not None:
            self._bar = make(total=total, desc=what, dynamic_ncols=True, disable=not sys.stderr.isatty())

    def step(self) -> None:
        if self._bar is not None:
            self._bar.update(1)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _tqdm() -> Callable[..., Any] | None:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm


class Batch:
    """Requests of one call. With an exception, Ctrl-C included, none of them goes on.

    `send` submits request number i to the channel under the key i.
    """

    def __init__(self, session: Session, use_tqdm: bool | Callable[..., Any], what: str):
        self._session = session
        self._use_tqdm = use_tqdm
        self._what = what

    def run(self, send: Callable[[_core.Channel, int], None], count: int, take: Callable[[int, tuple], bool]) -> None:
        """Sends all; passes each part of an answer to take(i, part), which returns whether request i has ended."""
        channel = self._session.core.channel()
        unfinished = count
        progress = Progress(self._use_tqdm, count, self._what)
        try:
            for i in range(count):
                send(channel, i)
            while unfinished > 0:
                for part in channel.take(_WAIT_S):
                    if take(part[0], part):
                        unfinished -= 1
                        progress.step()
        finally:
            channel.drop_all()
            progress.close()


def vectors(part: tuple) -> list[Any]:
    """The arrays of a part of an answer by a model for vectors."""
    raise_error(part[6])
    if part[5] is None:
        raise RuntimeError("The request was aborted, or the engine was closed.")
    return part[5]


def per_prompt(name: str, value: Any, count: int) -> Iterable[Any]:
    """One value for all prompts, or a sequence with one for each."""
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        if len(value) != count:
            raise ValueError(f"{name} has {len(value)} values for {count} prompts")
        return value
    return [value] * count
