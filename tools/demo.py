"""./dev demo: trains examples/fashion_mnist with 1 process, then with 2, and prints time, speed-up, efficiency and accuracy.

Every process has one thread, so the table compares numbers of processes, not of threads. The batch size per process is
always the same: with n processes the global batch is n times as large, and an epoch has 1/n of the steps.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

PROGRAM = "fashion_mnist"


@dataclass
class Result:
    processes: int
    seconds_per_epoch: float
    test_accuracy: float


def train(build: Path, processes: int, epochs: int, folder: Path) -> Result:
    """Trains once with `lockstep run`. The trainer writes a line of JSON for each epoch into its report."""
    program, report = build / "bin" / PROGRAM, folder / f"report{processes}.jsonl"
    launcher = [build / "bin" / "lockstep", "run", "--standalone", "--nproc-per-node", processes]
    options = ["--epochs", epochs, "--report", report, "--checkpoint-dir", folder / f"checkpoints{processes}"]
    command = [str(part) for part in [*launcher, program, *options]]
    print(f"\n== {processes} process{'es' if processes > 1 else ''}: {' '.join(command)}", flush=True)
    with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True) as process:
        try:
            status = process.wait()
        except BaseException:
            # The launcher then ends its workers.
            process.send_signal(signal.SIGTERM)
            process.wait()
            raise
    if status != 0:
        raise SystemExit(f"./dev demo: the training with {processes} processes ended with {status} (its reason is above)")
    lines = [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]
    done = [line for line in lines if "epoch" in line and "seconds" in line]
    if not done:
        raise SystemExit(f"./dev demo: {report} has no line with an epoch's seconds")
    return Result(processes, statistics.median(line["seconds"] for line in done), done[-1]["test_accuracy"])


def table(results: list[Result]) -> str:
    """Speed-up and efficiency against the first row."""
    first = results[0]
    lines = ["processes  seconds per epoch  speed-up  efficiency  test accuracy"]
    for result in results:
        speed_up = first.seconds_per_epoch / result.seconds_per_epoch
        efficiency = speed_up * first.processes / result.processes
        lines.append(
            f"{result.processes:9d}  {result.seconds_per_epoch:17.2f}  {speed_up:7.2f}x  {efficiency:10.1%}"
            f"  {result.test_accuracy:13.2%}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev demo", description=__doc__)
    parser.add_argument("--build", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--procs", default="1,2", help="numbers of processes, for example 1,2,4")
    options = parser.parse_args()
    try:
        processes = [int(number) for number in options.procs.split(",")]
    except ValueError:
        parser.error(f"--procs: expected numbers such as 1,2, found '{options.procs}'")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # an exception, so that clean-up runs
    with tempfile.TemporaryDirectory(prefix="lockstep-demo-") as folder:
        results = [train(options.build, number, options.epochs, Path(folder)) for number in processes]
    print("\nFashion-MNIST, CNN, SGD; one thread per process, same batch size per process; median of the epochs\n")
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
