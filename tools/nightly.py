#!/usr/bin/env python3
"""./dev check --nightly: all that takes too long for each change, step by step, and a table of the steps at the end.

A step is a command. Its output is in build/nightly/STEP.log. A step that fails does not keep the others from running. The file
build/nightly/state.json remembers the steps that have passed: the next call with the same sources runs only the others. So an
interrupted call goes on where it stopped. With other sources all steps run. Exit code 0: all steps have passed.

usage: nightly.py --torch V --jobs N
"""
import argparse
import dataclasses
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

OLDEST_TORCH = "2.11.0"
INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclasses.dataclass
class Step:
    name: str
    command: list
    environment: dict = dataclasses.field(default_factory=dict)
    again: list = dataclasses.field(default_factory=list)  # options for a step that an earlier call has begun


def steps_of(torch, jobs):
    common = ["-j", str(jobs)]
    current = ["--torch", torch, *common]
    programs = f"build/release-torch{torch}/bin"

    def tests(name, program, suites, **variables):
        """Without the bound that a test has under CTest. The first step builds the program."""
        seconds_in_a_day = 86400
        return Step(name, [f"{programs}/{program}_tests", f"--gtest_filter={suites}", f"--fork-each={seconds_in_a_day}"],
                    {"OMP_WAIT_POLICY": "passive", **variables})

    return [
        Step("test", ["./dev", "test", *current]),
        Step("check", ["./dev", "check", *current]),
        Step(f"torch-{OLDEST_TORCH}", ["./dev", "test", "--component", "core", "--torch", OLDEST_TORCH, *common]),
        tests("grid", "parity", "*DdpOptionsParity*", LOCKSTEP_TEST_GRID="all"),
        tests("grid-views", "nn", "*DdpLazyViewsMulti*", LOCKSTEP_TEST_GRID="all"),
        tests("sweep", "sweep", "*", LOCKSTEP_TEST_SWEEP="all", LOCKSTEP_TEST_KILLS="1000"),
        tests("kills", "checkpoint", "KilledRanksFault*", LOCKSTEP_TEST_KILLS="1000"),
        tests("soak", "nn", "*DdpSoakMulti*", LOCKSTEP_TEST_SOAK="3000"),
        tests("model", "engine", "EngineModel*", LOCKSTEP_TEST_MODEL="all"),
        *(Step(f"conformance-{world}", ["./dev", "conformance", "--world", str(world), *current], again=["--resume"])
          for world in (2, 3, 4)),
        Step("asan-ubsan", ["./dev", "test", "--preset", "asan-ubsan", *current]),
        Step("tsan", ["./dev", "test", "--preset", "tsan", *current]),
        Step("aarch64", ["./dev", "test", "--preset", "aarch64", *common]),
        Step("fuzz", ["./dev", "fuzz", "--minutes", "10", *current]),
        Step("training-soak", ["./dev", "soak", "--kills", "300", *current]),
    ]


def hash_of_sources(root):
    """Of the names and contents of all files that git knows or would add."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=root, check=True,
                            stdout=subprocess.PIPE)
    total = hashlib.sha256()
    for name in sorted(set(listed.stdout.decode().split("\0")) - {""}):
        path = root / name
        if path.is_file():
            total.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


class State:
    """What each step has come to, in a file that is whole at any time."""

    def __init__(self, path, sources):
        self.path = path
        self.content = {"sources": sources, "steps": {}}
        if path.exists():
            earlier = json.loads(path.read_text())
            if earlier["sources"] == sources:
                self.content = earlier

    def of(self, step):
        found = self.content["steps"].get(step.name, {})
        return found if found.get("command") == step.command else {"verdict": "not run"}

    def set(self, step, **values):
        self.content["steps"][step.name] = {**values, "command": step.command}
        temporary = self.path.with_suffix(".new")
        temporary.write_text(json.dumps(self.content, indent=1) + "\n")
        os.replace(temporary, self.path)


def run(step, begun, root, log):
    """Runs the step's command with all its processes in one process group, which an interruption ends. Returns the exit code, 127 where
    there is no such program."""
    command = step.command + (step.again if begun else [])
    process = None
    with open(log, "wb") as output:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTIONS)  # until `process` says whom an interruption ends
        try:
            process = subprocess.Popen(command, cwd=root, env={**os.environ, **step.environment}, stdin=subprocess.DEVNULL,
                                       stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                                       preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, mask))
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            return process.wait()
        except OSError as error:  # a program that the first step could not build
            output.write(f"{error}\n".encode())
            return 127
        except BaseException:
            if process is not None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def last_line(log):
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()] if log.exists() else []
    return lines[-1][:80] if lines else ""


def table(steps, state, root, folder):
    rows = [("step", "verdict", "time", "log", "its last line")]
    for step in steps:
        log, found = folder / f"{step.name}.log", state.of(step)
        minutes = f"{found['seconds'] / 60:.1f} min" if "seconds" in found else ""
        rows.append((step.name, found["verdict"], minutes, str(log.relative_to(root)), last_line(log)))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        print("  ".join([*(text.ljust(width) for text, width in zip(row, widths)), row[4]]).rstrip())


def run_all(steps, root):
    """Runs the steps that have not passed with these sources, and prints the table. Returns the exit code."""
    folder = root / "build/nightly"
    folder.mkdir(parents=True, exist_ok=True)
    state = State(folder / "state.json", hash_of_sources(root))
    try:
        for step in steps:
            begun = state.of(step)["verdict"] == "interrupted"
            if state.of(step)["verdict"] == "passed":
                continue
            print(f"== {step.name}: {' '.join(step.command)}", file=sys.stderr, flush=True)
            state.set(step, verdict="interrupted")
            start = time.monotonic()
            code = run(step, begun, root, folder / f"{step.name}.log")
            state.set(step, verdict="passed" if code == 0 else f"failed ({code})", seconds=time.monotonic() - start)
    finally:
        table(steps, state, root, folder)
    return 0 if all(state.of(step)["verdict"] == "passed" for step in steps) else 1


def interrupted(number, _):
    sys.exit(128 + number)


def main():
    parser = argparse.ArgumentParser(prog="./dev check --nightly")
    parser.add_argument("--torch", required=True)
    parser.add_argument("--jobs", required=True, type=int)
    options = parser.parse_args()
    for number in INTERRUPTIONS:
        signal.signal(number, interrupted)
    return run_all(steps_of(options.torch, options.jobs), pathlib.Path(__file__).resolve().parents[1])


if __name__ == "__main__":
    sys.exit(main())
