"""collectives: every collective by size, through torch.distributed against Gloo, and the core against Open MPI.

`case` is the operation's name. Against Gloo, the suffix "-allocated" means tensors that the backend has allocated
(allocate_tensor); without it, any tensors. Against Open MPI, the suffix "-foreign" means any memory; without it, memory
of the group.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import peer_programs
from harness import Outcome, Row, Samples, Tools, interleave, read_samples, run

HERE = Path(__file__).resolve().parent
KI, MI = 1 << 10, 1 << 20
OPERATIONS = "all_gather,reduce_scatter,broadcast,all_to_all,all_reduce,reduce,gather,scatter,barrier"
CORE_OPERATIONS = ["all_gather", "reduce_scatter", "broadcast", "all_to_all", "reduce", "gather", "scatter"]
SIZES = [4, KI, 8 * KI, 64 * KI, MI, 4 * MI, 25 * MI, 100 * MI]
ROUNDS, QUICK_ROUNDS = 3, 1


def repetitions(size: int) -> int:
    """Repetitions in one round: about the same time for every size."""
    return 50 if size < MI else {MI: 21, 4 * MI: 11, 25 * MI: 5}.get(size, 3)


def contender(
    tools: Tools, backend: str, memory: str, operations: str, ranks: int, sizes: list[int]
) -> Callable[[], Samples]:
    def once() -> Samples:
        output = tools.scratch_file()
        plan = ",".join(f"{size}:{repetitions(size)}" for size in sizes)
        options = ["--backend", backend, "--memory", memory, "--operation", operations]
        options += ["--plan", plan, "--output", output]
        command = tools.torchrun(ranks, HERE / "peers" / "c10d_collectives.py", *options)
        run(command, {"PYTHONPATH": str(tools.build / "python")})
        lines = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
        return {(line["operation"], line["bytes"]): line["seconds"] for line in lines}

    return once


def compare(tools: Tools, bench: str, operations: str, ranks: int, sizes: list[int], outcome: Outcome) -> None:
    contenders = {
        name: contender(tools, name.split("-")[0], memory, operations, ranks, sizes)
        for name, memory in (("lockstep", "any"), ("lockstep-allocated", "allocated"), ("gloo", "any"))
    }
    rounds = QUICK_ROUNDS if tools.quick else ROUNDS
    found = interleave(contenders, rounds, outcome, f"{bench}, {ranks} ranks")
    for name in contenders:
        suffix = name.removeprefix("lockstep")
        for operation, size in found.get(name, {}):
            if name == "gloo" or (operation, size) not in found.get("gloo", {}):
                continue
            ours, theirs = ([value * 1e6 for value in found[who][operation, size]] for who in (name, "gloo"))
            outcome.rows.append(Row(bench, operation + suffix, size, ranks, ours, theirs, "gloo", "us"))


def core(tools: Tools, memory: str, operation: str, ranks: int) -> Callable[[], Samples]:
    """One operation of the core ("shared", "foreign" memory) or of Open MPI ("private")."""

    def once() -> Samples:
        output = tools.scratch_file()
        plan = ",".join(f"{size}:{repetitions(size)}" for size in SIZES)
        options = ["--memory", f"{memory}:{operation}", "--plan", plan, "--output", output]
        if memory == "private":
            run(*peer_programs.openmpi(tools, ranks, *options, source="collectives_mpi"))
        else:
            run(tools.lockstep_run(ranks, tools.program("bench_collectives_core"), *options))
        return read_samples(output)

    return once


def compare_core(tools: Tools, bench: str, operation: str, ranks: int, outcome: Outcome) -> None:
    contenders = {memory: core(tools, memory, operation, ranks) for memory in ("shared", "private", "foreign")}
    rounds = QUICK_ROUNDS if tools.quick else ROUNDS
    found = interleave(contenders, rounds, outcome, f"{bench}, {operation}, {ranks} ranks")
    for memory, case in (("shared", operation), ("foreign", f"{operation}-foreign")):
        for size in SIZES:
            if size in found.get(memory, {}) and size in found.get("private", {}):
                ours, theirs = ([value * 1e6 for value in found[name][size]] for name in (memory, "private"))
                outcome.rows.append(Row(bench, case, size, ranks, ours, theirs, "openmpi", "us"))


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    for ranks in tools.ranks:
        compare(tools, "collectives", OPERATIONS, ranks, SIZES, outcome)
        for operation in CORE_OPERATIONS:
            compare_core(tools, "collectives", operation, ranks, outcome)
    return outcome
