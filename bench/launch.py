"""launch: time to run programs that exit at once, `lockstep run` against torchrun in the best of its ways."""

from __future__ import annotations

import dataclasses
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from by_size import ways_text
from harness import BenchError, Contender, Outcome, Row, Samples, Tools, best_way, interleave, run
from peer_ways import Way, usual

ROUNDS, QUICK_ROUNDS = 20, 3
KEY = {"LOCKSTEP_JOB_KEY": "of the bench"}


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    workers: int  # on each node
    nodes: int = 1


TWO = Case("two programs that exit at once", 2)
# The nodes are launchers on this machine, which meet at a loopback address.
CASES = (TWO, Case("64 programs", 64), Case("4 nodes with 2 programs each", 2, nodes=4))


def timed(case: Case, commands: Callable[[], list[list[str]]]) -> Callable[[], Samples]:
    def once() -> Samples:
        lines = commands()
        with ThreadPoolExecutor(len(lines)) as launchers:
            start = time.perf_counter()
            list(launchers.map(lambda line: run(line, KEY), lines))
            return {case.name: [(time.perf_counter() - start) * 1e3]}

    return once


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def over_nodes(case: Case) -> list[list[str]]:
    """The options of each node's launcher; ours and torchrun's are the same."""
    meeting = ["--nnodes", str(case.nodes), "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "bench"]
    return [[*meeting, "--rdzv-backend", "c10d", "--node-rank", str(node)] for node in range(case.nodes)]


def ours(tools: Tools, case: Case, what: str) -> list[list[str]]:
    if case.nodes == 1:
        return [tools.lockstep_run(case.workers, what)]
    launcher = [str(tools.program("lockstep")), "run", "--nproc-per-node", str(case.workers)]
    return [[*launcher, *options, what] for options in over_nodes(case)]


def torchrun(tools: Tools, case: Case, way: tuple[str, ...], what: str) -> list[list[str]]:
    launcher = [str(tools.python), "-m", "torch.distributed.run", "--nproc_per_node", str(case.workers)]
    if case.nodes == 1:
        given = [str(free_port()) if option == "PORT" else option for option in way]
        return [[*launcher, *given, "--no-python", what]]
    return [[*launcher, *options, "--no-python", what] for options in over_nodes(case)]


def program() -> str:
    found = shutil.which("true")
    if found is None:
        raise BenchError("there is no program `true` in PATH")
    return found


def torchrun_ways(tools: Tools, ways: Mapping[str, Way]) -> dict[str, Contender]:
    return {
        name: timed(TWO, lambda options=way.options: torchrun(tools, TWO, options, program()))
        for name, way in ways.items()
    }


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    ways = usual("torchrun")
    chosen = best_way(torchrun_ways(tools, ways), outcome, "launch, ways of torchrun")
    if chosen:
        outcome.notes.append(ways_text("torchrun", chosen, str))
    for case in CASES:
        contenders = {"ours": timed(case, lambda case=case: ours(tools, case, program()))}
        if chosen:
            way = ways[chosen[TWO.name]].options
            contenders["torchrun"] = timed(case, lambda case=case: torchrun(tools, case, way, program()))
        # torchrun takes seconds for many programs.
        rounds = ROUNDS if case == TWO else ROUNDS // 4
        found = interleave(contenders, tools.choose_rounds(rounds, QUICK_ROUNDS), outcome, f"launch, {case.name}")
        if len(found) == 2:
            samples = (found["ours"][case.name], found["torchrun"][case.name])
            outcome.rows.append(Row("launch", case.name, None, case.workers * case.nodes, *samples, "torchrun", "ms"))
    return outcome
