"""./dev bench tune PEER: measures all ways of using a peer (peer_ways.py), interleaved, against the first one.

bench/peers/README.md has the tables. A way that wins somewhere belongs among those that a bench chooses from.
"""

from __future__ import annotations

import statistics
from functools import partial

import ddp_step
import launch
import loader
import train
import workloads
from by_size import SIZES, all_of, mpi, python
from comparison import compare
from harness import Contender, Outcome, Tools, interleave
from machine import Machine
from peer_ways import WAYS, Way
from report import factor, in_short, heading, markdown_table, number, size_text

ROUNDS, QUICK_ROUNDS = 6, 2
RANKS = 2


def mpi_ways(tools: Tools, peer: str) -> dict[str, Contender]:
    source = "all_reduce_oneccl" if peer == "oneccl" else "all_reduce_mpi"
    ways = {name: way for name, way in WAYS[peer].items() if way.all_reduce}
    return {name: all_of(mpi(tools, peer, RANKS, way, source), SIZES) for name, way in ways.items()}


def gloo_ways(tools: Tools, peer: str) -> dict[str, Contender]:
    return {name: all_of(python(tools, "gloo", "private", RANKS, way), SIZES) for name, way in WAYS[peer].items()}


def pytorch_ways(tools: Tools, peer: str) -> dict[str, Contender]:
    """Each way with all workloads."""

    def all_workloads(way: Way) -> Contender:
        steps = ddp_step.SEARCH_STEPS
        each = [ddp_step.in_python(tools, "gloo", name, RANKS, way, steps[name]) for name in workloads.NAMES]
        return lambda: {key: values for once in each for key, values in once().items()}

    return {name: all_workloads(way) for name, way in WAYS[peer].items()}


def loader_ways(tools: Tools, peer: str) -> dict[str, Contender]:
    """Each way with the pipelines that the peer has."""
    bench = loader.Bench(tools)
    folder, _ = loader.images(tools)

    def both(way: Way) -> Contender:
        each = {name: bench.rates(peer, folder, name, 2, way) for name, who in loader.PIPELINES.items() if peer in who}
        return lambda: {name: once()[None] for name, once in each.items()}

    return {name: both(way) for name, way in WAYS[peer].items()}


def launcher_ways(tools: Tools, peer: str) -> dict[str, Contender]:
    search = {"torchrun": launch.torchrun_ways, "torchmonarch": launch.monarch_ways}
    return search[peer](tools, WAYS[peer])


def job_ways(tools: Tools, peer: str) -> dict[str, Contender]:
    """Each way with both sizes."""
    each = [train.python_ways(tools, RANKS, WAYS[peer], form) for form in train.SHORT.values()]
    return {name: lambda name=name: {key: rates for ways in each for key, rates in ways[name]().items()} for name in WAYS[peer]}


KINDS = {"gloo": gloo_ways, "pytorch": pytorch_ways, "torchrun": launcher_ways,
         "torchmonarch": launcher_ways, "pytorch-job": job_ways,
         **dict.fromkeys(("torchvision", "dali", "spdl", "datago"), loader_ways)}
PEERS = {peer: partial(KINDS.get(peer, mpi_ways), peer=peer) for peer in WAYS}


def key_text(key: object) -> str:
    return size_text(key) if isinstance(key, int) else str(key)


def table(peer: str, found: dict[str, dict], more_is_better: bool) -> str:
    """The first way's median for each key; then each way's ratio to it (above 1: faster than the first way)."""
    first = next((name for name in WAYS[peer] if name in found), None)
    if first is None:
        return "nothing measured\n"
    keys = list(found[first])
    scale, unit = (1, "images/s") if more_is_better else (1e6, "us") if isinstance(keys[0], int) else (1, "ms")
    ratios = {
        name: {key: compare(found[name][key], found[first][key], more_is_better) for key in keys if key in found[name]}
        for name in found
    }
    best = {key: max(found, key=lambda name, key=key: ratios[name][key].ratio if key in ratios[name] else 0) for key in keys}
    lines = [[f"{peer}: way", *map(key_text, keys), "why"]]
    medians = [statistics.median(found[first][key]) * scale for key in keys]
    lines.append([f"{first}, {unit}", *map(number, medians), WAYS[peer][first].reason])
    for name in found:
        cells = []
        for key in keys:
            one = ratios[name].get(key)
            text = f"{factor(one.ratio)}x [{factor(one.low)} .. {factor(one.high)}]" if one else ""
            cells.append(f"**{text}**" if best[key] == name else text)
        if name != first:
            lines.append([name, *cells, WAYS[peer][name].reason])
    return markdown_table(lines)


def measure(tools: Tools, peer: str, here: Machine, command: str) -> tuple[str, list[str]]:
    """The text of a block for the pages (page_blocks.py), and messages about what could not be measured."""
    rounds = tools.choose_rounds(ROUNDS, QUICK_ROUNDS)
    outcome = Outcome()
    found = interleave(PEERS[peer](tools), rounds, outcome, f"tune {peer}")
    head = [*heading(command, here, str(rounds)),
            f"- {RANKS} ranks or workers. Above 1: faster than the first way. Bold: the best"]
    head += [f"- Not measured: {in_short(message)}" for message in outcome.missing]
    return "\n".join(head) + "\n\n" + table(peer, found, PEERS[peer].func in (loader_ways, job_ways)), outcome.missing
