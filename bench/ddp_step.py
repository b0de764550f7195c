"""ddp_step: time of a training step under DDP, against independent processes (the machine's limit) and PyTorch's DDP on
Gloo in the best of its ways, also compiled; and PyTorch's DDP on Lockstep's Python package. All times are the slower rank's."""

from __future__ import annotations

from dataclasses import replace

import workloads
from harness import Contender, Outcome, Row, Samples, Tools, best_way, interleave
from peer_ways import ALLOCATOR, BUCKETS, COMPILED_LAYOUT, LAYOUT, PINNED, WAYS, Way
from settings import best_settings

# At least 20 steps a row in all rounds.
STEPS = {"cnn-28": 150, "mlp-6M": 60, "resnet18-32": 20, "resnet18-224": 4}
SEARCH_STEPS = {"cnn-28": 100, "mlp-6M": 40, "resnet18-32": 10, "resnet18-224": 3}
LARGE = "resnet18-224"  # it hardly communicates: only the rows that show that
# PyTorch's, searched in this order.
SETTINGS = {"layout": LAYOUT, "allocator": ALLOCATOR, "cores": PINNED, "buckets": BUCKETS}
LARGE_SETTINGS = ("layout", "allocator")
LAYOUTS: dict[str, tuple[str, ...]] = {"contiguous": (), "channels last": ("--channels-last",)}  # ours; the peer's are ways
# For rows that show what use_fast_batch_norm() and use_fast_convolution() are worth.
PLAIN = ("--libtorch-batch-norm", "--libtorch-convolution")
# SharedStep, also with the mean of the gradients in the same pass.
# "ours" is the plain SGD.
SHARED: dict[str, tuple[str, ...]] = {
    "shared sgd": ("--optimizer", "shared-sgd"),
    "one-pass sgd": ("--optimizer", "shared-sgd", "--one-pass"),
    "plain adamw": ("--optimizer", "adamw"),
    "shared adamw": ("--optimizer", "shared-adamw"),
    "one-pass adamw": ("--optimizer", "shared-adamw", "--one-pass"),
}
# Compiled models have a row of their own: they change the model's kernels, not DDP.
COMPILED_SETTINGS = {"layout": COMPILED_LAYOUT, "allocator": ALLOCATOR, "cores": PINNED}
ROUNDS, QUICK_ROUNDS = 6, 3


def contender(
    tools: Tools, command, mode: str, workload: str, ranks: int, more: tuple[str, ...] = (), steps: int = 0
) -> Contender:
    def once() -> Samples:
        seconds = workloads.step_seconds(tools, command, mode, workload, ranks, steps or STEPS[workload], more)
        return {workload: [value * 1e3 for value in seconds]}

    return once


def in_python(tools: Tools, backend: str, workload: str, ranks: int, way: Way, steps: int) -> Contender:
    """PyTorch's DDP, on Gloo or on ours."""
    environment = {"PYTHONPATH": str(tools.build / "python"), "TORCHINDUCTOR_CACHE_DIR": str(tools.scratch / "inductor"),
                   **way.environment}
    more = ("--backend", backend, *way.options)
    command = workloads.peer_command if way.pinned else workloads.free_peer_command

    def once() -> Samples:
        seconds = workloads.step_seconds(tools, command, "ddp", workload, ranks, steps, more, environment)
        return {workload: [value * 1e3 for value in seconds]}

    return once


def passes(workload: str) -> int:
    """Of a search."""
    return 2 if "resnet" in workload else 3


def settings_of(settings: dict[str, dict[str, Way]], workload: str) -> dict[str, dict[str, Way]]:
    """Those that matter to this model."""
    return {name: values for name, values in settings.items()
            if (name != "layout" or "mlp" not in workload) and (workload != LARGE or name in LARGE_SETTINGS)}


def best_pytorch_way(tools: Tools, workload: str, ranks: int, outcome: Outcome) -> Way:
    start = WAYS["pytorch"]["fused, static"]
    if tools.quick:
        outcome.notes.append(f"{ranks} ranks, {workload}: pytorch is 'fused, static', without a search")
        return start
    settings = settings_of(SETTINGS, workload)
    way, names = best_settings(
        start, settings, lambda way: in_python(tools, "gloo", workload, ranks, way, SEARCH_STEPS[workload]), outcome,
        f"ddp_step {workload}, {ranks} ranks, pytorch", passes=passes(workload))
    outcome.notes.append(f"{ranks} ranks, {workload}: pytorch is 'fused, static, {names}', the best of its settings")
    return way


def best_compiled_way(tools: Tools, workload: str, ranks: int, outcome: Outcome) -> Way:
    settings = settings_of(COMPILED_SETTINGS, workload)
    way, names = best_settings(
        WAYS["pytorch"]["fused, static, compiled"], settings,
        lambda way: in_python(tools, "gloo", workload, ranks, way, SEARCH_STEPS[workload]), outcome,
        f"ddp_step {workload}, {ranks} ranks, pytorch compiled", passes=passes(workload))
    outcome.notes.append(f"{ranks} ranks, {workload}: pytorch compiled is '{names}'")
    return way


def best_layout(tools: Tools, workload: str, ranks: int, outcome: Outcome) -> tuple[str, ...]:
    """Of our programs, also of the independent processes."""
    if tools.quick or "mlp" in workload:
        return ()
    tried = {name: contender(tools, workloads.our_command, "ddp", workload, ranks, more, SEARCH_STEPS[workload])
             for name, more in LAYOUTS.items()}
    name = best_way(tried, outcome, f"ddp_step {workload}, {ranks} ranks, layouts").get(workload, "contiguous")
    outcome.notes.append(f"{ranks} ranks: our {workload} is {name}")
    return LAYOUTS[name]


def compare(
    outcome: Outcome, found: dict[str, Samples], workload: str, ranks: int, ours: str, peer: str, language: str = "C++",
    what: str = "",
) -> None:
    mine, theirs = found.get(ours, {}).get(workload), found.get(peer, {}).get(workload)
    if mine and theirs:
        # Independent processes and the bare model are the machine's limit for DDP.
        name = "limit" if peer == "alone" or peer.endswith("together") else peer
        outcome.rows.append(Row("ddp_step", f"{workload}{what}", None, ranks, mine, theirs, name, "ms", language=language))


def measure_alone(tools: Tools, workload: str, rounds: int, outcome: Outcome) -> None:
    ours = workloads.our_command
    contenders = {mode: contender(tools, ours, mode, workload, 1) for mode in ("alone", "ddp")}
    found = interleave(contenders, rounds, outcome, f"ddp_step {workload}, world 1")
    compare(outcome, found, workload, 1, "ddp", "alone")


def measure_ranks(tools: Tools, workload: str, ranks: int, rounds: int, outcome: Outcome) -> None:
    way = best_pytorch_way(tools, workload, ranks, outcome)
    layout = best_layout(tools, workload, ranks, outcome)
    contenders = {
        "together": contender(tools, workloads.our_command, "together", workload, ranks, layout),
        "ours": contender(tools, workloads.our_command, "ddp", workload, ranks, layout),
        "pytorch": in_python(tools, "gloo", workload, ranks, way, STEPS[workload]),
    }
    if "resnet" in workload:
        contenders["plain"] = contender(tools, workloads.our_command, "ddp", workload, ranks, (*layout, *PLAIN))
    # The fused step and the shared one, of SGD for all models, of AdamW for the one whose step is long.
    for name, more in SHARED.items():
        if workload != LARGE and ("adamw" not in name or "mlp" in workload):
            for mode in ("together", "ddp"):
                if mode == "ddp" or name.startswith("plain"):
                    contenders[f"{name}, {mode}"] = contender(
                        tools, workloads.our_command, mode, workload, ranks, (*layout, *more))
    if workload != LARGE:
        contenders["python"] = in_python(tools, "lockstep", workload, ranks, replace(way, pinned=True), STEPS[workload])
    if not tools.quick:  # compiling takes a minute
        compiled = best_compiled_way(tools, workload, ranks, outcome)
        contenders["pytorch compiled"] = in_python(tools, "gloo", workload, ranks, compiled, STEPS[workload])
    found = interleave(contenders, rounds, outcome, f"ddp_step {workload}, {ranks} ranks")
    compare(outcome, found, workload, ranks, "ours", "together")
    compare(outcome, found, workload, ranks, "ours", "pytorch")
    compare(outcome, found, workload, ranks, "ours", "pytorch compiled")
    compare(outcome, found, workload, ranks, "plain", "pytorch", what=", LibTorch's operators")
    for name in SHARED:
        limit = "plain adamw, together" if "adamw" in name else "together"
        compare(outcome, found, workload, ranks, f"{name}, ddp", limit, what=f", {name}")
    compare(outcome, found, workload, ranks, "python", "pytorch", "Python")


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    rounds = tools.choose_rounds(ROUNDS, QUICK_ROUNDS)
    for workload in workloads.NAMES:
        if tools.quick and workload == LARGE:
            continue
        if not tools.quick and workload != LARGE:
            measure_alone(tools, workload, rounds, outcome)
        for ranks in tools.ranks:
            measure_ranks(tools, workload, ranks, rounds, outcome)
    return outcome
