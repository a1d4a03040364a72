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
    """Written beside its place and moved there, so that a reader sees the old one or the new one, and always whole."""
    if root is None:
        return
    root.mkdir(parents=True, exist_ok=True)
    draft = root / "checkpoint.json.writing"
    with open(draft, "w", encoding="utf-8") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, root / "checkpoint.json")


def load(root):
    if root is None or not (root / "checkpoint.json").is_file():
        return None
    return json.loads((root / "checkpoint.json").read_text(encoding="utf-8"))


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
                        help="where the checkpoint is kept; without it, none is")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
