"""memory: the memory that DDP adds to a rank beyond the gradients, against its limit of 4 MiB and PyTorch's DDP; and the
page tables and page faults that it adds, against PyTorch's.

The gradients are in both sides of a difference: DDP's are in buckets that stay, so the program without DDP keeps its
own too (it sets them to zero). Rows "over freed gradients" compare with a program that frees its gradients before each
forward pass. There, convolutions use that memory for their scratch, which they cannot with buckets that stay."""

from __future__ import annotations

from dataclasses import dataclass

import workloads
from harness import BenchError, Outcome, Row, Tools

WORKLOADS = ["cnn-28", "mlp-6M", "resnet18-32"]
STEPS, ROUNDS, QUICK_ROUNDS = 10, 3, 1
ALLOWED_MIB = 4.0
MIB = 1 << 20
PAGE = 4096


@dataclass
class Added:
    """What DDP adds to a rank's footprint. At least one page and one fault, so that ratios exist."""

    memory: float  # bytes
    over_freed: float  # bytes, where the program without DDP frees its gradients
    page_tables: float
    faults: float
    gradient_bytes: int


def added(tools: Tools, command, workload: str, ranks: int) -> Added:
    keeping = workloads.footprint(tools, command, "together", workload, ranks, STEPS, ("--keep-gradients",))
    freeing = workloads.footprint(tools, command, "together", workload, ranks, STEPS)
    with_ddp = workloads.footprint(tools, command, "ddp", workload, ranks, STEPS)
    return Added(
        max(with_ddp.memory - keeping.memory, PAGE),
        max(with_ddp.memory - freeing.memory, PAGE),
        max(with_ddp.page_tables - keeping.page_tables, PAGE),
        max(with_ddp.faults - keeping.faults, 1),
        with_ddp.gradient_bytes,
    )


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    for workload in WORKLOADS:
        for ranks in tools.ranks:
            ours, pytorch = [], []
            try:
                for _ in range(tools.choose_rounds(ROUNDS, QUICK_ROUNDS)):
                    ours.append(added(tools, workloads.our_command, workload, ranks))
                    pytorch.append(added(tools, workloads.peer_command, workload, ranks))
            except BenchError as error:
                outcome.missing.append(f"memory {workload}, {ranks} ranks: {error}")
                continue
            gradient_bytes = ours[0].gradient_bytes
            def compare(case: str, mine: list[float], theirs: list[float], peer: str, unit: str) -> None:
                outcome.rows.append(Row("memory", case, gradient_bytes, ranks, mine, theirs, peer, unit))

            memory, over_freed = (
                [[getattr(one, name) / MIB for one in side] for side in (ours, pytorch)] for name in ("memory", "over_freed")
            )
            compare(workload, memory[0], [ALLOWED_MIB], "limit", "MiB")
            compare(workload, *memory, "pytorch", "MiB")
            compare(f"{workload}, over freed gradients", *over_freed, "pytorch", "MiB")
            tables = [[one.page_tables / 1024 for one in side] for side in (ours, pytorch)]
            compare(f"{workload}, page tables", *tables, "pytorch", "KiB")
            faults = [[one.faults for one in side] for side in (ours, pytorch)]
            compare(f"{workload}, page faults", *faults, "pytorch", "faults")
    return outcome
