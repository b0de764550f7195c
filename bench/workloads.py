"""Runs the step programs (ours in C++, PyTorch's in Python): one alone, several at once, or under DDP."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness import ENVIRONMENT, HERE, BenchError, Tools, pinned

NAMES = ["cnn-28", "mlp-6M", "resnet18-32", "resnet18-224"]
PEER = HERE / "peers" / "ddp_step.py"


def options(mode: str, workload: str, steps: int, output: Path) -> list[object]:
    return ["--mode", mode, "--workload", workload, "--steps", steps, "--output", output]


def our_command(tools: Tools, mode: str, ranks: int, *arguments: object) -> list[str]:
    program = tools.program("bench_ddp_step")
    if mode == "ddp":
        return tools.lockstep_run(ranks, program, *arguments)
    return [str(part) for part in (program, *arguments)]


def peer_command(tools: Tools, mode: str, ranks: int, *arguments: object) -> list[str]:
    if mode == "ddp":
        return tools.torchrun_pinned(ranks, PEER, *arguments)
    return [str(part) for part in (tools.python, PEER, *arguments)]


def free_peer_command(tools: Tools, mode: str, ranks: int, *arguments: object) -> list[str]:
    """Without pinning."""
    return tools.torchrun_free(ranks, PEER, *arguments) if mode == "ddp" else peer_command(tools, mode, ranks, *arguments)


def each_command(tools: Tools, command, ranks: int, workload: str, steps: int, files: list[Path], *more: object):
    """The commands of `ranks` independent processes."""
    return [
        pinned(command(tools, "alone", 1, *options("alone", workload, steps, file), *more), rank, ranks)
        for rank, file in enumerate(files)
    ]


@contextmanager
def started(
    commands: list[list[str]], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[list[subprocess.Popen]]:
    """Starts the processes, each in its own process group, and ends them at the end of the block."""
    processes = []
    try:
        with log.open("w", encoding="utf-8") as sink:
            for command in commands:
                processes.append(
                    subprocess.Popen(
                        command,
                        env={**os.environ, **ENVIRONMENT, **(environment or {})},
                        stdin=subprocess.DEVNULL,
                        stdout=sink,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def wait_for(files: list[Path], processes: list[subprocess.Popen], log: Path, timeout: float) -> None:
    """Waits until every file exists. A process that fails is an error."""
    end = time.monotonic() + timeout
    while not all(file.exists() for file in files):
        bad = [process for process in processes if process.poll() not in (None, 0)]
        if bad or time.monotonic() > end:
            tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-12:])
            what = f"ended with {bad[0].returncode}" if bad else f"did not finish within {timeout:.0f} s"
            raise BenchError(f"{' '.join(map(str, processes[0].args))}\n{what}:\n{tail}")
        time.sleep(0.02)


def read(file: Path) -> dict:
    return json.loads(file.read_text(encoding="utf-8"))


def ddp_reports(
    tools: Tools, command, workload: str, ranks: int, steps: int, extra: list[object],
    environment: Mapping[str, str] | None = None,
) -> list[dict]:
    """The reports of all ranks that train under DDP; `extra` are further options of the program."""
    output, log = tools.scratch_file(), tools.scratch_file(".log")
    files = [Path(f"{output}.{rank}") for rank in range(ranks)]
    arguments = [*options("ddp", workload, steps, output), *extra]
    with started([command(tools, "ddp", ranks, *arguments)], log, environment) as processes:
        wait_for(files, processes, log, timeout=900)
        processes[0].wait(timeout=120)
    return [read(file) for file in files]


def slower_rank(reports: list[dict]) -> list[float]:
    """Seconds of the steps of the rank with the larger median."""
    return max((report["seconds"] for report in reports), key=statistics.median)


def step_seconds(
    tools: Tools, command, mode: str, workload: str, ranks: int, steps: int, more: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
) -> list[float]:
    """Seconds of the slower rank's steps (that with the larger median), for all contenders alike. `together`: `ranks`
    independent processes, which all run until all have measured. `more`: options of the program."""
    output, log, hold = tools.scratch_file(), tools.scratch_file(".log"), tools.scratch / f"hold{time.monotonic_ns()}"
    if mode == "together":
        outputs = [tools.scratch_file() for _ in range(ranks)]
        commands = each_command(tools, command, ranks, workload, steps, outputs, "--busy", hold, *more)
        files = [Path(f"{file}.0") for file in outputs]
    else:
        commands = [command(tools, mode, ranks, *options(mode, workload, steps, output), *more)]
        files = [Path(f"{output}.{rank}") for rank in range(ranks)]
    with started(commands, log, environment) as processes:
        wait_for(files, processes, log, timeout=900)
        hold.touch()
        for process in processes:
            process.wait(timeout=120)
    return slower_rank([read(file) for file in files])


def proportional_memory(pid: int) -> int:
    """PSS in bytes of what has no file behind it: private pages count fully, a shared page is divided by the number of
    its users. Pages of program files are left out: their share of a rank depends on who else has the file open."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    kibibytes = [int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:"))]
    if len(kibibytes) != 2:
        raise BenchError(f"/proc/{pid}/smaps_rollup has no lines Pss_Anon and Pss_Shmem")
    return sum(kibibytes) * 1024


@dataclass
class Footprint:
    """A rank's footprint after some steps, while all ranks live. Means over the ranks."""

    memory: float  # bytes, see proportional_memory
    page_tables: float  # bytes
    faults: float  # minor faults since its start
    gradient_bytes: int


def page_tables(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmPTE:"):
            return int(line.split()[1]) * 1024
    raise BenchError(f"/proc/{pid}/status has no line VmPTE")


def minor_faults(pid: int) -> int:
    # "pid (any name) state ppid pgrp session tty tpgid flags minflt ..."
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


# 2 MiB pages would round every part of a footprint.
SMALL_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}


def footprint(
    tools: Tools, command, mode: str, workload: str, ranks: int, steps: int, more: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
) -> Footprint:
    log, hold = tools.scratch_file(".log"), tools.scratch / f"hold{time.monotonic_ns()}"
    if mode == "together":
        outputs = [tools.scratch_file() for _ in range(ranks)]
        commands = each_command(tools, command, ranks, workload, steps, outputs, "--hold", hold, *more)
        files = [Path(f"{file}.0") for file in outputs]
    else:
        output = tools.scratch_file()
        commands = [command(tools, mode, ranks, *options(mode, workload, steps, output), "--hold", hold, *more)]
        files = [Path(f"{output}.{rank}") for rank in range(ranks)]
    with started(commands, log, {**SMALL_PAGES, **(environment or {})}) as processes:
        wait_for(files, processes, log, timeout=300)
        reports = [read(file) for file in files]
        pids = [report["pid"] for report in reports]
        totals = [sum(measure(pid) for pid in pids) for measure in (proportional_memory, page_tables, minor_faults)]
        hold.touch()
        for process in processes:
            process.wait(timeout=120)
    return Footprint(*(total / ranks for total in totals), reports[0]["gradient_bytes"])
