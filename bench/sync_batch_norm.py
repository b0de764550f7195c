"""sync_batch_norm: time of a training step under DDP with synchronised batch normalisation, against plain layers:
LibTorch's own ("BatchNorm"), and the same after use_fast_batch_norm() ("fast BatchNorm"), which the synchronised ones have too."""

from __future__ import annotations

from collections.abc import Callable

import workloads
from harness import Outcome, Row, Samples, Tools, interleave

STEPS = {"resnet18-32": 20, "resnet18-224": 5}
ROUNDS, QUICK_ROUNDS = 6, 2


def contender(tools: Tools, workload: str, ranks: int, extra: list[object]) -> Callable[[], Samples]:
    def once() -> Samples:
        reports = workloads.ddp_reports(tools, workloads.our_command, workload, ranks, STEPS[workload], extra)
        return {workload: [seconds * 1e3 for seconds in workloads.slower_rank(reports)]}

    return once


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    outcome.notes.append("PyTorch: n/a, its SyncBatchNorm takes no CPU tensors")
    for workload in STEPS:
        for ranks in tools.ranks:
            found = interleave(
                {
                    "synchronised": contender(tools, workload, ranks, ["--sync-batch-norm"]),
                    "BatchNorm": contender(tools, workload, ranks, ["--libtorch-batch-norm"]),
                    "fast BatchNorm": contender(tools, workload, ranks, []),
                },
                tools.choose_rounds(ROUNDS, QUICK_ROUNDS),
                outcome,
                f"sync_batch_norm {workload}, {ranks} ranks",
            )
            mine = found.get("synchronised", {}).get(workload)
            for peer in ("BatchNorm", "fast BatchNorm"):
                plain = found.get(peer, {}).get(workload)
                if mine and plain:
                    outcome.rows.append(Row("sync_batch_norm", workload, None, ranks, mine, plain, peer, "ms"))
    return outcome
