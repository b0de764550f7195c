"""The benches on a GPU: rounds end in time, and where there is no GPU they say so."""
import contextlib
import io
import json
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import modules  # noqa: F401
from gpu_common import GpuTools, interleave_within
from harness import BenchError, Outcome
import run_gpu
from surroundings import Cards, SetupError, Torch


def tools(seconds):
    return GpuTools(build=Path("/none"), peers=Path("/none"), python=Path("/none"), ranks=[2], quick=False, scratch=Path("/none"),
                    end=time.monotonic() + seconds)


class Rounds(unittest.TestCase):
    def test_each_contender_has_one_value_a_round(self):
        outcome = Outcome()
        found = interleave_within(tools(60), {"a": lambda: {4: [1.0, 3.0]}, "b": lambda: {4: [5.0]}}, 3, outcome, "what")
        self.assertEqual(found, {"a": {4: [2.0] * 3}, "b": {4: [5.0] * 3}})
        self.assertEqual((outcome.notes, outcome.missing), ([], []))

    def test_end_when_the_time_does(self):
        outcome, clock = Outcome(), [0.0]

        def slow():
            clock[0] += 8
            return {4: [1.0]}

        with mock.patch.object(time, "monotonic", lambda: clock[0]):
            found = interleave_within(tools(25), {"slow": slow}, 50, outcome, "what")
            self.assertEqual(found, {"slow": {4: [1.0] * 3}})
            self.assertEqual(outcome.notes, ["what: 3 of 50 rounds; the time was used up"])
            self.assertEqual(interleave_within(tools(0), {"slow": slow}, 5, outcome, "late"), {})
        self.assertEqual(outcome.missing, ["late: 0 of 5 rounds; the time was used up"])

    def test_a_contender_that_fails_is_named(self):
        def broken():
            raise BenchError("it broke")

        outcome = Outcome()
        found = interleave_within(tools(60), {"good": lambda: {4: [1.0]}, "bad": broken}, 2, outcome, "what")
        self.assertEqual(found, {"good": {4: [1.0, 1.0]}})
        self.assertEqual(outcome.missing, ["what: bad not measured: it broke"])


class Command(unittest.TestCase):
    def run_with(self, cards):
        programs = run_gpu.programs.Programs(Path("/build"), "2.11.0", "0123")
        here = run_gpu.ready.Ready(programs, Torch(Path("/torch"), "2.11.0", "13.0", Path("/python3")), cards, ["gpu_tests"])
        with tempfile.TemporaryDirectory() as folder:
            results = Path(folder) / "results.json"
            arguments = ["run_gpu.py", "--packed", "/gpu", "--json", str(results)]
            with mock.patch.object(sys, "argv", arguments), contextlib.redirect_stdout(io.StringIO()) as said:
                with mock.patch.object(run_gpu.ready, "make_ready", side_effect=cards) if isinstance(cards, SetupError) else (
                        mock.patch.object(run_gpu.ready, "make_ready", return_value=here)):
                    with contextlib.redirect_stderr(io.StringIO()):
                        return run_gpu.main(), json.loads(results.read_text()), said.getvalue()

    def test_without_a_gpu_nothing_is_measured_and_that_is_no_failure(self):
        code, results, said = self.run_with(Cards(reason="there is no NVIDIA driver here"))
        self.assertEqual(code, 0)
        self.assertIn("no GPU here: there is no NVIDIA driver here. 1 programs built, none run", said)
        self.assertEqual(results["rows"], [])
        self.assertEqual(results["missing"], [f"{name}: no GPU here" for name in run_gpu.BENCHES])
        self.assertEqual(results["programs"], {"torch": "2.11.0", "sources": "0123", "packed": False})

    def test_what_is_missing_is_in_the_results(self):
        code, results, _ = self.run_with(SetupError("there are no programs"))
        self.assertEqual((code, results), (2, {"kind": "bench", "problem": "there are no programs"}))

    def test_every_bench_has_its_module(self):
        for name in run_gpu.BENCHES:
            self.assertTrue((Path(run_gpu.__file__).parent / f"{name}.py").exists(), name)
        self.assertIsInstance(run_gpu.measured("gpu_step", tools(1)), Outcome)
        self.assertEqual(run_gpu.measured("gpu_step", tools(1)).missing, ["gpu_step: not measured; the time was used up"])


if __name__ == "__main__":
    unittest.main()
