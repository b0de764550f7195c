"""memory: what DDP adds to a rank's memory, against its allowance (10 % of the gradients and 16 MiB) and PyTorch's DDP."""

from __future__ import annotations

import workloads
from harness import BenchError, Outcome, Row, Tools

WORKLOADS = ["cnn-28", "mlp-6M", "resnet18-32"]
STEPS, ROUNDS, QUICK_ROUNDS = 10, 3, 1
MIB = 1 << 20
PAGE = 4096


def added(tools: Tools, command, workload: str, ranks: int) -> tuple[float, int]:
    """MiB a rank, with DDP less without, and the gradients' bytes. At least a page, so that ratios exist."""
    without, _ = workloads.memory_per_rank(tools, command, "together", workload, ranks, STEPS)
    with_ddp, gradient_bytes = workloads.memory_per_rank(tools, command, "ddp", workload, ranks, STEPS)
    return max(with_ddp - without, PAGE) / MIB, gradient_bytes


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    for workload in WORKLOADS:
        for ranks in tools.ranks:
            ours, pytorch, gradient_bytes = [], [], 0
            try:
                for _ in range(QUICK_ROUNDS if tools.quick else ROUNDS):
                    mine, gradient_bytes = added(tools, workloads.our_command, workload, ranks)
                    theirs, _ = added(tools, workloads.peer_command, workload, ranks)
                    ours.append(mine)
                    pytorch.append(theirs)
            except BenchError as error:
                outcome.missing.append(f"memory {workload}, {ranks} ranks: {error}")
                continue
            allowed = [0.1 * gradient_bytes / MIB + 16]
            outcome.rows.append(Row("memory", workload, gradient_bytes, ranks, ours, allowed, "limit", "MiB"))
            outcome.rows.append(Row("memory", workload, gradient_bytes, ranks, ours, pytorch, "pytorch", "MiB"))
    return outcome
