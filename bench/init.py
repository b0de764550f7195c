"""init: 64 ranks of a torch-free program on one machine, from launch to the end of the first all-reduce, against Open MPI."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import peer_programs
from harness import Outcome, Row, Samples, Tools, interleave, run

RANKS = 64
ROUNDS, QUICK_ROUNDS = 5, 2
TIME, MEMORY = "launch to first all_reduce", "memory of a rank"


def timed(tools: Tools, command: Callable[[object], list[str]]) -> Callable[[], Samples]:
    def once() -> Samples:
        output = tools.scratch_file()
        line = command(output)
        start = time.time()
        run(line)
        report = json.loads(output.read_text(encoding="utf-8"))
        return {TIME: [(report["done_at"] - start) * 1e3], MEMORY: [report["bytes_per_rank"] / (1 << 20)]}

    return once


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    contenders = {
        "ours": timed(tools, lambda output: tools.lockstep_run(RANKS, tools.program("bench_init_core"), output)),
        "openmpi": timed(tools, lambda output: peer_programs.openmpi(tools, RANKS, output, source="init_mpi")[0]),
    }
    found = interleave(contenders, QUICK_ROUNDS if tools.quick else ROUNDS, outcome, "init")
    if len(found) == 2:
        for case, unit in ((TIME, "ms"), (MEMORY, "MiB")):
            outcome.rows.append(Row("init", case, None, RANKS, found["ours"][case], found["openmpi"][case], "openmpi", unit))
    return outcome
