"""train: the reference job (examples/resnet) beside the same job in Python, on the same pictures, weights and order: at 224
pixels and at 64. Its speed-up on two processes; DataParallel's replicas beside them; how near the curves of accuracy are."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from harness import HERE, BenchError, Contender, Outcome, Row, Samples, Tools, best_way, interleave, pinned, run
from loader import peer_python
from peer_ways import ALLOCATOR, COMPILE, LAYOUT, PINNED, Way, usual
from settings import best_settings

PEER = "pytorch"
ROUNDS, QUICK_ROUNDS = 6, 1
PUBLISHED = ("published for this job on 1, 2 and 4 GPUs: 128.84, 66.5 and 37.8 s an epoch, 1.94x (96.9 %) and 3.41x (85.2 %)")
EPOCH = re.compile(r"epoch \d+: [\d.]+ s, ([\d.]+) pictures/s, loss")
ACCURACY = re.compile(r"test accuracy ([\d.]+) %")


@dataclass(frozen=True)
class Form:
    """The job at one size of pictures. The first epoch of a run warms up, and is not counted."""

    side: int
    batch: int  # of each process
    epochs: int
    train: int  # pictures of each of the 6 classes
    test: int
    layout: tuple[str, ...] = ()  # of our programs

    @property
    def name(self) -> str:
        return f"{self.side} px"


LARGE = Form(side=224, batch=8, epochs=2, train=32, test=1)  # 12 steps of each of two processes
SMALL = Form(side=64, batch=16, epochs=10, train=40, test=20)
SHORT = {224: Form(side=224, batch=8, epochs=2, train=16, test=1),  # for searches, by the side
         64: Form(side=64, batch=16, epochs=3, train=40, test=20)}
QUICK_SMALL = Form(side=64, batch=16, epochs=4, train=40, test=20)


@dataclass
class Epochs:
    """What one run found in each of its epochs."""

    rates: list[float]  # pictures per second
    accuracies: list[float]  # per cent

    def __post_init__(self) -> None:
        if len(self.rates) < 2 or len(self.rates) != len(self.accuracies):
            raise BenchError(f"found {len(self.rates)} epochs and {len(self.accuracies)} accuracies in the job's output")


def pictures(tools: Tools, form: Form) -> Path:
    folder = tools.scratch / f"job-{form.train}-{form.test}"
    if not folder.exists():
        run([str(peer_python(tools)), str(HERE / "peers" / "make_job.py"), str(folder), str(form.train), str(form.test)])
    return folder


LAYOUTS: dict[str, tuple[str, ...]] = {"contiguous": (), "channels last": ("--channels-last",)}
# PyTorch's, searched in this order.
SETTINGS = {"model": COMPILE, "layout": LAYOUT, "allocator": ALLOCATOR, "cores": PINNED}


def job_of(tools: Tools, form: Form, seed: int, program: str = "resnet_train", *more: object) -> list[str]:
    words = [tools.program(program), pictures(tools, form), form.epochs, form.side, form.batch, seed, *more, *form.layout]
    return [str(word) for word in words]


def epochs_of(output: str) -> Epochs:
    return Epochs([float(rate) for rate in EPOCH.findall(output)], [float(part) for part in ACCURACY.findall(output)])


def ours(tools: Tools, form: Form, ranks: int, seed: int) -> Epochs:
    words = job_of(tools, form, seed)
    # One process has the cores that each of two has.
    return epochs_of(run(tools.lockstep_run(ranks, *words) if ranks > 1 else pinned(words, 0, 2)))


def replicas(tools: Tools, form: Form, count: int, seed: int) -> Epochs:
    """The job in one process, with as many replicas as `ours` has processes."""
    return epochs_of(run(job_of(tools, form, seed, "resnet_data_parallel", count)))


def apart(tools: Tools, form: Form, processes: int, seed: int) -> Epochs:
    """As many processes at once as `ours` has, each with a job of its own: what the machine gives to that many."""
    words = job_of(tools, form, seed)
    with ThreadPoolExecutor(processes) as pool:
        outputs = list(pool.map(lambda number: run(pinned(words, number, processes)), range(processes)))
    found = [epochs_of(output) for output in outputs]
    rates = [sum(rates) for rates in zip(*(one.rates for one in found), strict=True)]
    return Epochs(rates, found[0].accuracies)


def theirs(tools: Tools, form: Form, way: Way, ranks: int, seed: int) -> Epochs:
    output = tools.scratch_file()
    arguments = ["--folder", pictures(tools, form), "--epochs", form.epochs, "--side", form.side, "--batch", form.batch,
                 "--seed", seed, "--output", output, *way.options]
    script = HERE / "peers" / "train.py"
    run((tools.torchrun_pinned if way.pinned else tools.torchrun_free)(ranks, script, *arguments),
        {"TORCHINDUCTOR_CACHE_DIR": str(tools.scratch / "inductor"), **way.environment})
    found = json.loads(output.read_text(encoding="utf-8"))
    return Epochs([epoch["pictures"] / epoch["seconds"] for epoch in found], [100 * epoch["accuracy"] for epoch in found])


class Job:
    """The job at one size, by ours and the peer."""

    def __init__(self, tools: Tools, form: Form, outcome: Outcome) -> None:
        self.tools, self.form, self.outcome = tools, form, outcome
        self.curves: dict[str, list[list[float]]] = {}

    def contender(self, name: str, once) -> Contender:
        """`once` gets the seed: that of the round, the same for all."""

        def rates() -> Samples:
            curves = self.curves.setdefault(name, [])
            epochs = once(len(curves) + 1)
            curves.append(epochs.accuracies)
            return {None: epochs.rates[1:]}

        return rates

    def measure(self, ranks: int, way: Way, with_one: bool) -> dict[str, list[float]]:
        form, tools = self.form, self.tools
        contenders = {
            "ours": self.contender("ours", lambda seed: ours(tools, form, ranks, seed)),
            PEER: self.contender(PEER, lambda seed: theirs(tools, form, way, ranks, seed)),
        }
        if with_one:
            contenders["one"] = self.contender("one", lambda seed: ours(tools, form, 1, seed))
            contenders["apart"] = self.contender("apart", lambda seed: apart(tools, form, ranks, seed))
            contenders["replicas"] = self.contender("replicas", lambda seed: replicas(tools, form, ranks, seed))
            contenders["twice"] = self.contender("twice", lambda seed: ours(tools, form, 2 * ranks, seed))
        rounds = tools.choose_rounds(ROUNDS, QUICK_ROUNDS)
        found = interleave(contenders, rounds, self.outcome, f"train {form.name}, {ranks} ranks")
        return {name: samples[None] for name, samples in found.items()}

    def add(self, case: str, ranks: int, mine: list[float] | None, peer: list[float] | None, name: str, unit: str) -> None:
        if mine and peer:
            self.outcome.rows.append(
                Row("train", f"{self.form.name}{case}", None, ranks, mine, peer, name, unit, more_is_better=True))


def python_ways(tools: Tools, ranks: int, ways: Mapping[str, Way], form: Form) -> dict[str, Contender]:
    return {name: lambda way=way: {form.name: theirs(tools, form, way, ranks, 1).rates[1:]} for name, way in ways.items()}


def best_python(tools: Tools, outcome: Outcome, ranks: int, form: Form) -> Way:
    """First how pictures are loaded, then the settings of the rest. `form` is short."""
    ways = usual("pytorch-job")
    if tools.quick:
        return next(iter(ways.values()))
    what = f"train {form.name}, pytorch"
    chosen = best_way(python_ways(tools, ranks, ways, form), outcome, what, more_is_better=True)
    loading = chosen.get(form.name, next(iter(ways)))
    settings = SETTINGS if ways[loading].pinned else {name: SETTINGS[name] for name in SETTINGS if name != "cores"}
    way, names = best_settings(ways[loading], settings, lambda way: python_ways(tools, ranks, {"": way}, form)[""], outcome,
                               what, more_is_better=True, passes=2)
    outcome.notes.append(f"{form.name}, {ranks} ranks: pytorch is '{loading}, {names}', the best of its ways and settings")
    return way


def best_layout(tools: Tools, outcome: Outcome, form: Form, ranks: int) -> tuple[str, ...]:
    """Of our programs. `form` is short."""
    if tools.quick:
        return ()
    tried = {name: lambda more=more: {form.name: ours(tools, replace(form, layout=more), ranks, 1).rates[1:]}
             for name, more in LAYOUTS.items()}
    chosen = best_way(tried, outcome, f"train {form.name}, layouts of ours", more_is_better=True)
    name = chosen.get(form.name, "contiguous")
    outcome.notes.append(f"{form.name}: ours is {name}")
    return LAYOUTS[name]


def with_best_ways(tools: Tools, outcome: Outcome, form: Form, ranks: int) -> tuple[Form, Way]:
    short = SHORT[form.side]
    way = best_python(tools, outcome, ranks, short)
    return replace(form, layout=best_layout(tools, outcome, short, ranks)), way


def mean_curve(curves: list[list[float]]) -> list[float]:
    return [statistics.mean(epoch) for epoch in zip(*curves, strict=True)]


def curves_text(curves: dict[str, list[list[float]]]) -> str:
    """How near the curves are, beside how far the seeds of one program are from one another."""
    mine, peer = curves["ours"], curves[PEER]
    apart = [a - b for a, b in zip(mean_curve(mine), mean_curve(peer), strict=True)]
    far = max(range(len(apart)), key=lambda epoch: abs(apart[epoch]))
    spread = max(statistics.pstdev(epoch) for side in (mine, peer) for epoch in zip(*side, strict=True))
    last = f"{mean_curve(mine)[-1]:.1f} % and pytorch's {mean_curve(peer)[-1]:.1f} %"
    return (f"{SMALL.name}, accuracy after {len(apart)} epochs, mean of {len(mine)} seeds: ours {last}; the mean curves are at "
            f"most {abs(apart[far]):.1f} points apart (epoch {far + 1}), the seeds of one program up to {spread:.1f} (standard "
            "deviation)")


def add_efficiency(job: Job, ranks: int, found: dict[str, list[float]]) -> None:
    """Against one process times the ranks, and against as many processes that have nothing to say to each other."""
    job.add(", efficiency", ranks, found["ours"], [ranks * rate for rate in found["one"]], "limit", "pictures/s")
    job.add(f", against {ranks} jobs of one process at once", ranks, found["ours"], found["apart"], "limit", "pictures/s")
    job.add(f", {2 * ranks} processes", 2 * ranks, found["twice"], found["ours"], f"{ranks} processes", "pictures/s")
    seconds = {who: statistics.median(6 * job.form.train / rate for rate in rates) for who, rates in found.items()}
    one, more, alone = seconds["one"], seconds["ours"], seconds["apart"]
    job.outcome.notes.append(
        f"{job.form.name}: {one:.2f} s an epoch with 1 process, {more:.2f} s with {ranks}: {one / more:.2f}x "
        f"({100 * one / more / ranks:.1f} %), {seconds['twice']:.2f} s with {2 * ranks}; {ranks} jobs at once, which do not "
        f"communicate: {one / alone:.2f}x; {PUBLISHED}")


def measure_jobs(tools: Tools, outcome: Outcome) -> None:
    for ranks in tools.ranks:
        for kind in (LARGE, QUICK_SMALL if tools.quick else SMALL):
            form, way = with_best_ways(tools, outcome, kind, ranks)
            job = Job(tools, form, outcome)
            found = job.measure(ranks, way, with_one=kind is LARGE)
            job.add("", ranks, found.get("ours"), found.get(PEER), PEER, "pictures/s")
            if kind is LARGE and {"ours", "one", "apart", "twice"} <= found.keys():
                add_efficiency(job, ranks, found)
            if kind is LARGE:
                job.add(f", {ranks} replicas of DataParallel", ranks, found.get("replicas"), found.get("ours"), "processes",
                        "pictures/s")
            if kind is not LARGE and {"ours", PEER} <= found.keys():
                ends = [[curve[-1] for curve in job.curves[who]] for who in ("ours", PEER)]
                job.add(f", accuracy after {form.epochs} epochs", ranks, *ends, PEER, "%")
                outcome.notes.append(curves_text(job.curves))


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    measure_jobs(tools, outcome)
    return outcome
