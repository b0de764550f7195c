"""./dev test --gpu: runs the tests for GPUs, each in a process of its own, and says of each what came of it."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import surroundings
import programs
import ready
from surroundings import SetupError

TEST_LIMIT = 150  # seconds of one test
ALONE = re.compile(r"Alone[./]")  # suites that other work on the card would disturb
MESSAGE_LINES = 25


@dataclass
class Result:
    name: str
    result: str  # passed, failed, not run
    seconds: float = 0.0
    message: str = ""


def list_tests(program: Path, environment: Mapping[str, str]) -> list[str]:
    ended = subprocess.run([program, "--gtest_list_tests"], capture_output=True, text=True, check=False, timeout=120,
                           env={**os.environ, **environment})
    if ended.returncode != 0:
        raise SetupError(f"{program} does not start: {(ended.stderr or ended.stdout).strip()[-2000:]}")
    names, suite = [], ""
    for line in ended.stdout.splitlines():
        text = line.partition("#")[0].rstrip()
        if text.startswith("  "):
            names.append(suite + text.strip())
        elif text.endswith("."):
            suite = text
    return names


def shortened(output: str) -> str:
    """What GoogleTest says of failures, else the end."""
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith(("[ RUN", "[----", "[====", "Note:"))]
    failures = [number for number, line in enumerate(lines) if ": Failure" in line]
    chosen = lines[failures[0]:failures[0] + MESSAGE_LINES] if failures else lines[-MESSAGE_LINES:]
    return "\n".join(chosen)


class Runner:
    """Runs tests until `end` (of time.monotonic). What is under way then is stopped, and has not run."""

    def __init__(self, program: Path, environment: Mapping[str, str], end: float, test_limit: float = TEST_LIMIT) -> None:
        self.program, self.environment, self.end, self.test_limit = program, environment, end, test_limit
        self.processes: set[subprocess.Popen] = set()
        self.lock = threading.RLock()  # stop() may come as a signal, in the thread that holds it
        self.stopped = False

    def stop(self) -> None:
        """Ends everything that runs, with all its processes."""
        with self.lock:
            self.stopped = True
            for process in self.processes:
                os.killpg(process.pid, signal.SIGKILL)

    def _start(self, name: str, output) -> subprocess.Popen | None:
        with self.lock:
            if self.stopped:
                return None
            process = subprocess.Popen(
                [self.program, f"--gtest_filter={name}", "--gtest_color=no"], stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, env={**os.environ, **self.environment}, start_new_session=True)
            self.processes.add(process)
            return process

    def _finish(self, process: subprocess.Popen, limit: float) -> bool:
        """Whether it ended by itself. Its descendants are gone afterwards."""
        try:
            process.wait(timeout=max(limit, 0))
            return True
        except subprocess.TimeoutExpired:
            return False
        finally:
            with self.lock:
                self.processes.discard(process)
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            process.wait()

    def run(self, name: str) -> Result:
        left = self.end - time.monotonic()
        if left <= 0 or self.stopped:
            return Result(name, "not run", message="the time was used up before")
        start = time.monotonic()
        with tempfile.TemporaryFile() as output:
            process = self._start(name, output)
            if process is None:
                return Result(name, "not run", message="stopped before")
            ended = self._finish(process, min(left, self.test_limit))
            seconds = round(time.monotonic() - start, 2)
            output.seek(0)
            text = output.read().decode(errors="replace")
        if not ended and left <= self.test_limit:
            return Result(name, "not run", seconds, "the time was used up while it ran")
        if not ended:
            return Result(name, "failed", seconds, f"did not end within {self.test_limit:.0f} s\n{shortened(text)}")
        if process.returncode == 0 and re.search(r"^\[  PASSED  \] 1 test", text, re.MULTILINE):
            return Result(name, "passed", seconds)
        if self.stopped:
            return Result(name, "not run", seconds, "stopped while it ran")
        return Result(name, "failed", seconds, f"ended with {process.returncode}\n{shortened(text)}")


def show(result: Result) -> None:
    print(f"{result.result:8} {result.seconds:7.1f} s  {result.name}", flush=True)
    if result.result == "failed":
        print("\n".join("    " + line for line in result.message.splitlines()), flush=True)


def run_all(runner: Runner, names: list[str], jobs: int) -> list[Result]:
    """Those that need the card for themselves come first."""
    results: dict[str, Result] = {}

    def one(name: str) -> None:
        results[name] = runner.run(name)
        show(results[name])

    for name in names:
        if ALONE.search(name):
            one(name)
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, [name for name in names if name not in results]))
    return [results[name] for name in names]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev test --gpu", description=__doc__)
    ready.add_arguments(parser)
    parser.add_argument("--filter", default="", metavar="REGEX", help="of the tests' names")
    parser.add_argument("--jobs", type=int, default=max(1, min(4, len(os.sched_getaffinity(0)) // 3)), metavar="N",
                        help="tests at once")
    return parser.parse_args()


def summary(results: list[Result]) -> str:
    count = {kind: sum(result.result == kind for result in results) for kind in ("passed", "failed", "not run")}
    return ", ".join(f"{number} {kind}" for kind, number in count.items())


def main() -> int:
    arguments = parse_arguments()
    end = time.monotonic() + arguments.limit
    try:
        here = ready.make_ready(arguments, programs.TESTS)
        environment = here.programs.environment(here.torch)
        program = here.programs.program(programs.TESTS[0])
        names = [name for name in list_tests(program, environment) if re.search(arguments.filter, name)]
        if not names:
            raise SetupError(f"no test has a name that --filter '{arguments.filter}' finds")
    except SetupError as error:
        ready.write_results(arguments.json, {"kind": "test", "problem": str(error)})
        return surroundings.complain(error)
    if not here.cards.gpus:
        results = [Result(name, "not run", message="no GPU here") for name in names]
        print(ready.no_gpu_text(here))
    else:
        gpu = here.cards.gpus[0]
        print(f"{len(here.cards.gpus)} x {gpu.name}, driver {gpu.driver}, LibTorch {here.torch.version}", flush=True)
        runner = Runner(program, environment, end)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: runner.stop())
        results = run_all(runner, names, arguments.jobs)
    ready.write_results(arguments.json, {"kind": "test", **here.head(), "summary": summary(results),
                                         "tests": [asdict(result) for result in results]})
    print(summary(results))
    return 1 if here.cards.gpus and any(result.result != "passed" for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
