"""What it costs, while nobody dies, to be able to go on after a death, and to say who was where: programs that alternate
between with and without in one process, so that what slows the machine slows both."""

from __future__ import annotations

import json
import statistics

from comparison import interval_of_median
from harness import BenchError, Outcome, Row, Tools, run
from recovery_job import RANKS

TURNS, QUICK_TURNS = 40, 10  # of some steps
CALL_TURNS, QUICK_CALL_TURNS = 400, 100  # of some thousand calls
ELASTIC = "a step of ElasticTraining in which nobody dies"
SEEN = "an all-reduce of 4 bytes, recorded and with its place"


def in_turns(tools: Tools, program: str, turns: int) -> dict[str, list[float]]:
    """Seconds with and without; one value a turn."""
    output = tools.scratch_file()
    run(tools.lockstep_run(RANKS, tools.program(program), turns, output))
    return json.loads(output.read_text(encoding="utf-8"))


def note_difference(outcome: Outcome, case: str, found: dict[str, list[float]], scale: float, unit: str) -> None:
    differences = [(mine - theirs) * scale for mine, theirs in zip(found["with"], found["without"], strict=True)]
    low, high = interval_of_median(differences)
    share = statistics.median(differences) / statistics.median(found["without"]) / scale * 100
    outcome.notes.append(f"{case}: {statistics.median(differences):.3f} {unit} more [{low:.3f} .. {high:.3f}], "
                         f"{share:.2f} %")


def measure_costs(tools: Tools, outcome: Outcome) -> None:
    for case, program, turns, peer, scale, unit in (
        (ELASTIC, "bench_elastic_step", (TURNS, QUICK_TURNS), "a loop by hand", 1e3, "ms"),
        (SEEN, "bench_seen_calls", (CALL_TURNS, QUICK_CALL_TURNS), "the same without", 1e6, "us"),
    ):
        try:
            found = in_turns(tools, program, tools.choose(*turns))
        except BenchError as error:
            outcome.missing.append(f"recovery: {case} not measured: {error}")
            continue
        ours, theirs = ([value * scale for value in found[name]] for name in ("with", "without"))
        outcome.rows.append(Row("recovery", case, None, RANKS, ours, theirs, peer, unit))
        note_difference(outcome, case, found, scale, unit)
