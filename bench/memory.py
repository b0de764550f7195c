"""memory: a rank's gradients and the memory that DDP adds to them, against an allowance of 4 MiB and PyTorch's DDP; and
the page tables and page faults that it adds, against PyTorch's.

The gradients are in both sides of a difference: DDP's are in buckets that stay, so the program without DDP keeps its
own too (it sets them to zero). Rows "over freed gradients" compare with a program that frees its gradients before each
forward pass. There, convolutions use that memory for their scratch, which they cannot with buckets that stay.

A ratio of two differences says nothing when one is close to zero. So memory is that of the gradients and what DDP adds,
and page tables and faults are at least LEAST_TABLES and LEAST_FAULTS, below which they differ by chance."""

from __future__ import annotations

from collections.abc import Mapping

import workloads
from harness import Contender, Outcome, Row, Samples, Tools, best_way, interleave

WORKLOADS = ["cnn-28", "mlp-6M", "resnet18-32"]
STEPS, ROUNDS, QUICK_ROUNDS = 10, 6, 1
ALLOWED_MIB = 4.0
MIB = 1 << 20
LEAST_TABLES, LEAST_FAULTS = 64.0, 500.0  # KiB and faults
# `lockstep run` sets the thresholds for its ranks. A peer may have less memory in use when it gives freed memory back.
PEER_WAYS = {
    "keeps freed memory": {},
    "gives freed memory back": {"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"},
}


def contender(
    tools: Tools, command, workload: str, ranks: int, environment: Mapping[str, str] | None = None
) -> Contender:
    def once() -> Samples:
        def footprint(mode: str, *more: str) -> workloads.Footprint:
            return workloads.footprint(tools, command, mode, workload, ranks, STEPS, more, environment)

        keeping, freeing, ddp = footprint("together", "--keep-gradients"), footprint("together"), footprint("ddp")
        gradients = ddp.gradient_bytes
        return {
            "memory": [(gradients + ddp.memory - keeping.memory) / MIB],
            "over freed": [(gradients + ddp.memory - freeing.memory) / MIB],
            "page tables": [max((ddp.page_tables - keeping.page_tables) / 1024, LEAST_TABLES)],
            "faults": [max(ddp.faults - keeping.faults, LEAST_FAULTS)],
            "allowed": [gradients / MIB + ALLOWED_MIB],
            "gradients": [gradients],
        }

    return once


def measure_workload(tools: Tools, workload: str, ranks: int, rounds: int, outcome: Outcome) -> None:
    what = f"memory {workload}, {ranks} ranks"
    ways = {name: contender(tools, workloads.peer_command, workload, ranks, way) for name, way in PEER_WAYS.items()}
    contenders = {"ours": contender(tools, workloads.our_command, workload, ranks)}
    if chosen := best_way(ways, outcome, f"{what}, ways of pytorch", passes=1):
        outcome.notes.append(f"{what}: pytorch {chosen['memory']}")
        contenders["pytorch"] = ways[chosen["memory"]]
    found = interleave(contenders, rounds, outcome, what)
    if "ours" not in found:
        return
    ours = found["ours"]
    size = int(ours["gradients"][0])

    def compare(case: str, key: str, theirs: list[float], peer: str, unit: str) -> None:
        outcome.rows.append(Row("memory", case, size, ranks, ours[key], theirs, peer, unit))

    compare(workload, "memory", ours["allowed"], "allowance", "MiB")
    if pytorch := found.get("pytorch"):
        compare(workload, "memory", pytorch["memory"], "pytorch", "MiB")
        compare(f"{workload}, over freed gradients", "over freed", pytorch["over freed"], "pytorch", "MiB")
        compare(f"{workload}, page tables added", "page tables", pytorch["page tables"], "pytorch", "KiB")
        compare(f"{workload}, page faults added", "faults", pytorch["faults"], "pytorch", "faults")


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    rounds = tools.choose_rounds(ROUNDS, QUICK_ROUNDS)
    for workload in WORKLOADS:
        for ranks in tools.ranks:
            measure_workload(tools, workload, ranks, rounds, outcome)
    return outcome
