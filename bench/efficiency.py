"""efficiency: what communication, and waiting for the slower rank, cost in a step of the reference job. Steps with and
without communication take turns in the same processes, which shows differences that the machine's noise hides from `train`."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass

from harness import Outcome, Row, Samples, Tools, interleave, run

ROUNDS, QUICK_ROUNDS = 3, 1


@dataclass(frozen=True)
class Form:
    """A form of the reference job, as in `train`."""

    side: int
    batch: int  # of each rank
    pairs: int  # of steps, in a round


FORMS = (Form(side=224, batch=8, pairs=24), Form(side=64, batch=16, pairs=60))


@dataclass(frozen=True)
class Pair:
    """Milliseconds of two steps that follow each other."""

    synchronised: float  # of the slowest rank
    slowest: float  # of the ranks that do not communicate
    mean: float  # of those

    @staticmethod
    def of(seconds: list[list[float]]) -> Pair:
        """By kind and rank, as the program writes them."""
        synchronised, alone = seconds
        return Pair(1e3 * max(synchronised), 1e3 * max(alone), 1e3 * statistics.mean(alone))


def pairs_of(tools: Tools, form: Form, ranks: int) -> list[Pair]:
    output = tools.scratch_file()
    run(tools.lockstep_run(ranks, tools.program("bench_efficiency"), "--pairs", form.pairs, "--side", form.side, "--batch",
                           form.batch, "--output", output))
    return [Pair.of(seconds) for seconds in json.loads(output.read_text(encoding="utf-8"))]


def note(form: Form, ranks: int, pairs: list[Pair]) -> str:
    """By sums, which also have the steps in which the machine stalled a rank; the medians of the rows do not."""
    alone, slowest, together = (sum(values) for values in zip(
        *((pair.mean, pair.slowest, pair.synchronised) for pair in pairs), strict=True))
    return (f"{form.side} px, {ranks} ranks: all steps together, stalls of a rank included: {100 * alone / together:.1f} % of the "
            f"mean of the ranks, {100 * slowest / together:.1f} % of the slowest")


def add_rows(outcome: Outcome, form: Form, ranks: int, pairs: list[Pair]) -> None:
    mine = [pair.synchronised for pair in pairs]
    limits = {"communication": [pair.slowest for pair in pairs], "communication and waiting": [pair.mean for pair in pairs]}
    outcome.rows += [Row("efficiency", f"{form.side} px, {what}", None, ranks, mine, limit, "limit", "ms")
                     for what, limit in limits.items()]
    outcome.notes.append(note(form, ranks, pairs))


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    rounds = tools.choose_rounds(ROUNDS, QUICK_ROUNDS)
    for ranks in tools.ranks:
        for form in FORMS:
            pairs: list[Pair] = []

            def once(form=form, ranks=ranks, pairs=pairs) -> Samples:
                pairs += pairs_of(tools, form, ranks)
                return {None: [pairs[-1].synchronised]}

            interleave({"ours": once}, rounds, outcome, f"efficiency {form.side} px, {ranks} ranks")
            if pairs:
                add_rows(outcome, form, ranks, pairs)
    return outcome
