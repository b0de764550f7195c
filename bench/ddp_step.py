"""ddp_step: time of a training step under DDP, against independent processes (the machine's limit) and PyTorch's DDP."""

from __future__ import annotations

from collections.abc import Callable

import workloads
from harness import Outcome, Row, Samples, Tools, interleave

STEPS = {"cnn-28": 150, "mlp-6M": 60, "resnet18-32": 20, "resnet18-224": 4}
ROUNDS, QUICK_ROUNDS = 5, 1


def contender(tools: Tools, command, mode: str, workload: str, ranks: int) -> Callable[[], Samples]:
    def once() -> Samples:
        seconds = workloads.step_seconds(tools, command, mode, workload, ranks, STEPS[workload])
        return {workload: [value * 1e3 for value in seconds]}

    return once


def compare(outcome: Outcome, found: dict[str, Samples], workload: str, ranks: int, ours: str, peer: str) -> None:
    mine, theirs = found.get(ours, {}).get(workload), found.get(peer, {}).get(workload)
    if mine and theirs:
        # Independent processes and the bare model are the machine's limit for DDP.
        name = "pytorch" if peer == "pytorch" else "limit"
        outcome.rows.append(Row("ddp_step", workload, None, ranks, mine, theirs, name, "ms"))


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    rounds = QUICK_ROUNDS if tools.quick else ROUNDS
    ours, pytorch = workloads.our_command, workloads.peer_command
    for workload in workloads.NAMES:
        found = interleave(
            {
                "alone": contender(tools, ours, "alone", workload, 1),
                "ours": contender(tools, ours, "ddp", workload, 1),
            },
            rounds,
            outcome,
            f"ddp_step {workload}, world 1",
        )
        compare(outcome, found, workload, 1, "ours", "alone")
        for ranks in tools.ranks:
            found = interleave(
                {
                    "together": contender(tools, ours, "together", workload, ranks),
                    "ours": contender(tools, ours, "ddp", workload, ranks),
                    "pytorch": contender(tools, pytorch, "ddp", workload, ranks),
                },
                rounds,
                outcome,
                f"ddp_step {workload}, {ranks} ranks",
            )
            compare(outcome, found, workload, ranks, "ours", "together")
            compare(outcome, found, workload, ranks, "ours", "pytorch")
    return outcome
