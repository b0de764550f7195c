"""gpu_train: the reference job (examples/resnet) on the GPU beside the same job in Python, with 1, 2 and 4 processes on the
card, and how busy the card is: ResNet-18, and ResNet-50 in bfloat16 with channels last."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpu_common import NCCL, GpuTools, cores_of_each, interleave_within
from harness import HERE, Contender, Outcome, Row, run
from train import Form, epochs_of

FORM = Form(side=224, batch=64, epochs=3, train=400, test=8)
QUICK_FORM = Form(side=224, batch=64, epochs=2, train=100, test=8)
ROUNDS, QUICK_ROUNDS = 2, 1


@dataclass(frozen=True)
class Model:
    """Options of our program and of the peer's."""

    name: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    processes: tuple[int, ...]


LAYOUT = ("--bf16", "--channels-last")
MODELS = (
    Model("resnet18", (), ("--model", "resnet18"), (1, 2, 4)),
    Model("resnet50 bf16", ("--resnet50", *LAYOUT), ("--model", "resnet50", *LAYOUT), (1, 4)),
)


def pictures(tools: GpuTools, form: Form) -> Path:
    folder = tools.scratch / f"job-{form.train}"
    if not folder.exists():
        script = HERE / "peers" / "make_job.py"
        run([str(tools.python), str(script), str(folder), str(form.train), str(form.test)], timeout=150)
    return folder


@contextmanager
def card_use() -> Iterator[list[float]]:
    """Per cent of each moment in which a kernel ran, as the driver says; empty where it does not."""
    found: list[float] = []
    command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "200"]
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        yield found
        return
    try:
        yield found
    finally:
        process.terminate()
        output, _ = process.communicate()
        found += [float(line) for line in output.splitlines() if line.strip().isdigit()]


def ours(tools: GpuTools, form: Form, model: Model, ranks: int, use: list[float]) -> Contender:
    def once():
        command = [tools.program("resnet_train"), pictures(tools, form), form.epochs, form.side, form.batch, 1, *model.ours]
        with card_use() as moments:
            output = run(tools.our_ranks(ranks, *command), tools.our_environment(), timeout=240)
        use.extend(moment for moment in moments if moment > 0)  # not the start
        return {None: epochs_of(output).rates[1:]}

    return once


def theirs(tools: GpuTools, form: Form, model: Model, ranks: int) -> Contender:
    def once():
        output = tools.scratch_file()
        options = ["--folder", pictures(tools, form), "--epochs", form.epochs, "--side", form.side, "--batch", form.batch,
                   "--device", "cuda", "--workers", max(1, cores_of_each(ranks) - 1), "--output", output, *model.theirs]
        run(tools.python_ranks(ranks, HERE / "peers" / "train.py", *options), NCCL, timeout=240)
        found = json.loads(output.read_text(encoding="utf-8"))
        return {None: [epoch["pictures"] / epoch["seconds"] for epoch in found][1:]}

    return once


def measure_model(tools: GpuTools, form: Form, model: Model, outcome: Outcome) -> None:
    one = None
    for ranks in model.processes:
        use: list[float] = []
        contenders = {"ours": ours(tools, form, model, ranks, use), "pytorch": theirs(tools, form, model, ranks)}
        rounds = tools.choose_rounds(ROUNDS, QUICK_ROUNDS)
        found = interleave_within(tools, contenders, rounds, outcome, f"gpu_train {model.name}, {ranks} processes")
        rates = {name: samples[None] for name, samples in found.items()}
        if "ours" in rates and "pytorch" in rates:
            outcome.rows.append(Row("gpu_train", f"{model.name}, {form.name}", None, ranks, rates["ours"], rates["pytorch"],
                                    "pytorch", "pictures/s", more_is_better=True))
        if "ours" in rates:
            rate = statistics.median(rates["ours"])
            one = one or rate
            busy = f"{statistics.mean(use):.0f} %" if use else "not told"
            outcome.notes.append(f"{model.name}, {ranks} processes on the card: {6 * form.train / rate:.2f} s an epoch, "
                                 f"{rate / one:.2f}x one; card in use: {busy}")


def measure(tools: GpuTools) -> Outcome:
    outcome = Outcome()
    form = QUICK_FORM if tools.quick else FORM
    pictures(tools, form)
    for model in MODELS:
        measure_model(tools, form, model, outcome)
    return outcome
