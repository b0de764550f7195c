"""What the bench of the Trainer writes."""
import json
import tempfile
import unittest
from pathlib import Path

import modules  # noqa: F401, first: it makes the modules below importable

import trainer


class Report(unittest.TestCase):
    def test_its_log_is_a_log(self):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "run"
            trainer.write_log(folder)
            events = [json.loads(line) for line in (folder / "run.jsonl").read_text(encoding="utf-8").splitlines()]
        self.assertEqual([events[0]["event"], events[-1]["event"]], ["start", "end"])
        steps = [event["step"] for event in events if event["event"] == "step"]
        self.assertEqual(steps, list(range(trainer.LOG_EPOCHS * trainer.LOG_STEPS)))


if __name__ == "__main__":
    unittest.main()
