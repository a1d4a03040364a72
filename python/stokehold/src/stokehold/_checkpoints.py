"""Checkpoints that are whole or not there.

A checkpoint is a directory, `step-00001200`, that is written beside its place and moved there. The file `complete` in it
is written last and lists the others: a directory without it, or without one of them, is no checkpoint, whatever the file
system did. Who else writes checkpoints, in whatever language, does it as `docs/checkpoints.md` says.
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
_STEP = re.compile(r"(\d+)\D*$")
_DRAFT = re.compile(r"\..*\.(writing|going)")
_KEEP = 2


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint."""

    path: Path
    step: int
    attempt: int = 0

    @property
    def _age(self) -> tuple[int, int, str]:
        # What was trained longest is newest; clocks of nodes differ.
        return self.step, self.attempt, self.path.name


class Checkpoints:
    """Where a job keeps its checkpoints, and when it is to write one.

    directory: where they are; the job's own place unless said otherwise. Outside of a job, and with none said, nothing
        is kept.
    every: seconds between two; what the job says (`checkpoint.every`) unless said otherwise. Without either, one is
        written when it is asked for.
    keep: how many of them stay; what the job says (`checkpoint.keep`) unless said otherwise, else 2.
    rank: who of a gang writes is 0; the rank of this process unless said otherwise.
    """

    def __init__(
        self,
        directory: Union[str, os.PathLike[str], None] = None,
        *,
        every: Optional[float] = None,
        keep: Optional[int] = None,
        rank: Optional[int] = None,
    ) -> None:
        if keep is not None and keep < 1:
            raise ValueError("keep at least the newest checkpoint")
        directory = directory or os.environ.get("STOKE_CHECKPOINT_DIR")
        self.directory = Path(directory) if directory else None
        self.rank = _job.rank() if rank is None else rank
        self.keep = keep or _count(os.environ.get("STOKE_CHECKPOINT_KEEP")) or _KEEP
        self._every = _seconds(os.environ.get("STOKE_CHECKPOINT_EVERY")) if every is None else every
        self._last = time.monotonic()
        # What was asked for when this process began was asked of the one before it.
        self._answered = _request()
        self._has_tidied = False

    def all(self) -> list[Saved]:
        """All that are complete, the oldest first."""
        if self.directory is None or not self.directory.is_dir():
            return []
        found = (_read(path) for path in self.directory.iterdir())
        return sorted((saved for saved in found if saved), key=lambda saved: saved._age)

    def latest(self) -> Optional[Saved]:
        """The newest one, or none."""
        return next(reversed(self.all()), None)

    def resume(self) -> Optional[Saved]:
        """What to go on from: what all workers of the attempt were told, else the newest one, or none."""
        told = os.environ.get("STOKE_RESUME_FROM")
        if told and self.directory is not None and Path(told).parent == self.directory:
            saved = _read(Path(told))
            if saved:
                return saved
        return self.latest()

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
        begun = time.monotonic()
        place = self.directory / f"step-{step:08}"
        draft = self.directory / f".{place.name}.writing"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        with phase("checkpoint"):
            try:
                yield draft
                if not _read(place):
                    _finish(draft, place, step, begun)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
        self._is_done(request)
        status.say(saved_step=step)
        for old in self.all()[: -self.keep]:
            # A program that counts its steps anew: what it wrote last stays.
            if old.path != place:
                _remove(old.path)

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


def _finish(draft: Path, place: Path, step: int, begun: float) -> None:
    listed = []
    for folder, _, files in os.walk(draft):
        for name in files:
            path = Path(folder, name)
            _settle(path)
            listed.append({"path": path.relative_to(draft).as_posix(), "bytes": path.stat().st_size})
        _settle(Path(folder))
    if not listed:
        raise ValueError(f"nothing was written to {draft}: a checkpoint has files")
    marker = draft / _COMPLETE
    said = {
        "step": step,
        "attempt": _job.attempt(),
        "seconds": round(time.monotonic() - begun, 3),
        "files": sorted(listed, key=lambda file: str(file["path"])),
    }
    marker.write_text(json.dumps(said) + "\n")
    _settle(marker)
    _settle(draft)
    if place.exists():
        # What stands there is not complete.
        _remove(place)
    os.replace(draft, place)
    _settle(place.parent)


def _remove(path: Path) -> None:
    """Under another name first, so that a part of it is never taken for the whole."""
    going = path.with_name(f".{path.name}.going")
    shutil.rmtree(going, ignore_errors=True)
    try:
        os.replace(path, going)
    except OSError:
        # Who watches over the job's checkpoints may have been quicker.
        return
    shutil.rmtree(going, ignore_errors=True)


def _read(path: Path) -> Optional[Saved]:
    """The checkpoint in this directory, if it is complete."""
    if path.name.startswith("."):
        return None
    try:
        said = json.loads((path / _COMPLETE).read_text())
        files = said.get("files")
        if files is None:
            is_whole = any(entry.name != _COMPLETE for entry in path.iterdir())
        else:
            is_whole = bool(files) and all((path / file["path"]).stat().st_size >= file["bytes"] for file in files)
        number = _STEP.search(path.name)
        step = said.get("step", number[1] if number else 0)
        return Saved(path, int(step), int(said.get("attempt", 0))) if is_whole else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


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


def _count(text: Optional[str]) -> Optional[int]:
    try:
        return max(1, int(text or ""))
    except ValueError:
        return None


def _seconds(text: Optional[str]) -> Optional[float]:
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return seconds if seconds > 0 else None
