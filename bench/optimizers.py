"""optimizers: time of an optimizer's step in one thread by fused_step(), against LibTorch's own step() and against PyTorch
in the best of its implementations."""

from __future__ import annotations

import json

from harness import HERE, Contender, Outcome, Row, Samples, Tools, best_way, interleave, run

# A model of many values and one of few.
STEPS = {"resnet18-32": 20, "cnn-28": 300}
OPTIMIZERS = ["sgd-momentum", "sgd-momentum-decay", "adamw"]
IMPLEMENTATIONS = ["fused", "foreach", "plain"]
ROUNDS, QUICK_ROUNDS = 6, 1


def contender(tools: Tools, command: list[object], workload: str, optimizer: str) -> Contender:
    def once() -> Samples:
        output = tools.scratch_file()
        options = ["--workload", workload, "--optimizer", optimizer, "--steps", STEPS[workload], "--output", output]
        run([str(part) for part in [*command, *options]])
        return {None: [seconds * 1e6 for seconds in json.loads(output.read_text(encoding="utf-8"))["seconds"]]}

    return once


def best_pytorch(tools: Tools, workload: str, optimizer: str, outcome: Outcome) -> Contender | None:
    script = [tools.python, HERE / "peers" / "optimizers.py"]
    ways = {way: contender(tools, [*script, "--implementation", way], workload, optimizer) for way in IMPLEMENTATIONS}
    chosen = best_way(ways, outcome, f"optimizers {workload} {optimizer}, ways of pytorch", passes=1)
    if not chosen:
        return None
    outcome.notes.append(f"{workload}, {optimizer}: pytorch is '{chosen[None]}'")
    return ways[chosen[None]]


def compare(tools: Tools, workload: str, optimizer: str, outcome: Outcome) -> None:
    ours = tools.program("bench_optimizers")
    contenders = {
        "fused": contender(tools, [ours, "--fused"], workload, optimizer),
        "libtorch": contender(tools, [ours], workload, optimizer),
    }
    if best := best_pytorch(tools, workload, optimizer, outcome):
        contenders["pytorch"] = best
    rounds = tools.choose_rounds(ROUNDS, QUICK_ROUNDS)
    found = interleave(contenders, rounds, outcome, f"optimizers {workload} {optimizer}")
    for peer, name in (("libtorch", "step()"), ("pytorch", "pytorch")):
        if "fused" in found and peer in found:
            case = f"{workload}, {optimizer}"
            outcome.rows.append(Row("optimizers", case, None, 1, found["fused"][None], found[peer][None], name, "us"))


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    for workload in STEPS:
        for optimizer in OPTIMIZERS:
            compare(tools, workload, optimizer, outcome)
    return outcome
