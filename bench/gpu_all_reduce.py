"""gpu_all_reduce: all-reduce of CUDA tensors between ranks on one card: by NCCL, and by the CPU engine through page-locked
memory, against PyTorch's NCCL."""

from __future__ import annotations

from by_size import KI, MI
from gpu_common import NCCL, GpuTools, interleave_within
from harness import HERE, Contender, Outcome, Row, read_samples, run

PLAN = {4 * KI: 200, MI: 60, 25 * MI: 20}
ROUNDS, QUICK_ROUNDS = 6, 2
PEER = HERE / "peers" / "c10d_collectives.py"
OURS = {"nccl": "cuda:nccl", "staged": "cuda:lockstep"}


def plan_text() -> str:
    return ",".join(f"{size}:{repetitions}" for size, repetitions in PLAN.items())


def ours(tools: GpuTools, memory: str, ranks: int) -> Contender:
    def once():
        output = tools.scratch_file()
        program = tools.program("bench_all_reduce_device")
        options = ["--memory", memory, "--plan", plan_text(), "--output", output]
        run(tools.our_ranks(ranks, program, *options), tools.our_environment(), timeout=150)
        return read_samples(output)

    return once


def theirs(tools: GpuTools, ranks: int) -> Contender:
    def once():
        output = tools.scratch_file()
        options = ["--backend", "nccl", "--operation", "all_reduce", "--plan", plan_text(), "--output", output]
        run(tools.python_ranks(ranks, PEER, *options), NCCL, timeout=150)
        return read_samples(output)

    return once


def measure(tools: GpuTools) -> Outcome:
    outcome = Outcome()
    for ranks in tools.ranks:
        contenders = {case: ours(tools, memory, ranks) for case, memory in OURS.items()} | {"pytorch": theirs(tools, ranks)}
        rounds = tools.choose_rounds(ROUNDS, QUICK_ROUNDS)
        found = interleave_within(tools, contenders, rounds, outcome, f"gpu_all_reduce, {ranks} ranks")
        for case, peer in (("nccl", "pytorch"), ("staged", "pytorch"), ("staged", "nccl")):
            if case not in found or peer not in found:
                continue
            for size in PLAN:
                mine, other = ([value * 1e6 for value in found[name][size]] for name in (case, peer))
                # The peer "nccl" is NCCL from the same program.
                outcome.rows.append(Row("gpu_all_reduce", case, size, ranks, mine, other, peer, "us"))
    return outcome
