"""data_parallel: a training step on CPU replicas of one process, against one thread alone and LibTorch's own replicas.

"alone": one replica with one thread; the target for two replicas is 1.85x. "operators": one replica whose operators use
as many threads. "libtorch": replicate() and parallel_apply(), as LibTorch's data_parallel() calls them (that function
itself works on CUDA devices alone).
"""

from __future__ import annotations

import json
from collections.abc import Callable

from harness import Outcome, Row, Samples, Tools, interleave, run

STEPS = {"cnn-28": 60, "mlp-6M": 20, "resnet18-32": 12, "resnet18-224": 5}
ROUNDS, QUICK_ROUNDS = 6, 2
PEERS = ("alone", "operators", "libtorch")


def contender(tools: Tools, mode: str, workload: str, replicas: int) -> Callable[[], Samples]:
    def once() -> Samples:
        output = tools.scratch_file()
        program = tools.program("bench_data_parallel")
        arguments = ["--mode", mode, "--workload", workload, "--replicas", replicas, "--steps", STEPS[workload],
                     "--output", output]
        run([str(part) for part in (program, *arguments)])
        seconds = json.loads(output.read_text(encoding="utf-8"))["seconds"]
        return {workload: [value * 1e3 for value in seconds]}

    return once


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    rounds = tools.choose_rounds(ROUNDS, QUICK_ROUNDS)
    for workload in STEPS:
        for replicas in tools.ranks:
            found = interleave(
                {mode: contender(tools, mode, workload, replicas) for mode in ("parallel", *PEERS)},
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
