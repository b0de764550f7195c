"""tools/nightly.py runs every step once with the same sources, and goes on where it stopped."""
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))

import nightly  # noqa: E402

# A call with three steps: each adds a line to the file `ran`; the second waits, or fails, while there is a file of that name.
CALL = """
import pathlib, signal, sys
sys.path.insert(0, sys.argv[1])
import nightly
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, nightly.interrupted)
step = lambda name, **more: nightly.Step(name, ["bash", "-c", f'''
echo {name} $VARIABLE $* >> build/ran
[ ! -e build/{name}-waits ] || {{ echo $$ > build/waiting; sleep 1000 & wait; }}
echo "{name} says"
[ ! -e build/{name}-fails ]''', name], **more)
steps = [step("first"), step("second", environment={"VARIABLE": "set"}, again=["again"]), step("third")]
sys.exit(nightly.run_all(steps, pathlib.Path.cwd()))
"""
# A call that is interrupted as soon as its step's process is there.
INTERRUPTED_AT_START = """
import pathlib, signal, subprocess, sys
sys.path.insert(0, sys.argv[1])
import nightly
class Popen(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        if options.get("start_new_session"):
            pathlib.Path("build/started").write_text(str(self.pid))
            signal.raise_signal(signal.SIGTERM)
subprocess.Popen = Popen
signal.signal(signal.SIGTERM, nightly.interrupted)
sys.exit(nightly.run_all([nightly.Step("waits", ["sleep", "1000"])], pathlib.Path.cwd()))
"""


class Nightly(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = pathlib.Path(scratch.name).resolve()
        (self.root / "build").mkdir()
        self.write("source", "text")
        self.write(".gitignore", "build/")
        subprocess.run(["git", "init", "-q"], cwd=self.root, check=True)

    def write(self, name, text=""):
        (self.root / name).write_text(text)

    def start(self, call=CALL):
        return subprocess.Popen([sys.executable, "-B", "-c", call, TOOLS], cwd=self.root, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)

    def call(self):
        """Returns the exit code, the verdicts of the table and the steps that ran."""
        return self.result_of(self.start())

    def result_of(self, process):
        out = process.communicate(timeout=100)[0]
        ran = self.root / "build/ran"
        lines = ran.read_text().splitlines() if ran.exists() else []
        ran.unlink(missing_ok=True)
        return process.returncode, [line.split()[1] for line in out.splitlines()[1:]], lines

    def test_runs_each_step_once_with_the_same_sources(self):
        self.assertEqual(self.call(), (0, ["passed"] * 3, ["first", "second set", "third"]))
        self.assertEqual(self.call(), (0, ["passed"] * 3, []))
        self.write("source", "other text")
        self.assertEqual(self.call(), (0, ["passed"] * 3, ["first", "second set", "third"]))

    def test_a_step_that_fails_keeps_no_other_from_running_and_runs_again(self):
        self.write("build/second-fails")
        self.assertEqual(self.call(), (1, ["passed", "failed", "passed"], ["first", "second set", "third"]))
        self.assertEqual((self.root / "build/nightly/second.log").read_text(), "second says\n")
        (self.root / "build/second-fails").unlink()
        self.assertEqual(self.call(), (0, ["passed"] * 3, ["second set"]))

    def test_goes_on_where_it_was_interrupted(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            self.write("build/second-waits")
            self.write("source", str(number))
            process = self.start()
            waiting = self.root / "build/waiting"
            while not (waiting.exists() and waiting.read_text()):
                time.sleep(0.01)
            process.send_signal(number)
            code, verdicts, ran = self.result_of(process)
            self.assertEqual((code, verdicts), (128 + number, ["passed", "interrupted", "not"]))
            self.assertEqual(ran, ["first", "second set"])
            self.assertFalse(pathlib.Path("/proc", waiting.read_text().strip()).exists(), "the step has ended")
            waiting.unlink()
            (self.root / "build/second-waits").unlink()
            self.assertEqual(self.call(), (0, ["passed"] * 3, ["second set again", "third"]))

    def test_ends_a_step_that_has_just_started(self):
        self.assertEqual(self.result_of(self.start(INTERRUPTED_AT_START)), (128 + signal.SIGTERM, ["interrupted"], []))
        self.assertFalse(pathlib.Path("/proc", (self.root / "build/started").read_text()).exists(), "the step has ended")

    def test_its_own_steps_are_commands_that_exist(self):
        steps = nightly.steps_of("2.15.0", 2)
        self.assertEqual(len({step.name for step in steps}), len(steps))
        commands = (TOOLS.parent / "dev").read_text()
        for step in steps:
            if step.command[0] == "./dev":
                self.assertIn(f"command_{step.command[1]}()", commands)
                continue
            # A program of tests runs nothing and passes where it has no such suite, and takes no notice of a variable that it does not know.
            program = pathlib.Path(step.command[0]).name.removesuffix("_tests")
            folders = [TOOLS.parent / layer / "tests" / program for layer in (".", "core", "vision", "studio")]
            sources = "".join(file.read_text() for folder in folders for file in folder.glob("*.cpp"))
            suite = step.command[1].removeprefix("--gtest_filter=").strip("*")
            for name in [f"({suite}," if suite else "", *(name for name in step.environment if name.startswith("LOCKSTEP_"))]:
                self.assertIn(name, sources)


if __name__ == "__main__":
    unittest.main()
