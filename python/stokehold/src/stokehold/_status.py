"""Tells the node where the program is: its phase, its step, its newest checkpoint.

From it come memory profiles by phase, leaks by the step, sizes by the input, and restarts that lose nothing.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import threading
import time
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any, Optional

from . import _job

# A node looks once a second.
_WRITE_EVERY = 0.25
# What a node reads of the file at most is 4 KiB.
_METRICS_MAX = 32
_NAME_LENGTH_MAX = 48


class Status:
    """The file that says it. Telling never fails: a program is not to end because nobody could be told."""

    def __init__(self) -> None:
        self._said: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._written_at = -math.inf
        self._is_behind = False
        self._has_warned = False

    def say(self, *, at_once: bool = True, **said: Any) -> None:
        # Of several processes of a worker, one speaks for all.
        if _job.local_rank() != 0:
            return
        with self._lock:
            self._said.update(said)
            now = time.monotonic()
            self._is_behind = True
            if at_once or now - self._written_at >= _WRITE_EVERY:
                self._write(now)

    def flush(self) -> None:
        with self._lock:
            if self._is_behind:
                self._write(time.monotonic())

    def said(self, name: str) -> Any:
        return self._said.get(name)

    def _write(self, now: float) -> None:
        self._written_at = now
        self._is_behind = False
        path = os.environ.get("STOKE_STATUS_FILE")
        if not path:
            return
        draft = Path(f"{path}.{os.getpid()}")
        told = {name: value for name, value in self._said.items() if value is not None}
        try:
            draft.write_text(json.dumps(told))
            os.replace(draft, path)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                warnings.warn(f"Stokehold cannot be told where this program is: {error}", stacklevel=4)


status = Status()
atexit.register(status.flush)


class phase:
    """What the program does from now on, such as load, train, eval or checkpoint; as a context, until its end.

        stokehold.phase("load")
        with stokehold.phase("eval"):
            ...
    """

    def __init__(self, name: str) -> None:
        self._before = status.said("phase")
        status.say(phase=str(name))

    def __enter__(self) -> phase:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        status.say(phase=self._before)


def step(number: int, **metrics: float) -> None:
    """So many steps are done. Call it after each; it is written now and then."""
    finite = {}
    for name, value in list(metrics.items())[:_METRICS_MAX]:
        figure = float(value)
        # JSON knows no others, and one would make the rest unreadable.
        if math.isfinite(figure):
            finite[name[:_NAME_LENGTH_MAX]] = figure
    status.say(at_once=False, step=int(number), metrics=finite or None)


def input_bytes(count: int) -> None:
    """How much the program reads in all: what it needs of memory may follow from it."""
    status.say(input_bytes=int(count))
