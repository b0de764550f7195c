"""all_reduce: float32 SUM by size, through c10d against Gloo, and the core against MPIs, oneCCL and the machine's limit."""

from __future__ import annotations

from collections.abc import Callable

import peer_programs
from harness import Outcome, Row, Samples, Tools, interleave, read_samples, run

KI, MI = 1 << 10, 1 << 20
SIZES = [4, KI, 8 * KI, 64 * KI, MI, 4 * MI, 25 * MI, 100 * MI]
LIMIT_SIZES = [25 * MI, 100 * MI]
ROUNDS, QUICK_ROUNDS = 5, 2


def repetitions(size: int) -> int:
    """Repetitions in one round: about the same time for every size."""
    if size < MI:
        return 100
    return {MI: 31, 4 * MI: 21, 25 * MI: 9}.get(size, 5)


def plan(sizes: list[int]) -> str:
    return ",".join(f"{size}:{repetitions(size)}" for size in sizes)


def peer(tools: Tools, command: Callable, ranks: int) -> Callable[[], Samples]:
    def once() -> Samples:
        output = tools.scratch_file()
        line, environment = command(tools, ranks, "--plan", plan(SIZES), "--output", output)
        run(line, environment)
        return read_samples(output)

    return once


def ours(tools: Tools, program: str, memory: str, ranks: int, sizes: list[int]) -> Callable[[], Samples]:
    def once() -> Samples:
        output = tools.scratch_file()
        options = ["--memory", memory, "--plan", plan(sizes), "--output", output]
        run(tools.lockstep_run(ranks, tools.program(program), *options))
        return read_samples(output)

    return once


def microseconds(seconds: list[float]) -> list[float]:
    return [value * 1e6 for value in seconds]


def compare(outcome: Outcome, found: dict[str, Samples], case: str, ranks: int, peer_name: str) -> None:
    for size in SIZES:
        if size in found.get(case, {}) and size in found.get(peer_name, {}):
            mine, theirs = found[case][size], found[peer_name][size]
            outcome.rows.append(
                Row("all_reduce", case, size, ranks, microseconds(mine), microseconds(theirs), peer_name, "us")
            )


def compare_with_limit(outcome: Outcome, found: dict[str, Samples], ranks: int) -> None:
    """Bandwidths: an in-place all-reduce of n buffers moves 2nS bytes; the limit moves 3S/2 bytes per process."""
    for size in LIMIT_SIZES:
        if size in found.get("core-shared", {}) and size in found.get("limit", {}):
            mine = [2 * ranks * size / seconds / 1e9 for seconds in found["core-shared"][size]]
            limit = [3 * ranks * (size // 2) / seconds / 1e9 for seconds in found["limit"][size]]
            outcome.rows.append(
                Row("all_reduce", "core-shared", size, ranks, mine, limit, "limit", "GB/s", more_is_better=True)
            )


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    rounds = QUICK_ROUNDS if tools.quick else ROUNDS
    for ranks in tools.ranks:
        contenders = {
            "c10d-allocated": ours(tools, "bench_all_reduce_c10d", "allocated", ranks, SIZES),
            "gloo": peer(tools, peer_programs.gloo, ranks),
            "c10d-foreign": ours(tools, "bench_all_reduce_c10d", "foreign", ranks, SIZES),
        }
        found = interleave(contenders, rounds, outcome, f"all_reduce, {ranks} ranks")
        compare(outcome, found, "c10d-allocated", ranks, "gloo")
        compare(outcome, found, "c10d-foreign", ranks, "gloo")
    for ranks in tools.ranks:
        contenders = {
            "core-shared": ours(tools, "bench_all_reduce_core", "shared", ranks, SIZES),
            "openmpi": peer(tools, peer_programs.openmpi, ranks),
            "core-foreign": ours(tools, "bench_all_reduce_core", "foreign", ranks, SIZES),
        }
        if ranks == 2:
            contenders["intelmpi"] = peer(tools, peer_programs.intelmpi, ranks)
            contenders["oneccl"] = peer(tools, peer_programs.oneccl, ranks)
            contenders["limit"] = ours(tools, "bench_memory_limit", "private", ranks, LIMIT_SIZES)
        found = interleave(contenders, rounds, outcome, f"all_reduce, {ranks} ranks")
        for peer_name in ("openmpi", "intelmpi", "oneccl"):
            compare(outcome, found, "core-shared", ranks, peer_name)
        compare(outcome, found, "core-foreign", ranks, "openmpi")
        if ranks == 2:
            compare_with_limit(outcome, found, ranks)
    return outcome
