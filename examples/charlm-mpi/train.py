"""A character-level language model, trained by a gang of MPI processes, with nothing but NumPy and mpi4py.

Every process holds the whole model, a small network that guesses a character from those before it, and reads its own
part of every batch; an allreduce averages the gradients. Works alone, under mpirun, and as a Stokehold job.

A run that is stopped at any moment carries on from its newest complete checkpoint, and ends as if it had never been
stopped: which characters a step reads depends on the seed, the step and the rank alone.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

try:
    import stokehold
except ImportError:
    # Straight from a checkout; elsewhere: pip install ./python/stokehold
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python" / "stokehold" / "src"))
    import stokehold

TEXT = Path(__file__).resolve().parent.parent / "text" / "stokehold.txt"


class Network:
    """Embedding, one hidden layer, a chance for every character. All weights lie in one vector, as allreduce wants."""

    def __init__(self, characters, context, width, random):
        embedding = 16
        shapes = {
            "embed": (characters, embedding),
            "hidden": (context * embedding, width),
            "hidden_bias": (width,),
            "out": (width, characters),
            "out_bias": (characters,),
        }
        self.vector = np.zeros(sum(int(np.prod(shape)) for shape in shapes.values()))
        self.gradient = np.zeros_like(self.vector)
        self.weights, self.slopes = self._views(self.vector, shapes), self._views(self.gradient, shapes)
        for name in ("embed", "hidden", "out"):
            self.weights[name][:] = random.normal(size=shapes[name]) / np.sqrt(shapes[name][0])

    @staticmethod
    def _views(vector, shapes):
        views, start = {}, 0
        for name, shape in shapes.items():
            size = int(np.prod(shape))
            views[name] = vector[start : start + size].reshape(shape)
            start += size
        return views

    def chances(self, context):
        w = self.weights
        seen = w["embed"][context].reshape(len(context), -1)
        hidden = np.tanh(seen @ w["hidden"] + w["hidden_bias"])
        scores = hidden @ w["out"] + w["out_bias"]
        raised = np.exp(scores - scores.max(axis=1, keepdims=True))
        return seen, hidden, raised / raised.sum(axis=1, keepdims=True)

    def learn(self, context, follow):
        """The loss on this batch; its gradient is left in `gradient`."""
        w, g, rows = self.weights, self.slopes, np.arange(len(context))
        seen, hidden, chances = self.chances(context)
        loss = -np.log(chances[rows, follow] + 1e-12).mean()
        chances[rows, follow] -= 1
        chances /= len(context)
        g["out"][:] = hidden.T @ chances
        g["out_bias"][:] = chances.sum(axis=0)
        back = (chances @ w["out"].T) * (1 - hidden**2)
        g["hidden"][:] = seen.T @ back
        g["hidden_bias"][:] = back.sum(axis=0)
        g["embed"][:] = 0
        np.add.at(g["embed"], context, (back @ w["hidden"].T).reshape(*context.shape, -1))
        return loss


class Adam:
    def __init__(self, size):
        self.mean, self.square = np.zeros(size), np.zeros(size)

    def step(self, vector, gradient, step, rate):
        self.mean += 0.1 * (gradient - self.mean)
        self.square += 0.001 * (gradient**2 - self.square)
        mean, square = self.mean / (1 - 0.9**step), self.square / (1 - 0.999**step)
        vector -= rate * mean / (np.sqrt(square) + 1e-8)


def load(saved):
    with np.load(saved.path / "state.npz") as state:
        return {name: state[name] for name in state.files}


def batch(text, args, step, rank):
    """What this rank reads at this step, and the character after each piece of it."""
    random = np.random.default_rng([args.seed, step, rank])
    starts = random.integers(len(text) - args.context, size=args.batch)
    return text[starts[:, None] + np.arange(args.context)], text[starts + args.context]


def write(network, alphabet, begin, length, seed):
    """Text in the manner of what the network has read."""
    random, context, written = np.random.default_rng(seed), begin.copy(), []
    for _ in range(length):
        chances = network.chances(context[None])[2][0] ** 1.4
        letter = random.choice(len(alphabet), p=chances / chances.sum())
        context = np.append(context[1:], letter)
        written.append(alphabet[letter])
    return "".join(written).strip()


def train(args, gang):
    text = Path(args.text).read_text(encoding="utf-8")
    alphabet = sorted(set(text))
    place = {letter: index for index, letter in enumerate(alphabet)}
    text = np.array([place[letter] for letter in text])
    network = Network(len(alphabet), args.context, args.width, np.random.default_rng(args.seed))
    adam = Adam(len(network.vector))

    # Rank 0 alone reads and writes checkpoints: all start at the same step, and only one needs the volume.
    checkpoints = stokehold.Checkpoints(args.checkpoints, keep=args.keep, rank=gang.rank)
    found = checkpoints.resume() if gang.rank == 0 else None
    saved = gang.bcast(load(found) if found else None, root=0)
    first, last, step = None, None, 0
    if saved:
        network.vector[:], adam.mean[:], adam.square[:] = saved["vector"], saved["mean"], saved["square"]
        first, last, step = float(saved["first"]), float(saved["last"]), int(saved["step"])
        if gang.rank == 0:
            print(f"resumed at step {step}/{args.steps}", flush=True)

    begin, begun = time.monotonic(), step
    while step < args.steps:
        loss = network.learn(*batch(text, args, step, gang.rank))
        gang.Allreduce(MPI.IN_PLACE, network.gradient)
        network.gradient /= gang.size
        step += 1
        rate = args.rate * (0.1 + 0.9 * (1 - step / args.steps))
        adam.step(network.vector, network.gradient, step, rate)

        if step == 1 or step % args.report == 0 or step == args.steps:
            last = gang.allreduce(loss) / gang.size
            first = last if first is None else first
            if gang.rank == 0:
                speed = (step - begun) * args.batch * gang.size / (time.monotonic() - begin)
                print(f"step {step}/{args.steps} loss {last:.3f} chars/s {speed:.0f}", flush=True)
        stokehold.step(step)
        is_due = step % args.save == 0 or step == args.steps
        # Someone may want one sooner: the memory is nearly full, or the node is about to go. Rank 0 alone looks, and alone writes.
        if is_due or (gang.rank == 0 and checkpoints.wanted()):
            with checkpoints.save(step) as directory:
                if directory:
                    state = {"vector": network.vector, "mean": adam.mean, "square": adam.square}
                    np.savez(directory / "state.npz", step=step, first=first, last=last, **state)

    if gang.rank == 0:
        print(f"\n{write(network, alphabet, text[-args.context :], args.sample, args.seed)}\n", flush=True)
        print(f"final loss {last:.3f}, from {first:.3f} at the start", flush=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", default=TEXT, help="what to learn from")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=128, help="guesses a process makes in a step")
    parser.add_argument("--context", type=int, default=8, help="characters a guess is made from")
    parser.add_argument("--width", type=int, default=128, help="size of the network")
    parser.add_argument("--rate", type=float, default=1e-2, help="learning rate at the start")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--report", type=int, default=40, help="steps between lines of progress")
    parser.add_argument("--save", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--keep", type=int, help="checkpoints to keep; as the job says, else 2")
    parser.add_argument("--sample", type=int, default=240, help="characters to write at the end")
    parser.add_argument("--checkpoints", help="where checkpoints are kept; as the job says, else none are")
    return parser.parse_args()


def main():
    args, gang = arguments(), MPI.COMM_WORLD
    if gang.rank == 0:
        print(f"{gang.size} process(es), NumPy {np.__version__}", flush=True)
    train(args, gang)


if __name__ == "__main__":
    main()
