"""init: 64 ranks of a torch-free program on one machine, from launch to the end of the first all-reduce, against MPIs
in the best of their ways; and the memory of a rank then, with 4 KiB pages for all. Then a program with LibTorch, whose
world is made from MPI's communicator, against the same program under `lockstep run`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

import peer_programs
from by_size import ways_text
from harness import BenchError, Contender, Outcome, Row, Samples, Tools, best_way, interleave, run
from peer_ways import START_WAYS
from workloads import SMALL_PAGES

RANKS = 64
PEERS = ["openmpi", "openmpi5", "mpich", "intelmpi"]
ROUNDS, WORLD_ROUNDS, QUICK_ROUNDS = 10, 5, 3
TIME, MEMORY = "launch to first all_reduce", "memory of a rank"
# Of init_process_group with LibTorch and the first all-reduce. The start of MPI itself is in the first alone.
WORLD_TIME = "launch to a world, with LibTorch"
WORLD_LAST = "from the last rank's call to a world"
WORLD_PROCESSOR = "processor time of a rank's call"


def timed(tools: Tools, command: Callable[[object], peer_programs.Command]) -> Callable[[], Samples]:
    def once() -> Samples:
        output = tools.scratch_file()
        line, environment = command(output)
        start = time.time()
        run(line, {**environment, **SMALL_PAGES}, timeout=120)
        report = json.loads(output.read_text(encoding="utf-8"))
        return {TIME: [(report["done_at"] - start) * 1e3], MEMORY: [report["bytes_per_rank"] / (1 << 20)]}

    return once


def each_in_its_way(ways: Mapping[str, Contender], chosen: Mapping[object, str]) -> Contender:
    """Measures time and memory, each in the way that was chosen for it."""

    def once() -> Samples:
        found = {way: ways[way]() for way in dict.fromkeys(chosen.values())}
        return {key: found[way][key] for key, way in chosen.items()}

    return once


def best_contender(tools: Tools, peer: str, outcome: Outcome) -> Contender | None:
    def command(way):
        return lambda output: peer_programs.mpi_command(tools, peer, RANKS, way, "init_mpi", output)

    ways = {name: timed(tools, command(way)) for name, way in START_WAYS[peer].items()}
    chosen = best_way(ways, outcome, f"init, ways of {peer}")
    if not chosen:
        return None
    outcome.notes.append(f"{RANKS} ranks: {ways_text(peer, chosen, str)}")
    return each_in_its_way(ways, chosen)


def world_timed(tools: Tools, command: Callable[[object], peer_programs.Command]) -> Contender:
    def once() -> Samples:
        output = tools.scratch_file()
        line, environment = command(output)
        start = time.time()
        run(line, {**environment, "OMP_NUM_THREADS": "1"}, timeout=240)
        report = json.loads(output.read_text(encoding="utf-8"))
        return {
            WORLD_TIME: [(report["done_at"] - start) * 1e3],
            WORLD_LAST: [(report["done_at"] - report["last_entered_at"]) * 1e3],
            WORLD_PROCESSOR: [report["processor_seconds"] * 1e3],
        }

    return once


def measure_worlds(tools: Tools, outcome: Outcome) -> None:
    """init_process_group(MPI_Comm), of the MPI that Lockstep was built with, beside the launcher's start."""
    try:
        program = tools.program("bench_init_world")
        mpi = peer_programs.debian_openmpi(tools)
    except BenchError as error:
        outcome.missing.append(f"init: worlds of an MPI communicator not measured: {error}")
        return
    shared_memory = START_WAYS["openmpi"]["shared memory alone"].environment
    contenders = {
        "communicator": world_timed(
            tools, lambda output: (mpi.command(RANKS, program, output, "communicator"), shared_memory)
        ),
        "launcher": world_timed(tools, lambda output: (tools.lockstep_run(RANKS, program, output, "variables"), {})),
    }
    found = interleave(contenders, tools.choose_rounds(WORLD_ROUNDS, QUICK_ROUNDS), outcome, "init, worlds")
    if len(found) < 2:
        return
    for case in (WORLD_TIME, WORLD_LAST, WORLD_PROCESSOR):
        ours, peer = found["communicator"][case], found["launcher"][case]
        outcome.rows.append(Row("init", case, None, RANKS, ours, peer, "our launcher", "ms"))


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    program = tools.program("bench_init_core")
    contenders = {"ours": timed(tools, lambda output: (tools.lockstep_run(RANKS, program, output), {}))}
    for peer in PEERS:
        if best := best_contender(tools, peer, outcome):
            contenders[peer] = best
    found = interleave(contenders, tools.choose_rounds(ROUNDS, QUICK_ROUNDS), outcome, "init")
    for case, unit in ((TIME, "ms"), (MEMORY, "MiB")):
        for peer in PEERS:
            if "ours" in found and peer in found:
                outcome.rows.append(Row("init", case, None, RANKS, found["ours"][case], found[peer][case], peer, unit))
    measure_worlds(tools, outcome)
    return outcome
