"""tools/lint.py forgets nothing that it should lint again. With a clang-tidy that complains about the word BAD."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools/lint.py"
FAKE = """#!/bin/sh
[ "$1" = --version ] && { cat "$(dirname "$0")/version"; exit 0; }
for file; do :; done
echo "$file" >> "$(dirname "$0")/linted"
echo "[1/1] (1/2) Processing file $file." >&2
if grep BAD "$file"; then exit 1; fi
"""


class Lint(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = pathlib.Path(scratch.name).resolve()
        for name, text in {
            "src/a.cpp": '#include "own.h"\n',
            "src/own.h": '#include "deep/far.h"\n',
            "include/deep/far.h": "int far();\n",
            "src/b.cpp": "int b;\n",
            "src/.clang-tidy": "Checks: bugprone-*\n",
            "tool/version": "1\n",
            "tool/clang-tidy": FAKE,
        }.items():
            self.write(name, text)
        (self.root / "tool/clang-tidy").chmod(0o755)
        self.compile_with("-O1")

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def compile_with(self, option):
        entries = [
            {"directory": "/", "file": str(self.root / name), "command": f"cc {option} -I{self.root}/include {name}"}
            for name in ("src/a.cpp", "src/b.cpp", "build/made.cpp")
        ]
        self.write("build/compile_commands.json", json.dumps(entries))

    def lint(self, *files):
        """Exit status, and the names of the files that were linted."""
        log = self.root / "tool/linted"
        log.write_text("")
        command = [sys.executable, "-B", TOOL, "--tree", "build", "--clang-tidy", self.root / "tool/clang-tidy", *files]
        ended = subprocess.run(command, cwd=self.root, capture_output=True, text=True)
        self.output = ended.stdout
        return ended.returncode, sorted(pathlib.Path(line).name for line in log.read_text().split())

    def test_a_clean_file_is_linted_once(self):
        self.assertEqual(self.lint(), (0, ["a.cpp", "b.cpp"]))
        self.assertEqual(self.lint(), (0, []))

    def test_what_a_file_depends_on_lints_it_again(self):
        self.lint()
        self.write("include/deep/far.h", "int further();\n")
        self.assertEqual(self.lint(), (0, ["a.cpp"]))
        self.write("src/b.cpp", "int other;\n")
        self.assertEqual(self.lint(), (0, ["b.cpp"]))
        for change in (
            lambda: self.write("src/.clang-tidy", "Checks: performance-*\n"),
            lambda: self.write(".clang-tidy", "Checks: misc-*\n"),
            lambda: self.write("tool/version", "2\n"),
            lambda: self.compile_with("-O2"),
        ):
            change()
            self.assertEqual(self.lint(), (0, ["a.cpp", "b.cpp"]))

    def test_findings_stay_until_they_are_mended(self):
        self.write("src/b.cpp", "BAD\n")
        self.assertEqual(self.lint(), (1, ["a.cpp", "b.cpp"]))
        self.assertIn("BAD", self.output)
        self.assertEqual(self.lint(), (1, ["b.cpp"]))
        self.write("src/b.cpp", "good\n")
        self.assertEqual(self.lint(), (0, ["b.cpp"]))

    def test_a_clang_tidy_that_dies_is_a_finding(self):
        self.write("tool/clang-tidy", '#!/bin/sh\n[ "$1" = --version ] || kill -9 $$\n')
        self.assertEqual(self.lint()[0], 1)
        self.assertIn("clang-tidy ended with -9", self.output)

    def test_files_can_be_chosen(self):
        self.assertEqual(self.lint("src/a.cpp", "not/compiled.cpp"), (0, ["a.cpp"]))
        self.assertEqual(self.lint(), (0, ["b.cpp"]))


if __name__ == "__main__":
    unittest.main()
