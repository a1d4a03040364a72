"""Run by `python3 -m unittest discover` with `src` on the path; nothing else is needed."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
import warnings
from pathlib import Path
from unittest import mock

import stokehold
from stokehold import _status

SOURCES = Path(__file__).resolve().parent.parent / "src"


class InJob(unittest.TestCase):
    """With an environment of its own, and nothing of Stokehold's in it but what a test says."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("STOKE_")}
        for name in ("RANK", "LOCAL_RANK"):
            kept.pop(name, None)
        environment = mock.patch.dict(os.environ, kept, clear=True)
        environment.start()
        self.addCleanup(environment.stop)
        status = _status.Status()
        for place in ("stokehold._status.status", "stokehold._checkpoints.status"):
            patch = mock.patch(place, status)
            patch.start()
            self.addCleanup(patch.stop)
        self.status = status

    def job(self, **variables):
        request, told = self.root / "request", self.root / "status.json"
        request.write_text("")
        os.environ.update(
            STOKE_JOB="j", STOKE_STATUS_FILE=str(told), STOKE_CHECKPOINT_REQUEST=str(request),
            STOKE_CHECKPOINT_DIR=str(self.root / "ckpt"), **variables,
        )
        return request, told


class Outside(InJob):
    def test_every_call_is_harmless(self):
        self.assertFalse(stokehold.is_job())
        self.assertEqual((stokehold.rank(), stokehold.attempt()), (0, 1))
        with stokehold.phase("load"):
            stokehold.input_bytes(5)
        stokehold.step(3, loss=0.5)
        self.status.flush()
        checkpoints = stokehold.Checkpoints()
        self.assertIsNone(checkpoints.latest())
        self.assertFalse(checkpoints.wanted())
        with checkpoints.save(3) as directory:
            self.assertIsNone(directory)
        self.assertEqual(stokehold.micro_batch(32, 2), (32, 2))
        self.assertEqual(list(self.root.iterdir()), [])

    def test_torch_is_imported_by_who_uses_it_only(self):
        told = subprocess.run(
            [sys.executable, "-c", "import sys, stokehold; print('torch' in sys.modules)"],
            env={**os.environ, "PYTHONPATH": str(SOURCES)}, capture_output=True, text=True, check=True,
        )
        self.assertEqual(told.stdout.strip(), "False")


class Telling(InJob):
    def test_the_file_says_where_the_program_is(self):
        _, told = self.job()
        stokehold.input_bytes(12345)
        with stokehold.phase("train"):
            stokehold.step(7, loss=0.25, broken=float("nan"))
            self.status.flush()
            said = json.loads(told.read_text())
            self.assertEqual(
                said, {"input_bytes": 12345, "phase": "train", "step": 7, "metrics": {"loss": 0.25}}
            )
            with stokehold.phase("eval"):
                self.assertEqual(json.loads(told.read_text())["phase"], "eval")
            self.assertEqual(json.loads(told.read_text())["phase"], "train")
        self.assertNotIn("phase", json.loads(told.read_text()))

    def test_steps_are_told_now_and_then_and_the_last_in_the_end(self):
        _, told = self.job()
        with mock.patch.object(_status.time, "monotonic", return_value=100.0):
            for step in range(1000):
                stokehold.step(step)
        self.assertEqual(json.loads(told.read_text())["step"], 0)
        self.status.flush()
        self.assertEqual(json.loads(told.read_text())["step"], 999)

    def test_whatever_is_told_fits_into_what_is_read(self):
        _, told = self.job()
        stokehold.step(1, **{f"{n}-{'long' * 40}": n / 3 for n in range(200)})
        self.assertLess(len(told.read_bytes()), 4096)

    def test_who_cannot_tell_goes_on(self):
        self.job()
        os.environ["STOKE_STATUS_FILE"] = str(self.root / "missing" / "status.json")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for name in ("load", "train"):
                stokehold.phase(name)
        self.assertEqual(len(said), 1, "said once")

    def test_of_several_processes_of_a_worker_one_speaks(self):
        _, told = self.job(LOCAL_RANK="1")
        stokehold.phase("train")
        self.assertFalse(told.exists())


class Saving(InJob):
    def saved(self, checkpoints, step, text="state"):
        with checkpoints.save(step) as directory:
            (directory / "state").write_text(text)

    def test_the_newest_complete_one_is_what_to_go_on_from(self):
        _, told = self.job()
        checkpoints = stokehold.Checkpoints(keep=2)
        for step in (5, 10, 100_000_000, 20):
            self.saved(checkpoints, step)
        self.assertEqual([saved.step for saved in checkpoints.all()], [20, 100_000_000])
        self.assertEqual(checkpoints.resume(), checkpoints.latest())
        self.assertEqual(checkpoints.latest().step, 100_000_000)
        (self.root / "ckpt" / "step-200000000").mkdir()
        self.assertEqual(checkpoints.latest().step, 100_000_000, "no marker, no checkpoint")
        self.assertEqual(json.loads(told.read_text())["saved_step"], 20)
        marker = json.loads((checkpoints.all()[0].path / "complete").read_text())
        self.assertGreaterEqual(marker.pop("seconds"), 0)
        self.assertEqual(marker, {"step": 20, "attempt": 1, "files": [{"path": "state", "bytes": 5}]})

    def test_what_lacks_a_file_is_none(self):
        self.job()
        checkpoints = stokehold.Checkpoints(keep=9)
        for step in (1, 2, 3, 4):
            self.saved(checkpoints, step)
        root = self.root / "ckpt"
        (root / "step-00000004" / "state").write_text("s")
        (root / "step-00000003" / "state").unlink()
        (root / "step-00000002" / "complete").write_text("[")
        for name in ("step-5", "named", ".step-6.writing"):
            (root / name).mkdir()
            (root / name / "complete").write_text("{}")
        self.assertEqual([saved.step for saved in checkpoints.all()], [1])
        self.saved(checkpoints, 4, "again")
        self.assertEqual((checkpoints.latest().path / "state").read_text(), "again", "what was broken is replaced")
        (root / "named" / "weights").write_text("")
        self.assertEqual([saved.path.name for saved in checkpoints.all()][0], "named", "others may write them too")

    def test_the_attempt_says_what_to_go_on_from(self):
        self.job(STOKE_ATTEMPT="3")
        checkpoints = stokehold.Checkpoints(keep=9)
        for step in (1, 2):
            self.saved(checkpoints, step)
        self.assertEqual([saved.attempt for saved in checkpoints.all()], [3, 3])
        for told, step in (("step-00000001", 1), ("step-00000007", 2), ("", 2)):
            os.environ["STOKE_RESUME_FROM"] = str(self.root / "ckpt" / told)
            self.assertEqual(checkpoints.resume().step, step, told)
        os.environ["STOKE_RESUME_FROM"] = str(self.root / "ckpt" / "step-00000001")
        self.assertIsNone(stokehold.Checkpoints(self.root / "elsewhere").resume(), "not what is asked for")

    def test_an_empty_one_is_refused(self):
        self.job()
        with self.assertRaises(ValueError):
            with stokehold.Checkpoints().save(1):
                pass

    def test_as_many_stay_as_the_job_says(self):
        self.job(STOKE_CHECKPOINT_KEEP="3")
        checkpoints = stokehold.Checkpoints()
        for step in (9, 8, 7, 1):
            self.saved(checkpoints, step)
        self.assertEqual([saved.step for saved in checkpoints.all()], [1, 7, 8, 9], "what was written last stays")
        self.saved(checkpoints, 10)
        self.assertEqual([saved.step for saved in checkpoints.all()], [8, 9, 10])

    def test_what_fails_leaves_nothing_and_what_was_there(self):
        self.job()
        checkpoints = stokehold.Checkpoints()
        self.saved(checkpoints, 1)
        with self.assertRaises(KeyError):
            with checkpoints.save(2) as directory:
                (directory / "state").write_text("half")
                raise KeyError("state")
        self.assertEqual([path.name for path in (self.root / "ckpt").iterdir()], ["step-00000001"])

    def test_who_is_killed_while_it_writes_has_the_one_before(self):
        self.job()
        checkpoints = stokehold.Checkpoints()
        self.saved(checkpoints, 1)
        script = "import os, stokehold\nwith stokehold.Checkpoints().save(2) as d:\n  (d / 'state').write_text('half')\n  os.kill(os.getpid(), 9)"
        ended = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(SOURCES)})
        self.assertEqual(ended.returncode, -9)
        self.assertTrue((self.root / "ckpt" / ".step-00000002.writing").is_dir())
        after = stokehold.Checkpoints()
        self.assertEqual(after.latest().step, 1)
        self.saved(after, 3)
        left = sorted(path.name for path in (self.root / "ckpt").iterdir())
        self.assertEqual(left, ["step-00000001", "step-00000003"], "what was begun is gone")

    def test_the_same_step_twice_is_the_same_checkpoint(self):
        self.job()
        checkpoints = stokehold.Checkpoints()
        self.saved(checkpoints, 4, "first")
        self.saved(checkpoints, 4, "second")
        self.assertEqual((checkpoints.latest().path / "state").read_text(), "first")

    def test_one_is_written_when_it_is_asked_for_and_once(self):
        request, _ = self.job()
        request.write_text("asked of the attempt before")
        checkpoints = stokehold.Checkpoints()
        self.assertFalse(checkpoints.wanted())
        request.write_text("2026-01-01T00:00:00Z memory is nearly full")
        self.assertTrue(checkpoints.wanted())
        self.saved(checkpoints, 1)
        self.assertFalse(checkpoints.wanted())
        with checkpoints.save(2) as directory:
            (directory / "state").write_text("")
            request.write_text("again, while it was written")
        self.assertTrue(checkpoints.wanted(), "what came meanwhile is not answered by it")

    def test_one_is_written_every_so_often(self):
        self.job(STOKE_CHECKPOINT_EVERY="60")
        clock = "stokehold._checkpoints.time.monotonic"
        with mock.patch(clock, return_value=0.0):
            checkpoints = stokehold.Checkpoints()
        for now, wanted in ((59.9, False), (60.0, True)):
            with mock.patch(clock, return_value=now):
                self.assertEqual(checkpoints.wanted(), wanted)
        self.assertFalse(stokehold.Checkpoints(every=1e9).wanted())

    def test_one_rank_writes(self):
        self.job(RANK="1", STOKE_RANK="0")
        with stokehold.Checkpoints().save(1) as directory:
            self.assertIsNone(directory)

    def test_nonsense_is_refused(self):
        self.job(STOKE_CHECKPOINT_EVERY="soon", STOKE_ATTEMPT="x", STOKE_RANK="y")
        self.assertFalse(stokehold.Checkpoints().wanted())
        self.assertEqual((stokehold.attempt(), stokehold.rank()), (1, 0))
        with self.assertRaises(ValueError):
            stokehold.Checkpoints(keep=0)
        with self.assertRaises(ValueError):
            with stokehold.Checkpoints().save(-1):
                pass


class Batches(InJob):
    def test_the_product_stays(self):
        for scale, size, accumulation, expected in (
            ("1", 32, 1, (32, 1)),
            ("0.5", 32, 1, (16, 2)),
            ("0.25", 32, 4, (8, 16)),
            ("0.5", 3, 1, (1, 3)),
            ("0.5", 7, 2, (2, 7)),
            ("0.001", 8, 1, (1, 8)),
            ("2", 8, 1, (8, 1)),
            ("nonsense", 8, 1, (8, 1)),
        ):
            with self.subTest(scale=scale, size=size):
                os.environ["STOKE_MICRO_BATCH_SCALE"] = scale
                found = stokehold.micro_batch(size, accumulation)
                self.assertEqual(found, expected)
                self.assertEqual(found[0] * found[1], size * accumulation)
        with self.assertRaises(ValueError):
            stokehold.micro_batch(0)


if __name__ == "__main__":
    unittest.main()
