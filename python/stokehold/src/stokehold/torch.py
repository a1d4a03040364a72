"""For PyTorch: all of a training's state in one checkpoint, and ranks that agree. Needs `torch`; the rest does not."""

from __future__ import annotations

from typing import Any, Optional

import torch
import torch.distributed as dist

from ._checkpoints import Checkpoints

_FILE = "state.pt"


def wanted(checkpoints: Checkpoints) -> bool:
    """What rank 0 finds: all ranks answer the same at the same step. Call it on each of them."""
    return bool(_shared(checkpoints.wanted() if checkpoints.rank == 0 else None))


def save(checkpoints: Checkpoints, step: int, **parts: Any) -> None:
    """Writes the state of each part (model, optimizer, schedule: whatever has a `state_dict`; other values as they are).

    Rank 0 writes, for ranks of DistributedDataParallel hold the same. Call it on each of them, for random numbers are
    kept for each.
    """
    numbers = _gathered({"cpu": torch.get_rng_state(), "gpus": _gpu_states()})
    with checkpoints.save(step) as directory:
        if directory is None:
            return
        state = {"step": step, "parts": {name: _state(part) for name, part in parts.items()}, "random": numbers}
        torch.save(state, directory / _FILE)


def load(checkpoints: Checkpoints, **parts: Any) -> tuple[int, dict[str, Any]]:
    """Puts what to go on from into the parts. Gives the step to go on from, 0 where there is none, and the values
    that are no parts.

    Rank 0 alone reads, so that only it needs the volume.
    """
    saved = checkpoints.resume() if checkpoints.rank == 0 else None
    state = _shared(torch.load(saved.path / _FILE, map_location="cpu") if saved else None)
    if state is None:
        return 0, {}
    values = dict(state["parts"])
    for name, part in parts.items():
        part = _unwrapped(part)
        if name in values and hasattr(part, "load_state_dict"):
            part.load_state_dict(values.pop(name))
    _put_random(state["random"])
    return int(state["step"]), values


def _state(part: Any) -> Any:
    part = _unwrapped(part)
    return part.state_dict() if hasattr(part, "state_dict") else part


def _unwrapped(part: Any) -> Any:
    """The model itself, so that a gang's checkpoint is one that a single process can load, and the other way round."""
    return part.module if isinstance(part, torch.nn.parallel.DistributedDataParallel) else part


def _gpu_states() -> list[torch.Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []


def _put_random(numbers: list[dict[str, Any]]) -> None:
    own = dist.get_rank() if _is_gang() else 0
    # A gang of another size has other ranks: what is not there begins as it would.
    if own >= len(numbers):
        return
    torch.set_rng_state(numbers[own]["cpu"])
    gpus = numbers[own]["gpus"]
    if gpus and torch.cuda.is_available() and len(gpus) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(gpus)


def _is_gang() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _shared(value: Any) -> Any:
    """What rank 0 has, for all."""
    if not _is_gang():
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def _gathered(value: Any) -> list[Any]:
    """What each rank has, for all."""
    if not _is_gang():
        return [value]
    box: list[Optional[Any]] = [None] * dist.get_world_size()
    dist.all_gather_object(box, value)
    return box
