"""tools/gpu: how the tests and benches for GPUs set themselves up, and what they say where something is missing. On machines
that are folders, with an nvidia-smi, a LibTorch and test programs that are scripts."""
import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/gpu"))
import programs  # noqa: E402
import ready  # noqa: E402
import run_tests  # noqa: E402
import surroundings  # noqa: E402
from surroundings import SetupError  # noqa: E402

CARD = "NVIDIA H100 80GB HBM3, 81559, 580.159.04, GPU-1b2c"
VERSION = "__version__ = '{}+cu130'\ncuda: Optional[str] = '13.0'\n"
# As GoogleTest: lists its tests, or runs one. `hangs` has a child that would outlive it.
TESTS = """#!/bin/sh
case $1 in
  --gtest_list_tests) printf 'Suite.\\n  passes\\n  fails\\n  hangs\\nCardAlone.\\n  passes\\nCases/Suite.\\n  x/0  # GetParam() = 1\\n' ;;
  *fails) echo 'a_test.cpp:7: Failure'; echo 'Expected: 1'; exit 1 ;;
  *hangs) sleep 60 & echo $! > "$CHILD"; wait ;;
  *) echo "$1" >> "$LOG"; echo '[  PASSED  ] 1 test.' ;;
esac
"""


class Machine(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = pathlib.Path(scratch.name)
        self.log, self.child = self.root / "log", self.root / "child"
        self.environment = {"PATH": f"{self.root}/bin:/usr/bin:/bin", "LOG": str(self.log), "CHILD": str(self.child)}
        patch = mock.patch.dict(os.environ, self.environment, clear=True)
        patch.start()
        self.addCleanup(patch.stop)

    def write(self, name, text, executable=False):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if executable else 0o644)
        return path

    def nvidia_smi(self, output, code=0):
        self.write("bin/nvidia-smi", f"#!/bin/sh\nprintf '%s\\n' '{output}'\nexit {code}\n", executable=True)

    def torch(self, version="2.11.0", cuda=True, folder="torch"):
        self.write(f"{folder}/version.py", VERSION.format(version))
        self.write(f"{folder}/lib/libtorch_cpu.so", "")
        if cuda:
            self.write(f"{folder}/lib/libtorch_cuda.so", "")
        return self.root / folder

    def programs(self, packed=True):
        folder = self.root / "gpu"
        for name in (programs.LAUNCHER, *programs.BENCHES):
            self.write(f"gpu/bin/{name}", "#!/bin/sh\n", executable=True)
        self.write("gpu/bin/gpu_tests", TESTS, executable=True)
        if packed:
            said = {"torch": "2.11.0", "sources": programs.sources_hash(self.root), "programs": []}
            self.write("gpu/programs.json", json.dumps(said))
        return folder


    def child_ends(self):
        """Whether the child of the test that hangs comes to its end, whoever has to reap it, if it has begun at all."""
        if not self.child.exists() or not self.child.read_text().strip():
            return True
        stat = pathlib.Path(f"/proc/{self.child.read_text().strip()}/stat")
        end = time.monotonic() + 20
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                if stat.read_text().rpartition(")")[2].split()[0] != "Z":
                    time.sleep(0.01)
                    continue
            return True
        return False


class Cards(Machine):
    def find(self):
        return surroundings.find_cards(os.environ, self.root)

    def test_are_those_that_the_driver_lists(self):
        self.nvidia_smi(CARD)
        self.assertEqual(self.find().gpus, [surroundings.Gpu("NVIDIA H100 80GB HBM3", 81559, "580.159.04", "GPU-1b2c")])

    def test_no_driver_is_said(self):
        self.assertIn("no NVIDIA driver", self.find().reason)
        self.write("dev/nvidiactl", "")
        self.assertIn("no nvidia-smi", self.find().reason)

    def test_a_driver_that_does_not_work_gives_its_reason(self):
        self.nvidia_smi("Failed to initialize NVML", code=18)
        self.assertIn("ended with 18: Failed to initialize NVML", self.find().reason)
        self.nvidia_smi("nonsense")
        self.assertIn("gave no list", self.find().reason)

    def test_the_variable_hides_them(self):
        self.nvidia_smi(CARD)
        for value in ("", "-1", "NoDevFiles"):
            os.environ["CUDA_VISIBLE_DEVICES"] = value
            self.assertIn("hides all GPUs", self.find().reason)
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
        self.assertEqual(len(self.find().gpus), 1)


class Torch(Machine):
    def test_the_variable_names_it(self):
        os.environ["LOCKSTEP_TORCH_DIR"] = str(self.torch())
        found = surroundings.find_torch()
        self.assertEqual((found.version, found.cuda, found.python), ("2.11.0", "13.0", None))
        os.environ["LOCKSTEP_TORCH_DIR"] = str(self.torch(cuda=False, folder="other"))
        self.assertIsNone(surroundings.find_torch().cuda)
        os.environ["LOCKSTEP_TORCH_DIR"] = str(self.root)
        with self.assertRaisesRegex(SetupError, "no version.py"):
            surroundings.find_torch()

    def test_else_python_is_asked(self):
        python = self.write("bin/python3", f"#!/bin/sh\necho {self.torch()}\n", executable=True)
        self.assertEqual(surroundings.find_torch().python, python)
        self.write("bin/python3", "#!/bin/sh\necho\n", executable=True)
        with self.assertRaisesRegex(SetupError, "has no torch: name the folder"):
            surroundings.find_torch(own=self.root / "venv")
        own = self.torch(folder="venv/lib/python3.11/site-packages/torch")
        self.assertEqual(surroundings.find_torch(own=self.root / "venv").folder, own)


class Programs(Machine):
    def test_must_be_of_these_sources(self):
        self.write("core/a.cpp", "int a;\n")
        folder = self.programs()
        self.assertTrue(programs.read_packed(folder, self.root).packed)
        self.write("core/notes.md", "no source\n")
        programs.read_packed(folder, self.root)
        self.write("core/a.cpp", "int b;\n")
        with self.assertRaisesRegex(SetupError, "from other sources.*./dev package --gpu --torch 2.11.0"):
            programs.read_packed(folder, self.root)

    def test_a_folder_that_is_not_one(self):
        with self.assertRaisesRegex(SetupError, "no programs in"):
            programs.read_packed(self.root, self.root)
        self.write("gpu/programs.json", "[]")
        with self.assertRaisesRegex(SetupError, "damaged"):
            programs.read_packed(self.root / "gpu", self.root)

    def test_need_the_libtorch_that_they_were_built_with(self):
        found = programs.read_packed(self.programs(), self.root)
        programs.check_torch(found, surroundings.read_torch(self.torch()))
        with self.assertRaisesRegex(SetupError, "built with LibTorch 2.11.0, .* of 2.12.0"):
            programs.check_torch(found, surroundings.read_torch(self.torch("2.12.0", folder="newer")))
        with self.assertRaisesRegex(SetupError, "without CUDA"):
            programs.check_torch(found, surroundings.read_torch(self.torch(cuda=False, folder="cpu")))

    def test_every_library_that_is_missing_is_named(self):
        found = programs.read_packed(self.programs(), self.root)
        self.write("bin/ldd", "#!/bin/sh\ncase $1 in *lockstep) echo '\tliba.so => not found';;\n"
                   "*) echo \"$1: version \\`GLIBC_2.99' not found\" >&2;; esac\n", executable=True)
        with self.assertRaises(SetupError) as caught:
            programs.check_linked(found, surroundings.read_torch(self.torch()), ["lockstep", "gpu_tests"])
        for piece in ("liba.so => not found", "GLIBC_2.99"):
            self.assertIn(piece, str(caught.exception))

    def test_are_packed_with_what_they_are_linked_with(self):
        torch = surroundings.read_torch(self.torch(folder="site/torch"))
        build = self.programs(packed=False)
        self.write(f"gpu/lib/{programs.BACKEND}", "")
        libraries = {"liba.so.1": "liba.so.1", "libtorch_cpu.so": "site/torch/lib/libtorch_cpu.so", "libc.so.6": "libc.so.6",
                     "libstdc++.so.6": "libstdc++.so.6"}
        self.write("bin/ldd", "#!/bin/sh\n" + "".join(
            f"echo '\t{name} => {self.write(path, 'x')} (0x1)'\n" for name, path in libraries.items()), executable=True)
        self.write("bin/strip", "#!/bin/sh\n", executable=True)
        later = self.write(f"system/{programs.LOADED_LATER}", "x")
        self.write("bin/ldconfig", f"#!/bin/sh\necho '\t{later.name} (libc6,x86-64) => {later}'\n", executable=True)
        folder = self.root / "packed"
        programs.pack(build, torch, folder, 1 << 20)
        self.assertEqual(sorted(path.name for path in (folder / "lib").iterdir()), ["liba.so.1", programs.LOADED_LATER, programs.BACKEND])
        self.assertEqual(programs.read_packed(folder).built_with, "2.11.0")
        with self.assertRaisesRegex(SetupError, "more than 0 MiB"):
            programs.pack(build, torch, folder, 10)
        self.assertTrue((folder / "programs.json").exists(), "the last good folder stays")


class Runs(Machine):
    def main(self, *options):
        """Exit code and results."""
        self.torch()
        os.environ["LOCKSTEP_TORCH_DIR"] = str(self.root / "torch")
        results = self.root / "out/results.json"
        arguments = ["run_tests.py", "--packed", str(self.programs()), "--json", str(results), *options]
        self.output = io.StringIO()
        linked = mock.patch.object(programs, "check_linked")
        hashed = mock.patch.object(programs, "sources_hash", return_value=programs.sources_hash(self.root))
        with mock.patch.object(sys, "argv", arguments), linked, hashed, contextlib.redirect_stdout(self.output):
            with mock.patch.object(surroundings, "DRIVER_FOLDERS", ()):
                return run_tests.main(), json.loads(results.read_text())

    def test_without_a_gpu_nothing_runs_and_that_is_no_failure(self):
        code, results = self.main()
        self.assertEqual(code, 0)
        self.assertIn("no GPU here: there is no NVIDIA driver here", self.output.getvalue())
        self.assertIn(f"{1 + len(programs.BENCHES)} programs built, none run", self.output.getvalue())
        self.assertEqual(results["gpus"], [])
        self.assertEqual({test["result"] for test in results["tests"]}, {"not run"})
        self.assertEqual(len(results["tests"]), 5)
        self.assertFalse(self.log.exists())

    def test_each_test_has_its_result(self):
        self.nvidia_smi(CARD)
        code, results = self.main("--filter", "passes|fails|x/0")
        self.assertEqual(code, 1)
        self.assertEqual(results["summary"], "3 passed, 1 failed, 0 not run")
        self.assertEqual(results["driver"], "580.159.04")
        self.assertEqual(results["versions"]["torch"], "2.11.0")
        failed = next(test for test in results["tests"] if test["result"] == "failed")
        self.assertEqual(failed["name"], "Suite.fails")
        self.assertIn("a_test.cpp:7: Failure\nExpected: 1", failed["message"])
        self.assertEqual(self.log.read_text().split()[0], "--gtest_filter=CardAlone.passes", "alone comes first")

    def test_all_that_passes_is_success(self):
        self.nvidia_smi(CARD)
        self.assertEqual(self.main("--filter", "passes")[0], 0)

    def test_what_has_not_run_in_time_is_named(self):
        self.nvidia_smi(CARD)
        code, results = self.main("--limit", "1", "--jobs", "1", "--filter", "hangs|x/0")
        self.assertEqual(code, 1)
        self.assertEqual([(test["name"], test["result"]) for test in results["tests"]],
                         [("Suite.hangs", "not run"), ("Cases/Suite.x/0", "not run")])
        self.assertTrue(self.child_ends())

    def test_a_test_that_hangs_fails_and_leaves_nothing(self):
        self.programs()
        runner = run_tests.Runner(self.root / "gpu/bin/gpu_tests", self.environment, time.monotonic() + 60, test_limit=0.5)
        result = runner.run("Suite.hangs")
        self.assertEqual(result.result, "failed")
        self.assertIn("did not end within", result.message)
        self.assertTrue(self.child_ends())

    def test_what_is_missing_is_in_the_results_too(self):
        self.nvidia_smi(CARD)
        with contextlib.redirect_stderr(io.StringIO()) as said:
            code, results = self.main("--filter", "nothing")
        self.assertEqual(code, 2)
        self.assertIn("no test has a name", results["problem"])
        self.assertIn("./dev: no test has a name", said.getvalue())


class Lists(unittest.TestCase):
    def test_the_programs_are_those_that_are_built(self):
        line = next(line for line in (ROOT / "CMakeLists.txt").read_text().splitlines() if line.startswith("set(gpu_programs"))
        targets = line.removeprefix("set(gpu_programs").strip(" )").split()
        self.assertEqual(sorted(targets), sorted(["lockstep_cli", "lockstep_nccl", *programs.TESTS, *programs.BENCHES]))

    def test_the_command_says_so_where_nothing_is_there(self):
        command = [sys.executable, "-B", ROOT / "tools/gpu/pack.py", "--check", "--folder", "/none"]
        ended = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual((ended.returncode, ended.stderr), (2, "./dev: there are no programs in /none\n"))


if __name__ == "__main__":
    unittest.main()
