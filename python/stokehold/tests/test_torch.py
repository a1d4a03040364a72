"""A gang that is stopped and goes on ends as one that was never stopped."""

import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "src"

TRAIN = """
import hashlib, os, sys
import torch
import torch.distributed as dist
import stokehold
import stokehold.torch

store, ranks, stop = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rank = stokehold.rank()
if ranks > 1:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
torch.manual_seed(rank)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
with torch.no_grad():
    for weight in model.parameters():
        weight.fill_(0.1)
model = torch.nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
checkpoints = stokehold.Checkpoints(every=0)
step, more = stokehold.torch.load(checkpoints, model=model, optimizer=optimizer)
print("from", step, more.get("note"), flush=True)
while step < 10:
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if stokehold.torch.wanted(checkpoints):
        stokehold.torch.save(checkpoints, step, model=model, optimizer=optimizer, note="kept")
    if step == stop:
        os._exit(9)
weights = b"".join(weight.detach().numpy().tobytes() for weight in model.parameters())
print("weights", hashlib.sha256(weights).hexdigest(), flush=True)
"""


@unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not there")
class Torch(unittest.TestCase):
    def train(self, ranks, directory, stop):
        """What rank 0 printed, and how it ended."""
        with tempfile.TemporaryDirectory() as folder:
            base = {name: value for name, value in os.environ.items() if not name.startswith("STOKE_")}
            gang = []
            for rank in range(ranks):
                env = {**base, "PYTHONPATH": str(SOURCES), "RANK": str(rank)}
                # Only the first has the volume.
                if rank == 0:
                    env["STOKE_CHECKPOINT_DIR"] = str(directory)
                command = [sys.executable, "-c", TRAIN, f"{folder}/store", str(ranks), str(stop)]
                gang.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
            printed = [process.communicate(timeout=120)[0] for process in gang]
            return printed[0].splitlines(), gang[0].returncode

    def test_it_ends_as_if_it_had_never_been_stopped(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks), tempfile.TemporaryDirectory() as folder:
                whole, code = self.train(ranks, f"{folder}/whole", stop=0)
                self.assertEqual((code, whole[0]), (0, "from 0 None"))
                _, code = self.train(ranks, f"{folder}/parts", stop=4)
                self.assertEqual(code, 9)
                _, code = self.train(ranks, f"{folder}/parts", stop=7)
                self.assertEqual(code, 9)
                rest, code = self.train(ranks, f"{folder}/parts", stop=0)
                self.assertEqual((code, rest[0]), (0, "from 7 kept"))
                self.assertEqual(rest[1], whole[1])
