"""zero: Adam sharded over the ranks under DDP: memory of its state per rank, against theory (two values per parameter,
divided by the ranks) and PyTorch's ZeroRedundancyOptimizer; time of a step, against the plain Adam and PyTorch's."""

from __future__ import annotations

from collections.abc import Callable

import workloads
from harness import Outcome, Row, Samples, Tools, interleave

STEPS = {"mlp-6M": 40, "resnet18-32": 20}
ROUNDS, QUICK_ROUNDS = 6, 2
MIB = 1 << 20
PYTORCH = ("sharded-adam", "--implementation", "fused", "--static-graph")  # its fastest Adam on the CPU


def contender(tools: Tools, command, workload: str, ranks: int, *optimizer: str) -> Callable[[], Samples]:
    def once() -> Samples:
        reports = workloads.ddp_reports(tools, command, workload, ranks, STEPS[workload], ["--optimizer", *optimizer])
        return {
            "step": [seconds * 1e3 for seconds in workloads.slower_rank(reports)],
            "state": [report["state_bytes"] / MIB for report in reports],
            "theory": [2 * reports[0]["gradient_bytes"] / ranks / MIB],
        }

    return once


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    for workload in STEPS:
        for ranks in tools.ranks:
            found = interleave(
                {
                    "ours": contender(tools, workloads.our_command, workload, ranks, "sharded-adam"),
                    "plain": contender(tools, workloads.our_command, workload, ranks, "adam"),
                    "pytorch": contender(tools, workloads.peer_command, workload, ranks, *PYTORCH),
                },
                tools.choose_rounds(ROUNDS, QUICK_ROUNDS),
                outcome,
                f"zero {workload}, {ranks} ranks",
            )

            def compare(case: str, key: str, peer: str, peer_key: str, peer_name: str, unit: str) -> None:
                mine, theirs = found.get("ours", {}).get(key), found.get(peer, {}).get(peer_key)
                if mine and theirs:
                    outcome.rows.append(Row("zero", case, None, ranks, mine, theirs, peer_name, unit))

            compare(f"{workload}, state", "state", "ours", "theory", "theory", "MiB")
            compare(f"{workload}, state", "state", "pytorch", "state", "pytorch", "MiB")
            compare(f"{workload}, step", "step", "plain", "step", "plain Adam", "ms")
            compare(f"{workload}, step", "step", "pytorch", "step", "pytorch", "ms")
    return outcome
