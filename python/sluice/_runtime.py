"""Closes engines when the interpreter ends, so that no thread of one outlives it."""

import atexit
import os
import weakref

from sluice import _core

_engines: "weakref.WeakSet[_core.Engine]" = weakref.WeakSet()
_forked = False


def track(engine: _core.Engine) -> None:
    """Has the engine closed at the end of the interpreter, if it is still open then."""
    _engines.add(engine)


def _after_fork() -> None:
    global _forked
    _forked = True


@atexit.register
def _close_all() -> None:
    for engine in list(_engines):
        engine.close()
    if not _forked:
        _core.wait_for_calls(2.0)


os.register_at_fork(after_in_child=_after_fork)
