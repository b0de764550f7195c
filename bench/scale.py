"""scale: all-reduces, training steps and the loader by the number of ranks or threads, against Open MPI (from C++), Gloo and
PyTorch (from Python) and torchvision with as many of them, independent processes, and as many times one thread.

A run ends within SECONDS on any machine: each part has a share of the time that is left, and as many rounds as fit. With
--rounds it takes the time that these need.
"""

from __future__ import annotations

import math
import os
import time
from functools import partial
from pathlib import Path

import ddp_step
import loader
import workloads
from by_size import KI, MI, add_rows, all_of, all_of_gloo, best_contender, mpi, ours, python, take_best_of_gloo
from harness import BenchError, Contender, Outcome, Row, Tools, interleave
from peer_ways import WAYS
from report import size_text

RANKS = [1, 2, 4, 8, 16]
SIZES = [4, 8 * KI, 64 * KI, MI, 25 * MI, 100 * MI]
MPI = "openmpi5"
MEMORIES = ("shared", "private")  # memory of the group, as the buckets of DDP, or any other
STEPS = {"mlp-6M": 20, "cnn-28": 50}  # large gradients, and small ones
LAYOUT, PYTORCH_WAY = "channels last", "fused, static, channels last"  # which both sides' searches choose; no matter to the MLP
PIPELINE, TORCHVISION_WAY = "reference", "PIL, one turn"
PICTURES = 256  # of each thread: eight batches, so that the last one is a small part
ROUNDS, QUICK_ROUNDS = 6, 2
SECONDS, QUICK_SECONDS = 500, 150  # beside what measures the machine's noise
ALL_REDUCE_WEIGHT, ALONE_WEIGHT, WEIGHT = 4, 1, 2  # of the parts' shares: what one round costs; all_reduce has a search too


def cores() -> int:
    return len(os.sched_getaffinity(0))


def default_ranks() -> list[int]:
    return [ranks for ranks in RANKS if ranks <= cores()]


class SoonStarted(Tools):
    """Starts the peers' Python ranks by `lockstep run` instead of torchrun, a second or two sooner. It pins them alike, and
    no start is timed."""

    def torchrun_pinned(self, ranks: int, script: Path, *arguments: object) -> list[str]:
        return self.lockstep_run(ranks, self.python, script, *arguments)


class Bench:
    def __init__(self, tools: Tools) -> None:
        self.tools = SoonStarted(**vars(tools))
        self.outcome = Outcome()
        self.rounds = tools.choose_rounds(ROUNDS, QUICK_ROUNDS)

    def all_reduce(self, ranks: int, until: float) -> None:
        what = f"all_reduce, {ranks} ranks"
        contenders = {f"C++ {memory}": all_of(ours(self.tools, "bench_all_reduce_core", memory, ranks), SIZES)
                      for memory in MEMORIES}
        contenders |= {f"Python {memory}": all_of(python(self.tools, "lockstep", memory, ranks), SIZES)
                       for memory in MEMORIES}
        contenders |= all_of_gloo(self.tools, ranks, SIZES)
        if best := best_contender(MPI, lambda way: mpi(self.tools, MPI, ranks, way, "all_reduce_mpi"), SIZES, self.outcome,
                                  what, size_text, passes=1):
            contenders[MPI] = best
        found = interleave(contenders, self.rounds, self.outcome, what, until)
        take_best_of_gloo(found, self.outcome, what)
        for language, peer in (("C++", MPI), ("Python", "gloo")):
            for memory in MEMORIES:
                pair = {f"all_reduce, {memory}": found.get(f"{language} {memory}", {}), peer: found.get(peer, {})}
                add_rows(self.outcome, pair, "scale", f"all_reduce, {memory}", peer, ranks, language)

    def step(self, workload: str, ranks: int, until: float) -> None:
        steps = STEPS[workload]
        contenders = {
            name: ddp_step.contender(self.tools, workloads.our_command, mode, workload, ranks, ddp_step.LAYOUTS[LAYOUT], steps)
            for name, mode in (("limit", "together"), ("ours", "ddp"))
        }
        if ranks > 1:
            way = WAYS["pytorch"][PYTORCH_WAY]
            contenders["pytorch"] = ddp_step.in_python(self.tools, "gloo", workload, ranks, way, steps)
        self.compare(f"ddp_step {workload}", contenders, workload, ranks, until, "ms")

    def load(self, threads: int, until: float) -> None:
        """Cores that are not there give no rate."""
        bench = loader.Bench(self.tools)
        rate = partial(bench.rates, folder=self.pictures(threads), pipeline=PIPELINE, workers=threads)
        way = WAYS["torchvision"][TORCHVISION_WAY]
        contenders = {"ours": rate("fast"), "torchvision": rate("torchvision", way=way)}
        if threads > 1:
            one = bench.rates("fast", self.pictures(1), PIPELINE, 1)
            contenders["limit"] = lambda: {None: [min(threads, cores()) * value for value in one()[None]]}
        self.compare("loader", contenders, None, threads, until, "images/s")

    def compare(
        self, case: str, contenders: dict[str, Contender], key: str | None, ranks: int, until: float, unit: str
    ) -> None:
        found = interleave(contenders, self.rounds, self.outcome, f"{case}, {ranks} ranks", until)
        values = {name: samples[key] for name, samples in found.items()}
        mine = values.pop("ours", None)
        for peer, theirs in values.items() if mine else ():
            self.outcome.rows.append(Row("scale", case, None, ranks, mine, theirs, peer, unit,
                                         more_is_better=unit == "images/s"))

    def pictures(self, threads: int) -> Path:
        """A folder with as many pictures for each thread, all links to the same ones."""
        whole, _ = loader.images(self.tools)
        folder = self.tools.scratch / f"images-{threads}"
        if not folder.exists():
            files = sorted(whole.glob("*/*.jpg"))
            for number in range(PICTURES * threads):
                file = files[number % len(files)]
                link = folder / file.parent.name / f"{number}.jpg"
                link.parent.mkdir(parents=True, exist_ok=True)
                os.link(file, link)
        return folder


def measure(tools: Tools) -> Outcome:
    bench = Bench(tools)
    parts = []
    for ranks in sorted(tools.ranks):
        if ranks > 1:
            parts.append((ALL_REDUCE_WEIGHT, partial(bench.all_reduce, ranks)))
        weight = WEIGHT if ranks > 1 else ALONE_WEIGHT
        parts += [(weight, partial(bench.step, workload, ranks)) for workload in STEPS]
        parts.append((weight, partial(bench.load, ranks)))
    end = math.inf if tools.rounds else time.monotonic() + (QUICK_SECONDS if tools.quick else SECONDS)
    left = sum(weight for weight, _ in parts)
    for weight, part in parts:
        now = time.monotonic()
        try:
            part(until=now + (end - now) * weight / left)
        except BenchError as error:
            bench.outcome.missing.append(f"scale: {error}")
        left -= weight
    bench.outcome.notes.append(
        f"pytorch is '{PYTORCH_WAY}', torchvision '{TORCHVISION_WAY}', "
        f"without a search; our layout is {LAYOUT}. The limit of a step is that of as many independent processes, the limit of "
        "the loader as many "
        "times one thread as there are threads and cores")
    return bench.outcome
