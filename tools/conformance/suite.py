"""PyTorch's own DistributedTest with one backend at one world size; one line of JSON per test.

run.py runs it. The tests are those of the installed torch, unchanged. They use Gloo or Lockstep's engine. For Lockstep,
`ProcessGroupGloo` in torch.distributed.distributed_c10d is replaced by a factory, so the tests see a backend named gloo
and skip no test that they would run with Gloo.

torch is imported once. Each test, and each of its ranks, is a fork of this process, which runs no test itself. So a test
takes milliseconds, not the seconds that each rank needs to import torch.
"""
import argparse
import contextlib
import io
import json
import os
import re
import select
import signal
import sys
import tempfile
import time
import traceback
import unittest


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", choices=["gloo", "lockstep"], required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--results", required=True, help="file that gets a line per test; tests already in it do not run")
    parser.add_argument("--filter", default="", help="regular expression for names of tests")
    parser.add_argument("--jobs", type=int, default=1, help="tests at once")
    parser.add_argument("--limit", type=float, default=120, help="seconds that one test may take")
    return parser.parse_args()


def put_lockstep_in_gloos_place():
    import torch.distributed.distributed_c10d as c10d
    from lockstep import _engine

    class Kind(type):
        def __instancecheck__(cls, value):
            return isinstance(value, c10d.C10DBackend if hasattr(c10d, "C10DBackend") else object) and (
                value.name() == "lockstep"
            )

    class ProcessGroupGloo(metaclass=Kind):
        def __new__(cls, store, rank, size, timeout=c10d.default_pg_timeout, **_):
            return _engine.make_backend(store, rank, size, timeout, profiled_as="gloo")

    c10d.ProcessGroupGloo = ProcessGroupGloo


def load_tests(engine, world):
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(world), TEMP_DIR=tempfile.gettempdir(), OMP_NUM_THREADS="1")
    # Gloo resolves the ranks' addresses on the loopback interface only.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.pop("INIT_METHOD", None)
    import torch.multiprocessing
    from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

    if engine == "lockstep":
        put_lockstep_in_gloos_place()

    class TestDistributed(TestDistBackend, DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    # The name by which a rank could import it.
    TestDistributed.__qualname__ = "TestDistributed"
    return TestDistributed


def run_one(test_class, name):
    """Runs one test in the current process; returns its outcome and the reason."""
    result = unittest.TestResult()
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        unittest.TestSuite([test_class(name)]).run(result)
    for outcome, entries in (("failed", result.errors + result.failures), ("skipped", result.skipped)):
        if entries:
            return outcome, entries[0][1]
    return "passed", ""


def start(test_class, name):
    """Forks a process for the test; returns its pid and the read end of a pipe for the result."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    os.setsid()
    os.close(read)
    log = os.open(os.devnull, os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        outcome, reason = run_one(test_class, name)
    except BaseException:
        outcome, reason = "failed", traceback.format_exc()
    with os.fdopen(write, "w") as pipe:
        json.dump({"outcome": outcome, "reason": reason[-6000:]}, pipe)
    os._exit(0)


class Runner:
    def __init__(self, test_class, names, options):
        self.test_class, self.waiting, self.options = test_class, list(names), options
        self.running = {}  # read end -> (name, pid, started, bytes so far)
        self.total, self.done = len(names), 0

    def run(self):
        with open(self.options.results, "a") as self.results:
            while self.waiting or self.running:
                while self.waiting and len(self.running) < self.options.jobs:
                    name = self.waiting.pop(0)
                    pid, read = start(self.test_class, name)
                    self.running[read] = [name, pid, time.monotonic(), b""]
                for read in select.select(list(self.running), [], [], 0.2)[0]:
                    data = os.read(read, 65536)
                    if data:
                        self.running[read][3] += data
                    else:
                        self.finish(read)
                for read, (_, _, started, _) in list(self.running.items()):
                    if time.monotonic() - started > self.options.limit:
                        self.finish(read)

    def finish(self, read):
        name, pid, started, data = self.running.pop(read)
        os.close(read)
        # Kills the whole session, also ranks that hang.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        seconds = time.monotonic() - started
        try:
            result = json.loads(data)
        except ValueError:
            result = {"outcome": "failed", "reason": f"no result after {seconds:.0f} s"}
        json.dump({"test": name, "seconds": round(seconds, 2), **result}, self.results)
        self.results.write("\n")
        self.results.flush()
        self.done += 1
        print(f"[{self.options.engine}, world {self.options.world}] {self.done}/{self.total} {name}: {result['outcome']}", file=sys.stderr)


def recorded(path):
    if not os.path.exists(path):
        return set()
    with open(path) as file:
        return {json.loads(line)["test"] for line in file}


def main():
    options = parse()
    test_class = load_tests(options.engine, options.world)
    have = recorded(options.results)
    names = unittest.TestLoader().getTestCaseNames(test_class)
    names = [name for name in names if re.search(options.filter, name) and name not in have]
    Runner(test_class, names, options).run()


if __name__ == "__main__":
    main()
