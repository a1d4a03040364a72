"""What a worker is told by its environment."""

from __future__ import annotations

import os
from typing import Optional

# Of all processes of a gang, as torchrun, Open MPI, other launchers of MPI, and Stokehold itself say it.
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "STOKE_RANK")
_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


def is_job() -> bool:
    """Whether this runs as a job of Stokehold."""
    return "STOKE_JOB" in os.environ


def attempt() -> int:
    """Which attempt of the job this is, from 1."""
    return _number("STOKE_ATTEMPT") or 1


def rank() -> int:
    """The rank of this process in its gang; 0 where there is none."""
    return _first(_RANKS)


def local_rank() -> int:
    """The rank of this process in its worker."""
    return _first(_LOCAL_RANKS)


def _first(names: tuple[str, ...]) -> int:
    found = (_number(name) for name in names)
    return next((number for number in found if number is not None), 0)


def _number(name: str) -> Optional[int]:
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return None
