"""Contenders that measure an operation for a list of sizes, and the choice of a peer's best way for each size."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping

import peer_programs
from harness import Contender, Outcome, Row, Samples, Tools, best_way, read_samples, run
from peer_ways import Way, usual
from report import size_text

KI, MI = 1 << 10, 1 << 20
SIZES = [4, KI, 8 * KI, 64 * KI, MI, 4 * MI, 25 * MI, 100 * MI]
NO_WAY = Way("no choice")
Sized = Callable[[list[int]], Samples]  # measures these sizes once; seconds by size


def repetitions(size: int) -> int:
    """Repetitions in one round: about the same time for every size, from 4 MiB on less."""
    if size < MI:
        return 100
    return {MI: 31, 4 * MI: 21, 25 * MI: 9}.get(size, 5)


def plan(sizes: list[int]) -> str:
    return ",".join(f"{size}:{repetitions(size)}" for size in sizes)


def ours(tools: Tools, program: str, memory: str, ranks: int) -> Sized:
    def once(sizes: list[int]) -> Samples:
        output = tools.scratch_file()
        options = ["--memory", memory, "--plan", plan(sizes), "--output", output]
        run(tools.lockstep_run(ranks, tools.program(program), *options))
        return read_samples(output)

    return once


def mpi(tools: Tools, peer: str, ranks: int, way: Way, source: str, operation: str = "") -> Sized:
    def once(sizes: list[int]) -> Samples:
        output = tools.scratch_file()
        memory = f"{way.memory}:{operation}" if operation else way.memory
        options = ["--memory", memory, "--plan", plan(sizes), "--output", output]
        run(*peer_programs.mpi_command(tools, peer, ranks, way, source, *options), timeout=120)
        return read_samples(output)

    return once


def python(tools: Tools, backend: str, memory: str, ranks: int, way: Way = NO_WAY, operations: str = "all_reduce") -> Sized:
    """Keys are (operation, size), or only sizes for one operation."""

    def once(sizes: list[int]) -> Samples:
        output = tools.scratch_file()
        options = ["--memory", memory, "--operation", operations, "--plan", plan(sizes), "--output", output]
        run(*peer_programs.python_command(tools, backend, ranks, way, *options))
        lines = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
        if "," in operations:
            return {(line["operation"], line["bytes"]): line["seconds"] for line in lines}
        return {line["bytes"]: line["seconds"] for line in lines}

    return once


def all_of(sized: Sized, sizes: list[int]) -> Contender:
    return lambda: sized(sizes)


def all_of_gloo(tools: Tools, ranks: int, sizes: list[int], operations: str = "all_reduce") -> dict[str, Contender]:
    """A contender for each of Gloo's ways. On cores that its threads share with the ranks its times have several levels: a
    search of a few runs would take the lucky way. So the rounds have all ways, and a row the one with the best median."""
    return {f"gloo {name}": all_of(python(tools, "gloo", "private", ranks, way, operations), sizes)
            for name, way in usual("gloo").items()}


def best_of_gloo(found: Mapping[str, Samples]) -> dict[object, str]:
    """For each row the name of the way with the least median."""
    ways = [name for name in found if name.startswith("gloo ")]
    keys = {key: None for way in ways for key in found[way]}
    return {key: min((way for way in ways if key in found[way]), key=lambda way: statistics.median(found[way][key]))
            for key in keys}


def take_best_of_gloo(found: dict[str, Samples], outcome: Outcome, what: str) -> None:
    """Puts the best way for each size into `found` as "gloo", and says which they are."""
    chosen = best_of_gloo(found)
    if not chosen:
        return
    found["gloo"] = {key: found[way][key] for key, way in chosen.items()}
    names = {key: way.removeprefix("gloo ") for key, way in chosen.items()}
    outcome.notes.append(f"{what}: {ways_text('gloo', names, size_text)}")


def rows_by_way(chosen: Mapping[object, str]) -> dict[str, list[object]]:
    return {way: [key for key in chosen if chosen[key] == way] for way in dict.fromkeys(chosen.values())}


def each_in_its_way(ways: Mapping[str, Sized], chosen: Mapping[object, str]) -> Contender:
    """Measures each size in the way that was chosen for it."""

    def once() -> Samples:
        samples: Samples = {}
        for way in dict.fromkeys(chosen.values()):
            samples |= ways[way]([size for size in chosen if chosen[size] == way])
        return samples

    return once


def ways_text(peer: str, chosen: Mapping[object, str], name_of: Callable[[object], str]) -> str:
    """'openmpi: default (4 B, 1 KiB), ring (25 MiB)'."""
    keys_of = {way: [name_of(key) for key in chosen if chosen[key] == way] for way in dict.fromkeys(chosen.values())}
    parts = [f"{way} ({', '.join(keys)})" for way, keys in keys_of.items()]
    return f"{peer}, best of its ways: {', '.join(parts)}"


def best_contender(
    peer: str, sized: Callable[[Way], Sized], sizes: list[int], outcome: Outcome, what: str,
    name_of: Callable[[object], str], collective: bool = False, passes: int = 3,
) -> Contender | None:
    """The peer with the best of its ways for each size; None when no way works. `collective`: only of the ways that
    matter to operations other than all-reduce. `passes`: of the search."""
    ways = {name: sized(way) for name, way in usual(peer).items() if (way.collective if collective else way.all_reduce)}
    if len(ways) == 1:
        return all_of(next(iter(ways.values())), sizes)
    tried = {name: all_of(way, sizes) for name, way in ways.items()}
    chosen = best_way(tried, outcome, f"{what}, ways of {peer}", passes=passes)
    if not chosen:
        return None
    outcome.notes.append(f"{what}: {ways_text(peer, chosen, name_of)}")
    return each_in_its_way(ways, chosen)


def add_rows(
    outcome: Outcome, found: Mapping[str, Samples], bench: str, case: str, peer: str, ranks: int, language: str = "C++"
) -> None:
    """A row in microseconds for each size that both have."""
    for size in SIZES:
        if size in found.get(case, {}) and size in found.get(peer, {}):
            mine, theirs = ([seconds * 1e6 for seconds in found[who][size]] for who in (case, peer))
            outcome.rows.append(Row(bench, case, size, ranks, mine, theirs, peer, "us", language=language))
