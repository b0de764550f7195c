"""A training that outlives its ranks (ElasticTraining): from SIGKILL of a rank until all ranks have done their next step,
with a newcomer and without, beside the same training of PyTorch, which torchrun starts again from its checkpoint."""

from __future__ import annotations

import os
import random
import signal
import statistics
import time

from comparison import SEED
from harness import HERE, BenchError, Outcome, Row, Tools
from launch import free_port
from peer_ways import usual
from recovery_job import (
    KILLED,
    PATIENCE,
    PEER_KILLS,
    QUICK_PEER_KILLS,
    RANKS,
    STEADY,
    Job,
    killed,
    torchrun,
)

LONGEST_QUIET_STEP = 0.1  # second, with the hash of its weights
NEXT_STEP_AIM_MS = 150
REPLACED = "a rank is killed, a newcomer takes its place, and all have done their next step"
FEWER = "a rank is killed, and the others have done their next step"
REPLACEMENTS, QUICK_REPLACEMENTS = 100, 10
FEWER_RANKS, FEWER_JOBS, QUICK_FEWER_JOBS = 3, 15, 2  # of two kills each


class Training:
    """A training that outlives its ranks, without a launcher."""

    def __init__(self, tools: Tools, job: Job, ranks: int, *, newcomers: bool, steps: int = 0) -> None:
        self.tools, self.job, self.ranks, self.steps = tools, job, ranks, steps
        self.port = str(free_port())
        self.newcomers = str(job.folder / "newcomers") if newcomers else "none"
        self.living = list(range(ranks))
        self.next = ranks
        for number in self.living:
            self.launch(number)
        self.pids = {number: report["pid"] for number, report in zip(self.living, job.wait_for(1, self.living))}

    def launch(self, number: int) -> None:
        self.job.launch([str(self.tools.program("bench_recovery_training")), self.newcomers, str(self.steps)],
                        {"RANK": str(number), "WORLD_SIZE": str(self.ranks), "MASTER_ADDR": "127.0.0.1",
                         "MASTER_PORT": self.port})

    def add_newcomer(self) -> None:
        """Until it waits. The ranks stop meanwhile, so the training is short enough to be repeated without a death."""
        for number in self.living:
            os.kill(self.pids[number], signal.SIGSTOP)
        self.launch(self.next)
        self.pids[self.next] = self.job.wait_for(1, [self.next])[0]["pid"]
        self.next += 1
        time.sleep(0.3)
        for number in self.living:
            os.kill(self.pids[number], signal.SIGCONT)

    def kill(self, victim: int) -> tuple[float, dict[str, float], set[tuple[int, str]]]:
        """Milliseconds until all ranks have done a step, and of each part of the recovery, on the slowest rank. The numbers
        of the ranks' steps, with their weights."""
        self.living.remove(victim)
        expected = {number: len(self.job.reports(number)) + 1 for number in self.living}
        if self.newcomers != "none":
            self.living.append(self.next - 1)
            expected[self.next - 1] = 2  # the first one says that it waits
        start = time.time()
        os.kill(self.pids[victim], signal.SIGKILL)
        done = [self.job.wait_for(count, [number])[0] for number, count in expected.items()]
        ends = {part: max(report[part] for report in done) for part in ("noticed", "met", "has_state", "rebuilt", "done_at")}
        parts, before = {}, start
        for part, end in ends.items():
            if end > 0:
                parts[part] = (end - before) * 1e3
                before = end
        return (ends["done_at"] - start) * 1e3, parts, {(report["step"], report["weights"]) for report in done}


def quiet_weights(tools: Tools, steps: int) -> set[tuple[int, str]]:
    """After each step, without a death."""
    with Job(tools) as job:
        training = Training(tools, job, RANKS, newcomers=False, steps=steps)
        job.wait_for(steps, training.living, PATIENCE + steps * LONGEST_QUIET_STEP)
        return {(report["step"], report["weights"]) for report in job.reports(0)}


def killed_under_torchrun(tools: Tools, outcome: Outcome) -> list[float]:
    """Milliseconds until all ranks of the same training in PyTorch have done a step, from its checkpoint: the best way."""
    script, kills = str(HERE / "peers" / "recovery_training.py"), tools.choose(PEER_KILLS, QUICK_PEER_KILLS)
    found: dict[str, list[float]] = {}
    for name, way in list(usual("torchrun").items())[: 1 if tools.quick else None]:
        try:
            found[name] = killed(tools, torchrun(tools, way.options, tools.python, script), kills)[KILLED]
        except BenchError as error:
            outcome.missing.append(f"recovery, {REPLACED}: torchrun {name} not measured: {error}")
    if not found:
        return []
    best = min(found, key=lambda name: statistics.median(found[name]))
    outcome.notes.append(f"{REPLACED}: torchrun, {kills} kills for each of {len(found)} ways, best: {best}")
    return found[best]


def measure_next_step(tools: Tools, outcome: Outcome) -> None:
    order = random.Random(SEED)
    times: dict[str, list[float]] = {REPLACED: [], FEWER: []}
    parts: dict[str, list[dict[str, float]]] = {REPLACED: [], FEWER: []}
    weights: list[set[tuple[int, str]]] = []  # of each kill with a newcomer; with fewer ranks they are others

    def kill(training: Training, case: str) -> None:
        time.sleep(order.uniform(*STEADY))
        whole, of_parts, of_weights = training.kill(order.choice(training.living))
        times[case].append(whole)
        parts[case].append(of_parts)
        if case == REPLACED:
            weights.append(of_weights)

    with Job(tools) as job:
        training = Training(tools, job, RANKS, newcomers=True)
        for _ in range(tools.choose_rounds(REPLACEMENTS, QUICK_REPLACEMENTS)):
            training.add_newcomer()
            kill(training, REPLACED)
    for _ in range(tools.choose_rounds(FEWER_JOBS, QUICK_FEWER_JOBS)):
        with Job(tools) as job:
            training = Training(tools, job, FEWER_RANKS, newcomers=False)
            for _ in range(FEWER_RANKS - 1):
                kill(training, FEWER)
    names = {"noticed": "noticing", "met": "meeting", "has_state": "state", "rebuilt": "rebuild", "done_at": "step"}
    for case, ranks in ((REPLACED, RANKS), (FEWER, FEWER_RANKS)):
        outcome.rows.append(Row("recovery", case, None, ranks, times[case], [NEXT_STEP_AIM_MS], "the aim", "ms"))
        medians = {name: [one[part] for one in parts[case] if part in one] for part, name in names.items()}
        text = ", ".join(f"{name} {statistics.median(values):,.1f}" for name, values in medians.items() if values)
        outcome.notes.append(f"{case}: {len(times[case])} times, the slowest in {max(times[case]):,.0f} ms; medians of the "
                             f"parts in ms: {text}")
    right = quiet_weights(tools, 1 + max(step for of_one in weights for step, _ in of_one))
    case = f"recoveries to the weights of a quiet run, bit for bit, of {len(times[REPLACED])}"
    outcome.rows.append(Row("recovery", case, None, RANKS, [sum(of_one <= right for of_one in weights)],
                            [len(times[REPLACED])], "all", "", more_is_better=True))
    if theirs := killed_under_torchrun(tools, outcome):
        outcome.rows.append(Row("recovery", REPLACED, None, RANKS, times[REPLACED], [statistics.median(theirs)], "torchrun",
                                "ms"))
