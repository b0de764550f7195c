"""launch: time to run programs that exit at once, `lockstep run` against torchrun."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable

from harness import BenchError, Outcome, Row, Samples, Tools, interleave, run

ROUNDS, QUICK_ROUNDS = 20, 3
CASE = "two programs that exit at once"


def timed(command: list[str]) -> Callable[[], Samples]:
    def once() -> Samples:
        start = time.perf_counter()
        run(command)
        return {CASE: [(time.perf_counter() - start) * 1e3]}

    return once


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    program = shutil.which("true")
    if program is None:
        raise BenchError("there is no program `true` in PATH")
    contenders = {
        "ours": timed(tools.lockstep_run(2, program)),
        "torchrun": timed(tools.torchrun(2, "--no-python", program)),
    }
    found = interleave(contenders, tools.choose_rounds(ROUNDS, QUICK_ROUNDS), outcome, "launch")
    if len(found) == 2:
        ours, peer = found["ours"][CASE], found["torchrun"][CASE]
        outcome.rows.append(Row("launch", CASE, None, 2, ours, peer, "torchrun", "ms"))
    return outcome
