"""collectives: every collective by size, through torch.distributed from Python against Gloo, and the core against MPIs.

`case` is the operation's name. From Python, the suffix "-shared" means tensors that the backend has allocated
(allocate_tensor); without it, any tensors. For the core, the suffix "-private" means any memory; without it, memory of
the group.
"""

from __future__ import annotations

from by_size import (
    KI, MI, add_rows, all_of, all_of_gloo, best_contender, best_of_gloo, mpi, ours, python, rows_by_way,
)
from harness import Outcome, Row, Tools, interleave
from report import size_text

OPERATIONS = "all_gather,reduce_scatter,broadcast,all_to_all,all_reduce,reduce,gather,scatter,barrier"
CORE_OPERATIONS = ["all_gather", "reduce_scatter", "broadcast", "all_to_all", "reduce", "gather", "scatter"]
PEERS = ["openmpi", "intelmpi"]
SIZES = [4, KI, 64 * KI, MI, 4 * MI, 25 * MI, 100 * MI]
ROUNDS, QUICK_ROUNDS = 6, 1


def named(key: object, operations: str) -> tuple[str, int]:
    return key if isinstance(key, tuple) else (operations, key)


def compare(tools: Tools, bench: str, operations: str, ranks: int, sizes: list[int], outcome: Outcome) -> None:
    """Lockstep and Gloo, both through torch.distributed in Python. The rounds have each of Gloo's ways, and a row has the
    one with the better median."""
    names = {"lockstep": "private", "lockstep-shared": "shared"}
    contenders = {name: all_of(python(tools, "lockstep", memory, ranks, operations=operations), sizes)
                  for name, memory in names.items()}
    contenders |= all_of_gloo(tools, ranks, sizes, operations)
    rounds = tools.choose_rounds(ROUNDS, QUICK_ROUNDS)
    found = interleave(contenders, rounds, outcome, f"{bench}, {ranks} ranks")
    gloo = best_of_gloo(found)
    for way, keys in rows_by_way(gloo).items():
        listed = ", ".join(f"{operation} {size_text(size)}" for operation, size in (named(key, operations) for key in keys))
        outcome.notes.append(f"{bench}, {ranks} ranks: {way}: {listed}")
    for name in names:
        for key in found.get(name, {}):
            if key not in gloo:
                continue
            operation, size = named(key, operations)
            mine, theirs = ([seconds * 1e6 for seconds in found[who][key]] for who in (name, gloo[key]))
            case = operation + name.removeprefix("lockstep")
            outcome.rows.append(Row(bench, case, size, ranks, mine, theirs, "gloo", "us", language="Python"))


def compare_core(tools: Tools, bench: str, operation: str, ranks: int, outcome: Outcome) -> None:
    what = f"{bench}, {operation}, {ranks} ranks"
    cases = {operation: "shared", f"{operation}-private": "private"}
    contenders = {case: all_of(ours(tools, "bench_collectives_core", f"{memory}:{operation}", ranks), SIZES)
                  for case, memory in cases.items()}
    for peer in PEERS:
        best = best_contender(
            peer, lambda way, peer=peer: mpi(tools, peer, ranks, way, "collectives_mpi", operation), SIZES,
            outcome, what, size_text, collective=True,
        )
        if best:
            contenders[peer] = best
    found = interleave(contenders, tools.choose_rounds(ROUNDS, QUICK_ROUNDS), outcome, what)
    for case in cases:
        for peer in PEERS:
            add_rows(outcome, found, bench, case, peer, ranks)


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    for ranks in tools.ranks:
        compare(tools, "collectives", OPERATIONS, ranks, SIZES, outcome)
        for operation in CORE_OPERATIONS:
            compare_core(tools, "collectives", operation, ranks, outcome)
    return outcome
