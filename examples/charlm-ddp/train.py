"""A character-level language model, trained by a gang of PyTorch processes.

Every process holds the whole model and reads its own part of every batch; DistributedDataParallel averages the
gradients. Works alone, under torchrun, and as a Stokehold job; on a CPU, with PyTorch 1.13 or newer.

A run that is stopped at any moment carries on from its newest complete checkpoint, and ends as if it had never been
stopped: which characters a step reads depends on the seed, the step and the rank alone.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

try:
    import stokehold
except ImportError:
    # Straight from a checkout; elsewhere: pip install ./python/stokehold
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python" / "stokehold" / "src"))
    import stokehold

import stokehold.torch  # noqa: E402

TEXT = Path(__file__).resolve().parent.parent / "text" / "stokehold.txt"


class CharModel(nn.Module):
    def __init__(self, characters, width):
        super().__init__()
        self.embed = nn.Embedding(characters, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, characters)

    def forward(self, text, state=None):
        hidden, state = self.gru(self.embed(text), state)
        return self.out(hidden), state


def batch(text, args, step, rank):
    """What this rank reads at this step, and what comes after each character of it."""
    random = torch.Generator().manual_seed((args.seed * 1_000_003 + step) * 4099 + rank)
    starts = torch.randint(len(text) - args.length - 1, (args.batch,), generator=random)
    windows = torch.stack([text[start : start + args.length + 1] for start in starts.tolist()])
    return windows[:, :-1], windows[:, 1:]


@torch.no_grad()
def write(model, alphabet, length, seed):
    """Text in the manner of what the model has read."""
    random = torch.Generator().manual_seed(seed)
    letter, state, written = torch.tensor([[alphabet.index("\n")]]), None, []
    for _ in range(length):
        scores, state = model(letter, state)
        chances = torch.softmax(scores[0, -1] / 0.7, dim=0)
        letter = torch.multinomial(chances, 1, generator=random).view(1, 1)
        written.append(alphabet[letter.item()])
    return "".join(written).strip()


def train(args, rank, world):
    text = Path(args.text).read_text(encoding="utf-8")
    alphabet = sorted(set(text))
    place = {letter: index for index, letter in enumerate(alphabet)}
    text = torch.tensor([place[letter] for letter in text])

    torch.manual_seed(args.seed)
    plain = CharModel(len(alphabet), args.width)
    model = DistributedDataParallel(plain) if world > 1 else plain
    optimizer = torch.optim.Adam(model.parameters(), lr=args.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps, args.rate / 10)
    measure = nn.CrossEntropyLoss()

    # Rank 0 alone reads and writes checkpoints: all start at the same step, and only one needs the volume.
    checkpoints = stokehold.Checkpoints(args.checkpoints, keep=args.keep)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    step, saved = stokehold.torch.load(checkpoints, **parts)
    first = saved.get("first")
    if rank == 0 and step:
        print(f"resumed at step {step}/{args.steps}", flush=True)

    loss, begin, begun = torch.tensor(float("nan")), time.monotonic(), step
    while step < args.steps:
        read, follow = batch(text, args, step, rank)
        scores, _ = model(read)
        loss = measure(scores.flatten(0, 1), follow.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        step += 1

        loud = step == 1 or step % args.report == 0 or step == args.steps
        if loud:
            loss = loss.detach()
            if world > 1:
                dist.all_reduce(loss)
                loss /= world
            first = loss.item() if first is None else first
        if rank == 0 and loud:
            seconds = time.monotonic() - begin
            speed = (step - begun) * args.batch * args.length * world / seconds
            print(f"step {step}/{args.steps} loss {loss.item():.3f} chars/s {speed:.0f}", flush=True)
        stokehold.step(step)
        is_due = step % args.save == 0 or step == args.steps
        # Someone may want one sooner: the memory is nearly full, or the node is about to go.
        if stokehold.torch.wanted(checkpoints) or is_due:
            stokehold.torch.save(checkpoints, step, **parts, first=first, last=loss.item())

    if rank == 0:
        last = saved["last"] if begun >= args.steps else loss.item()
        print(f"\n{write(plain, alphabet, args.sample, args.seed)}\n", flush=True)
        print(f"final loss {last:.3f}, from {first:.3f} at the start", flush=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", default=TEXT, help="what to learn from")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=12, help="windows a process reads in a step")
    parser.add_argument("--length", type=int, default=40, help="characters in a window")
    parser.add_argument("--width", type=int, default=64, help="size of the model")
    parser.add_argument("--rate", type=float, default=1e-2, help="learning rate at the start")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--report", type=int, default=20, help="steps between lines of progress")
    parser.add_argument("--save", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--keep", type=int, help="checkpoints to keep; as the job says, else 2")
    parser.add_argument("--sample", type=int, default=240, help="characters to write at the end")
    parser.add_argument("--checkpoints", help="where checkpoints are kept; as the job says, else none are")
    return parser.parse_args()


def main():
    args = arguments()
    # The gang's processes share the machine: one thread each is faster than all of them fighting for every core.
    torch.set_num_threads(1)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo")
    if rank == 0:
        print(f"{world} process(es), PyTorch {torch.__version__}", flush=True)
    train(args, rank, world)
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
