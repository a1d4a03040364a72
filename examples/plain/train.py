"""Logistic regression in plain Python: no framework, no package, one process.

It learns to tell from four readings of a boiler whether it will be in the red at the next bell. The readings are made
up, by a rule that the model does not know.

A run that is stopped at any moment carries on from its newest checkpoint, and ends as if it had never been stopped:
which boilers an epoch sees, and in what order, depends on the seed and the epoch alone.
"""

import argparse
import json
import math
import os
import random
import shutil
import time
from pathlib import Path

READINGS = ("pressure", "climb", "water", "damper")


def boilers(count, seed):
    """Readings between -1 and 1, and whether the boiler went into the red."""
    source = random.Random(seed)
    made = []
    for _ in range(count):
        pressure, climb, water, damper = (source.uniform(-1, 1) for _ in READINGS)
        danger = 2.0 * pressure + 3.0 * climb - 1.5 * water - 1.0 * damper
        red = danger + source.gauss(0, 0.5) > 0.4
        made.append(((pressure, climb, water, damper, 1.0), float(red)))
    return made


def chance(weights, readings):
    score = sum(weight * reading for weight, reading in zip(weights, readings))
    # Beyond this a float can no longer tell the chance from certainty, and exp would overflow.
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, score))))


def measure(weights, data):
    """Mean loss, and the share that was judged rightly."""
    loss, right = 0.0, 0
    for readings, red in data:
        guess = chance(weights, readings)
        loss -= math.log(guess if red else 1 - guess)
        right += (guess > 0.5) == bool(red)
    return loss / len(data), right / len(data)


def save(root, state):
    """A directory that has its name when it is whole, as docs/checkpoints.md has it: the marker `complete` is written last."""
    if root is None:
        return
    place = root / f"epoch-{state['epoch']}"
    draft = root / f".{place.name}.writing"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    for name, content in (("state.json", state), ("complete", {"step": state["epoch"]})):
        with open(draft / name, "w", encoding="utf-8") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
    # What stands there was never finished.
    shutil.rmtree(place, ignore_errors=True)
    os.replace(draft, place)
    # Under another name first: a part of one is none.
    for old in sorted(complete(root), key=epoch_of)[:-2]:
        os.replace(old, root / f".{old.name}.going")
        shutil.rmtree(root / f".{old.name}.going")


def complete(root):
    return [path for path in root.glob("epoch-*") if (path / "complete").is_file()]


def epoch_of(path):
    return int(path.name.split("-")[1])


def load(root):
    """As a job it is told what to go on from; by itself it looks."""
    told = os.environ.get("STOKE_RESUME_FROM")
    found = [Path(told)] if told else sorted(complete(root), key=epoch_of) if root else []
    if not found:
        return None
    return json.loads((found[-1] / "state.json").read_text(encoding="utf-8"))


def train(args):
    root = Path(args.checkpoints) if args.checkpoints else None
    data, unseen = boilers(args.boilers, args.seed), boilers(args.boilers // 5, args.seed + 1)
    state = load(root)
    if state:
        print(f"resumed at step {state['epoch']}/{args.epochs}", flush=True)
    else:
        weights = [0.0] * (len(READINGS) + 1)
        state = {"epoch": 0, "weights": weights, "first": measure(weights, unseen)[0]}
    weights, begin = state["weights"], time.monotonic()

    while state["epoch"] < args.epochs:
        epoch = state["epoch"] + 1
        order = list(range(len(data)))
        random.Random(args.seed * 1_000_003 + epoch).shuffle(order)
        for start in range(0, len(order), args.batch):
            some = [data[index] for index in order[start : start + args.batch]]
            slope = [0.0] * len(weights)
            for readings, red in some:
                error = chance(weights, readings) - red
                for index, reading in enumerate(readings):
                    slope[index] += error * reading
            for index, value in enumerate(slope):
                weights[index] -= args.rate * value / len(some)
        state["epoch"] = epoch
        save(root, state)
        loss, right = measure(weights, unseen)
        seconds = time.monotonic() - begin
        print(f"step {epoch}/{args.epochs} loss {loss:.3f} right {right:.1%} {seconds:.1f}s", flush=True)
        time.sleep(args.pause)

    loss, right = measure(weights, unseen)
    learned = ", ".join(f"{name} {weight:+.2f}" for name, weight in zip((*READINGS, "bias"), weights))
    print(f"\n{learned}\n\nfinal loss {loss:.3f}, from {state['first']:.3f} at the start", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--boilers", type=int, default=20_000, help="how many to learn from")
    parser.add_argument("--epochs", type=int, default=20, help="how often to see them all")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to rest after an epoch")
    parser.add_argument("--checkpoints", default=os.environ.get("STOKE_CHECKPOINT_DIR"),
                        help="where checkpoints are kept; without it, none are")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
