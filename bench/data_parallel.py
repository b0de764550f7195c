"""data_parallel: a training step on CPU replicas of one process, against one thread alone and LibTorch's own replicas.

"alone": one replica with one thread; the target for two replicas is 1.85x. "operators": one replica whose operators use
as many threads. "libtorch": replicate() and parallel_apply(), as LibTorch's data_parallel() calls them (that function
itself works on CUDA devices alone). "limit": as many processes at once, each with its part of the batch, which share
nothing: a part takes more than its share of the time of the whole, as some work does not depend on the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import workloads
from harness import Outcome, Row, Samples, Tools, interleave, run

STEPS = {"cnn-28": 60, "mlp-6M": 20, "resnet18-32": 12, "resnet18-224": 5}
ROUNDS, QUICK_ROUNDS = 6, 2
PEERS = ("alone", "limit", "operators", "libtorch")
# DataParallel lets the heaps of threads keep what is freed, by itself (data_parallel.cpp). So all get that.
KEPT = {"MALLOC_TOP_PAD_": "67108864"}


def contender(tools: Tools, mode: str, workload: str, replicas: int) -> Callable[[], Samples]:
    def once() -> Samples:
        output = tools.scratch_file()
        program = tools.program("bench_data_parallel")
        arguments = ["--mode", mode, "--workload", workload, "--replicas", replicas, "--steps", STEPS[workload],
                     "--output", output]
        if mode == "part":
            run(tools.lockstep_run(replicas, program, *arguments), KEPT)
            files = [Path(f"{output}.{rank}") for rank in range(replicas)]
        else:
            run([str(part) for part in (program, *arguments)], KEPT)
            files = [output]
        seconds = workloads.slower_rank([workloads.read(file) for file in files])
        return {workload: [value * 1e3 for value in seconds]}

    return once


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    rounds = tools.choose_rounds(ROUNDS, QUICK_ROUNDS)
    for workload in STEPS:
        for replicas in tools.ranks:
            found = interleave(
                {
                    name: contender(tools, "part" if name == "limit" else name, workload, replicas)
                    for name in ("parallel", *PEERS)
                },
                rounds,
                outcome,
                f"data_parallel {workload}, {replicas} replicas",
            )
            ours = found.get("parallel", {}).get(workload)
            for peer in PEERS:
                theirs = found.get(peer, {}).get(workload)
                if ours and theirs:
                    outcome.rows.append(Row("data_parallel", workload, None, replicas, ours, theirs, peer, "ms"))
    return outcome
