"""launch: time to run programs that exit at once, `lockstep run` against torchrun in the best of its ways."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable, Mapping

from by_size import ways_text
from harness import BenchError, Contender, Outcome, Row, Samples, Tools, best_way, interleave, run
from peer_ways import Way, usual

ROUNDS, QUICK_ROUNDS = 20, 3
CASE = "two programs that exit at once"


def timed(command: Callable[[], list[str]]) -> Callable[[], Samples]:
    def once() -> Samples:
        line = command()
        start = time.perf_counter()
        run(line)
        return {CASE: [(time.perf_counter() - start) * 1e3]}

    return once


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def torchrun(tools: Tools, options: tuple[str, ...], what: str) -> list[str]:
    given = [str(free_port()) if option == "PORT" else option for option in options]
    return [str(tools.python), "-m", "torch.distributed.run", "--nproc_per_node", "2", *given, "--no-python", what]


def program() -> str:
    found = shutil.which("true")
    if found is None:
        raise BenchError("there is no program `true` in PATH")
    return found


def torchrun_ways(tools: Tools, ways: Mapping[str, Way]) -> dict[str, Contender]:
    return {name: timed(lambda options=way.options: torchrun(tools, options, program())) for name, way in ways.items()}


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    ways = torchrun_ways(tools, usual("torchrun"))
    contenders = {"ours": timed(lambda: tools.lockstep_run(2, program()))}
    if chosen := best_way(ways, outcome, "launch, ways of torchrun"):
        outcome.notes.append(ways_text("torchrun", chosen, str))
        contenders["torchrun"] = ways[chosen[CASE]]
    found = interleave(contenders, tools.choose_rounds(ROUNDS, QUICK_ROUNDS), outcome, "launch")
    if len(found) == 2:
        ours, peer = found["ours"][CASE], found["torchrun"][CASE]
        outcome.rows.append(Row("launch", CASE, None, 2, ours, peer, "torchrun", "ms"))
    return outcome
