"""gpu_step: time of a training step on one GPU at world 1: DDP over the bare model, ours and PyTorch's, with NCCL."""

from __future__ import annotations

from dataclasses import dataclass

import workloads
from comparison import compare
from gpu_common import NCCL, GpuTools, interleave_within
from harness import Contender, Outcome, Row, Samples

ROUNDS, QUICK_ROUNDS = 6, 2


@dataclass(frozen=True)
class Form:
    workload: str
    options: tuple[str, ...]
    steps: int  # samples of one run
    together: int  # steps in each of them

    @property
    def name(self) -> str:
        return " ".join([self.workload, *(option.removeprefix("--") for option in self.options)])


FORMS = [
    Form("resnet50-224", ("--autocast", "--channels-last"), 10, 10),
    Form("mlp-6M", (), 20, 50),
]


def contender(tools: GpuTools, form: Form, ours: bool, mode: str) -> Contender:
    more = ["--device", "cuda", "--together", str(form.together), *form.options]
    if not ours:
        more += ["--implementation", "fused", *(["--backend", "nccl"] if mode == "ddp" else [])]
    command = workloads.our_command if ours else workloads.free_peer_command
    environment = tools.our_environment() if ours else NCCL

    def once() -> Samples:
        seconds = workloads.step_seconds(tools, command, mode, form.workload, 1, form.steps, tuple(more), environment)
        return {form.name: [value * 1e3 for value in seconds]}

    return once


def measure(tools: GpuTools) -> Outcome:
    return measure_forms("gpu_step", FORMS, tools)


def measure_forms(bench: str, forms: list[Form], tools: GpuTools) -> Outcome:
    outcome = Outcome()
    rounds = tools.choose_rounds(ROUNDS, QUICK_ROUNDS)
    for form in forms:
        contenders = {
            "ddp": contender(tools, form, True, "ddp"),
            "limit": contender(tools, form, True, "alone"),
            "pytorch": contender(tools, form, False, "ddp"),
            "pytorch alone": contender(tools, form, False, "alone"),
        }
        found = interleave_within(tools, contenders, rounds, outcome, f"{bench} {form.name}")
        values = {name: samples[form.name] for name, samples in found.items()}
        for peer in ("limit", "pytorch"):
            if "ddp" in values and peer in values:
                outcome.rows.append(Row(bench, form.name, None, 1, values["ddp"], values[peer], peer, "ms"))
        if "limit" in values and "pytorch alone" in values:
            outcome.rows.append(Row(bench, f"{form.name}, bare model", None, 1, values["limit"], values["pytorch alone"],
                                    "pytorch", "ms"))
        if "pytorch" in values and "pytorch alone" in values:
            cost = compare(values["pytorch"], values["pytorch alone"])
            outcome.notes.append(f"{form.name}: PyTorch's bare model against its DDP: {cost.ratio:.4f}x [{cost.low:.4f} .. "
                                 f"{cost.high:.4f}]")
    return outcome
