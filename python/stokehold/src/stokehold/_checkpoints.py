"""Checkpoints that are whole or not there.

A checkpoint is a directory, `step-00001200`, that is written beside its place and moved there. The file `complete` in it
is written last: a directory without it is no checkpoint, whatever the file system did.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Union

from . import _job
from ._status import phase, status

_COMPLETE = "complete"
_PLACE = re.compile(r"step-(\d+)")
_DRAFT = re.compile(r"\.step-\d+\.writing")


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint."""

    path: Path
    step: int


class Checkpoints:
    """Where a job keeps its checkpoints, and when it is to write one.

    directory: where they are; the job's own place unless said otherwise. Outside of a job, and with none said, nothing
        is kept.
    every: seconds between two; what the job says (`checkpoint.every`) unless said otherwise. Without either, one is
        written when it is asked for.
    keep: how many of them stay.
    rank: who of a gang writes is 0; the rank of this process unless said otherwise.
    """

    def __init__(
        self,
        directory: Union[str, os.PathLike[str], None] = None,
        *,
        every: Optional[float] = None,
        keep: int = 2,
        rank: Optional[int] = None,
    ) -> None:
        if keep < 1:
            raise ValueError("keep at least the newest checkpoint")
        directory = directory or os.environ.get("STOKE_CHECKPOINT_DIR")
        self.directory = Path(directory) if directory else None
        self.rank = _job.rank() if rank is None else rank
        self.keep = keep
        self._every = _seconds(os.environ.get("STOKE_CHECKPOINT_EVERY")) if every is None else every
        self._last = time.monotonic()
        # What was asked for when this process began was asked of the one before it.
        self._answered = _request()
        self._has_tidied = False

    def all(self) -> list[Saved]:
        """All that are complete, the oldest first."""
        if self.directory is None or not self.directory.is_dir():
            return []
        found = []
        for path in self.directory.iterdir():
            name = _PLACE.fullmatch(path.name)
            if name and (path / _COMPLETE).is_file():
                found.append(Saved(path, int(name[1])))
        return sorted(found, key=lambda saved: saved.step)

    def latest(self) -> Optional[Saved]:
        """What to go on from: the newest one, or none."""
        return next(reversed(self.all()), None)

    def requested(self) -> bool:
        """Whether someone wants one now: the memory is nearly full, or the node is about to go."""
        request = _request()
        return bool(request) and request != self._answered

    def wanted(self) -> bool:
        """Whether one is to be written now: it was asked for, or the last is old enough.

        Cheap enough to ask after each step. Ranks may see it at different steps: let one decide for all, as
        `stokehold.torch.wanted` does.
        """
        is_due = self._every is not None and time.monotonic() - self._last >= self._every
        return is_due or self.requested()

    @contextlib.contextmanager
    def save(self, step: int) -> Iterator[Optional[Path]]:
        """A directory to write the checkpoint into that `step` goes on from. It is complete when the context ends well.

        Other ranks than 0 get none, and so does everyone where checkpoints are not kept: `if directory:`.
        """
        if step < 0:
            raise ValueError("steps are counted from 0")
        request = _request()
        if self.rank != 0 or self.directory is None:
            yield None
            self._is_done(request)
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        self._tidy()
        place = self.directory / f"step-{step:08}"
        draft = self.directory / f".{place.name}.writing"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        with phase("checkpoint"):
            try:
                yield draft
                if not (place / _COMPLETE).is_file():
                    _finish(draft, place, step)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
        self._is_done(request)
        status.say(saved_step=step)
        for old in self.all()[: -self.keep]:
            shutil.rmtree(old.path, ignore_errors=True)

    def _is_done(self, request: str) -> None:
        self._answered = request
        self._last = time.monotonic()

    def _tidy(self) -> None:
        """Removes what a process before this one had begun."""
        if self._has_tidied or self.directory is None:
            return
        self._has_tidied = True
        for path in self.directory.iterdir():
            if _DRAFT.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)


def _finish(draft: Path, place: Path, step: int) -> None:
    for folder, _, files in os.walk(draft):
        for name in files:
            _settle(Path(folder, name))
        _settle(Path(folder))
    marker = draft / _COMPLETE
    marker.write_text(json.dumps({"step": step}) + "\n")
    _settle(marker)
    _settle(draft)
    # What stands there has no marker, and so is none.
    shutil.rmtree(place, ignore_errors=True)
    os.replace(draft, place)
    _settle(place.parent)


def _settle(path: Path) -> None:
    """Until it is on the disk: a node may lose its power."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _request() -> str:
    path = os.environ.get("STOKE_CHECKPOINT_REQUEST")
    if not path:
        return ""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _seconds(text: Optional[str]) -> Optional[float]:
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return seconds if seconds > 0 else None
