"""memory: the memory that DDP adds to a rank (gradients not counted), against its limit of 4 MiB and PyTorch's DDP; and
the page tables and page faults that it adds, against PyTorch's."""

from __future__ import annotations

import workloads
from harness import BenchError, Outcome, Row, Tools

WORKLOADS = ["cnn-28", "mlp-6M", "resnet18-32"]
STEPS, ROUNDS, QUICK_ROUNDS = 10, 3, 1
ALLOWED_MIB = 4.0
MIB = 1 << 20
PAGE = 4096


def added(tools: Tools, command, workload: str, ranks: int) -> workloads.Footprint:
    """A rank's footprint with DDP minus that without it. At least one page and one fault, so that ratios exist."""
    without = workloads.footprint(tools, command, "together", workload, ranks, STEPS)
    with_ddp = workloads.footprint(tools, command, "ddp", workload, ranks, STEPS)
    return workloads.Footprint(
        max(with_ddp.memory - without.memory, PAGE),
        max(with_ddp.page_tables - without.page_tables, PAGE),
        max(with_ddp.faults - without.faults, 1),
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
            memory = [one.memory / MIB for one in ours]
            allowed = [ALLOWED_MIB]

            def compare(case: str, mine: list[float], theirs: list[float], peer: str, unit: str) -> None:
                outcome.rows.append(Row("memory", case, gradient_bytes, ranks, mine, theirs, peer, unit))

            compare(workload, memory, allowed, "limit", "MiB")
            compare(workload, memory, [one.memory / MIB for one in pytorch], "pytorch", "MiB")
            tables = [[one.page_tables / 1024 for one in side] for side in (ours, pytorch)]
            compare(f"{workload}, page tables", *tables, "pytorch", "KiB")
            faults = [[one.faults for one in side] for side in (ours, pytorch)]
            compare(f"{workload}, page faults", *faults, "pytorch", "faults")
    return outcome
