"""Helpers for the tests of tools/docs."""
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools/docs"))


class Project(unittest.TestCase):
    """A small project in a scratch folder."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = Path(scratch.name)

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def found_by(self, check):
        return [f"{path.relative_to(self.root)}:{line}: {text}" for path, line, text in check(self.root)]
