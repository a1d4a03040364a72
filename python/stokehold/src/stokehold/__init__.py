"""What a training program tells Stokehold, and is told by it.

Everything here works outside of Stokehold too, where it tells nobody and nobody asks: a program needs no second way to run.

    import stokehold

    checkpoints = stokehold.Checkpoints()
    saved = checkpoints.resume()
    first = load(saved.path) if saved else 0

    with stokehold.phase("train"):
        for step in range(first, steps):
            loss = train(step)
            stokehold.step(step + 1, loss=loss)
            if checkpoints.wanted():
                with checkpoints.save(step + 1) as directory:
                    if directory:
                        write(directory / "state.bin")
"""

from ._batch import micro_batch
from ._checkpoints import Checkpoints, Saved
from ._job import attempt, is_job, rank
from ._status import input_bytes, phase, step

__all__ = [
    "Checkpoints",
    "Saved",
    "attempt",
    "input_bytes",
    "is_job",
    "micro_batch",
    "phase",
    "rank",
    "step",
]
