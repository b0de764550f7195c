"""hooks: the bytes that a rank sends in a step with each communication hook, against theory; the step's time against that
of the all-reduce."""

from __future__ import annotations

import json
import math

from harness import Contender, Outcome, Row, Samples, Tools, interleave, run

STEPS = {"cnn-28": 60, "mlp-6M": 20}
ROUNDS, QUICK_ROUNDS = 6, 2
RANK = 2  # of PowerSGD's matrices
HOOKS = ["noop", "fp16", "bf16", "bf16-feedback", "power-sgd", "bf16-power-sgd"]
FLOAT, HALF, LINE = 4, 2, 64  # bytes


def elements_in_buckets(shapes: list[list[int]]) -> int:
    """With padding: each gradient begins at a cache line."""
    per_line = LINE // FLOAT
    return sum(math.ceil(math.prod(shape) / per_line) * per_line for shape in shapes)


def elements_of_power_sgd(shapes: list[list[int]]) -> int:
    """(n + m) r for each gradient where that saves at least half, else n m."""
    total = 0
    for shape in shapes:
        n, m = shape[0], math.prod(shape[1:])
        compressed = (n + m) * min(n, m, RANK)
        total += compressed if 2 * compressed < n * m else n * m
    return total


def theory(hook: str, shapes: list[list[int]]) -> int:
    """Bytes of gradients in a step, by each hook's description in docs/comm_hooks.md."""
    if hook == "noop":
        return 0
    if hook == "none":
        return elements_in_buckets(shapes) * FLOAT
    if hook in ("fp16", "bf16", "bf16-feedback"):
        return elements_in_buckets(shapes) * HALF
    return elements_of_power_sgd(shapes) * (HALF if hook == "bf16-power-sgd" else FLOAT)


def contender(tools: Tools, workload: str, hook: str, ranks: int) -> Contender:
    def once() -> Samples:
        output = tools.scratch_file()
        steps = STEPS[workload]
        arguments = ["--workload", workload, "--hook", hook, "--rank", RANK, "--steps", steps, "--output", output]
        run(tools.lockstep_run(ranks, tools.program("bench_hooks"), *arguments))
        report = json.loads(output.read_text(encoding="utf-8"))
        expected = theory(hook, report["shapes"])
        # One byte more on both sides: the no-op sends none, and ratios must exist.
        return {
            "step": [seconds * 1e3 for seconds in report["seconds"]],
            "sent": [(report["sent"] + 1) / 1024],
            "theory": [(expected + 1) / 1024],
        }

    return once


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    for workload in STEPS:
        for ranks in tools.ranks:
            contenders = {hook: contender(tools, workload, hook, ranks) for hook in ["none", *HOOKS]}
            found = interleave(
                contenders, tools.choose_rounds(ROUNDS, QUICK_ROUNDS), outcome, f"hooks {workload}, {ranks} ranks"
            )
            for hook, samples in found.items():
                bytes_sent = int(samples["theory"][0] * 1024)
                sizes = samples["sent"], samples["theory"]
                outcome.rows.append(Row("hooks", f"{workload}, {hook}, sent", bytes_sent, ranks, *sizes, "theory", "KiB"))
                if hook != "none" and "none" in found:
                    times = samples["step"], found["none"]["step"]
                    outcome.rows.append(Row("hooks", f"{workload}, {hook}", bytes_sent, ranks, *times, "all-reduce", "ms"))
    return outcome
