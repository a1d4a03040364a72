"""Smaller micro-batches after a GPU ran out of memory, with the same sum."""

from __future__ import annotations

import os


def micro_batch(size: int, accumulation: int = 1) -> tuple[int, int]:
    """The micro-batch and the steps of gradient accumulation to use in place of these.

    They are what they were until the job was killed for want of GPU memory; then the micro-batch is smaller, and there
    is as much more accumulation: their product stays exactly the same.
    """
    if size < 1 or accumulation < 1:
        raise ValueError("a micro-batch and its accumulation are at least 1")
    whole = size * accumulation
    smaller = max(1, min(size, int(size * _scale())))
    while whole % smaller:
        smaller -= 1
    return smaller, whole // smaller


def _scale() -> float:
    try:
        scale = float(os.environ.get("STOKE_MICRO_BATCH_SCALE", "1"))
    except ValueError:
        return 1.0
    return scale if 0 < scale <= 1 else 1.0
