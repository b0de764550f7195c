"""init: 64 ranks of a torch-free program on one machine, from launch to the end of the first all-reduce, against MPIs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import peer_programs
from by_size import NO_WAY
from harness import Outcome, Row, Samples, Tools, interleave, run

RANKS = 64
PEERS = ["openmpi", "openmpi5", "mpich", "intelmpi"]
ROUNDS, QUICK_ROUNDS = 10, 3
TIME, MEMORY = "launch to first all_reduce", "memory of a rank"


def timed(tools: Tools, command: Callable[[object], peer_programs.Command]) -> Callable[[], Samples]:
    def once() -> Samples:
        output = tools.scratch_file()
        line, environment = command(output)
        start = time.time()
        run(line, environment, timeout=120)
        report = json.loads(output.read_text(encoding="utf-8"))
        return {TIME: [(report["done_at"] - start) * 1e3], MEMORY: [report["bytes_per_rank"] / (1 << 20)]}

    return once


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    program = tools.program("bench_init_core")
    contenders = {"ours": timed(tools, lambda output: (tools.lockstep_run(RANKS, program, output), {}))}
    for peer in PEERS:
        contenders[peer] = timed(
            tools, lambda output, peer=peer: peer_programs.mpi_command(tools, peer, RANKS, NO_WAY, "init_mpi", output)
        )
    found = interleave(contenders, tools.choose_rounds(ROUNDS, QUICK_ROUNDS), outcome, "init")
    for case, unit in ((TIME, "ms"), (MEMORY, "MiB")):
        for peer in PEERS:
            if "ours" in found and peer in found:
                outcome.rows.append(Row("init", case, None, RANKS, found["ours"][case], found[peer][case], peer, unit))
    return outcome
