"""all_reduce: float32 SUM by size. Through c10d from C++ and from Python against PyTorch with Gloo, and the core against
MPIs, oneCCL and the machine's limit."""

from __future__ import annotations

from by_size import (
    MI, SIZES, add_rows, all_of, all_of_gloo, best_contender, mpi, ours, python, take_best_of_gloo,
)
from harness import Outcome, Tools, interleave
from report import size_text

LIMIT_SIZES = [25 * MI, 100 * MI]
ROUNDS, QUICK_ROUNDS = 9, 3
PEERS = ["openmpi", "openmpi5", "mpich", "intelmpi", "oneccl"]
# Ours from torch.distributed: case, tensors from the backend ("shared") or any others ("private").
FROM_PYTHON = {"python-shared": "shared", "python-private": "private"}
FROM_CPP = {"c10d-shared": "shared", "c10d-private": "private"}


def measure_c10d(tools: Tools, ranks: int, rounds: int, outcome: Outcome) -> None:
    what = f"all_reduce, {ranks} ranks"
    program = "bench_all_reduce_c10d"
    contenders = {case: all_of(ours(tools, program, memory, ranks), SIZES) for case, memory in FROM_CPP.items()}
    contenders |= {case: all_of(python(tools, "lockstep", memory, ranks), SIZES) for case, memory in FROM_PYTHON.items()}
    contenders |= all_of_gloo(tools, ranks, SIZES)
    found = interleave(contenders, rounds, outcome, what)
    take_best_of_gloo(found, outcome, what)
    for case in FROM_PYTHON:
        add_rows(outcome, found, "all_reduce", case, "gloo", ranks, "Python")
    for case in FROM_CPP:
        add_rows(outcome, found, "all_reduce", case, "gloo", ranks)


def measure_core(tools: Tools, ranks: int, rounds: int, outcome: Outcome) -> None:
    what = f"all_reduce, {ranks} ranks"
    contenders = {
        f"core-{memory}": all_of(ours(tools, "bench_all_reduce_core", memory, ranks), SIZES)
        for memory in ("shared", "private")
    }
    contenders["limit"] = all_of(ours(tools, "bench_memory_limit", "private", ranks), LIMIT_SIZES)
    for peer in PEERS:
        source = "all_reduce_oneccl" if peer == "oneccl" else "all_reduce_mpi"
        best = best_contender(
            peer, lambda way, peer=peer, source=source: mpi(tools, peer, ranks, way, source), SIZES, outcome, what, size_text
        )
        if best:
            contenders[peer] = best
    found = interleave(contenders, rounds, outcome, what)
    for case in ("core-shared", "core-private"):
        for peer in [*PEERS, "limit"]:
            add_rows(outcome, found, "all_reduce", case, peer, ranks)


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    rounds = tools.choose_rounds(ROUNDS, QUICK_ROUNDS)
    for ranks in tools.ranks:
        measure_c10d(tools, ranks, rounds, outcome)
        measure_core(tools, ranks, rounds, outcome)
    return outcome
