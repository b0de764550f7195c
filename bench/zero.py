"""zero: Adam sharded over the ranks under DDP: memory of its state on the fullest rank, against theory (two values per
parameter, divided by the ranks) and PyTorch's ZeroRedundancyOptimizer, with the figures of all ranks in a note; time of a
step, against the plain Adam and PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import ddp_step
import workloads
from harness import Outcome, Row, Samples, Tools, interleave
from peer_ways import WAYS, Way
from settings import best_settings

STEPS = {"mlp-6M": 40, "resnet18-32": 20}
ROUNDS, QUICK_ROUNDS = 6, 2
MIB = 1 << 20


def contender(
    tools: Tools, command, workload: str, ranks: int, states: list[float], *optimizer: str,
    environment: Mapping[str, str] | None = None,
) -> Callable[[], Samples]:
    """`states` gets the memory of each rank's state, in MiB, which is the same in every round."""

    def once() -> Samples:
        reports = workloads.ddp_reports(tools, command, workload, ranks, STEPS[workload], ["--optimizer", *optimizer],
                                        environment)
        states[:] = [report["state_bytes"] / MIB for report in reports]
        return {
            "step": [seconds * 1e3 for seconds in workloads.slower_rank(reports)],
            "state": [max(states)],
            "theory": [2 * reports[0]["gradient_bytes"] / ranks / MIB],
        }

    return once


def pytorch(tools: Tools, workload: str, ranks: int, states: list[float], way: Way) -> Callable[[], Samples]:
    command = workloads.peer_command if way.pinned else workloads.free_peer_command
    return contender(tools, command, workload, ranks, states, "sharded-adam", *way.options, environment=way.environment)


def step_alone(once: Callable[[], Samples]) -> Callable[[], Samples]:
    return lambda: {"step": once()["step"]}


def best_pytorch(tools: Tools, workload: str, ranks: int, outcome: Outcome) -> Way:
    """By the time of a step; the state is the same in all ways."""
    start = WAYS["pytorch"]["fused, static"]
    if tools.quick:
        return start
    way, names = best_settings(
        start, ddp_step.settings_of(ddp_step.SETTINGS, workload),
        lambda way: step_alone(pytorch(tools, workload, ranks, [], way)), outcome, f"zero {workload}, {ranks} ranks, pytorch",
        passes=ddp_step.passes(workload))
    outcome.notes.append(f"{workload}, {ranks} ranks: pytorch is 'fused, static, {names}', the best of its settings")
    return way


def note(workload: str, states: dict[str, list[float]]) -> str:
    """The memory of every rank, by contender."""
    by_rank = "; ".join(f"{name} {', '.join(f'{state:.2f}' for state in of_ranks)}" for name, of_ranks in states.items())
    return f"{workload}, state in MiB on rank 0, 1, ...: {by_rank}"


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    for workload in STEPS:
        for ranks in tools.ranks:
            way = best_pytorch(tools, workload, ranks, outcome)
            layout = ddp_step.best_layout(tools, workload, ranks, outcome)
            states: dict[str, list[float]] = {"ours": [], "plain": [], "pytorch": []}
            found = interleave(
                {
                    "ours": contender(tools, workloads.our_command, workload, ranks, states["ours"], "sharded-adam", *layout),
                    "plain": contender(tools, workloads.our_command, workload, ranks, states["plain"], "adam", *layout),
                    "pytorch": pytorch(tools, workload, ranks, states["pytorch"], way),
                },
                tools.choose_rounds(ROUNDS, QUICK_ROUNDS),
                outcome,
                f"zero {workload}, {ranks} ranks",
            )
            outcome.notes.append(note(workload, states))

            def compare(case: str, key: str, peer: str, peer_key: str, peer_name: str, unit: str) -> None:
                mine, theirs = found.get("ours", {}).get(key), found.get(peer, {}).get(peer_key)
                if mine and theirs:
                    outcome.rows.append(Row("zero", case, None, ranks, mine, theirs, peer_name, unit))

            compare(f"{workload}, state", "state", "ours", "theory", "theory", "MiB")
            compare(f"{workload}, state", "state", "pytorch", "state", "pytorch", "MiB")
            compare(f"{workload}, step", "step", "plain", "step", "plain Adam", "ms")
            compare(f"{workload}, step", "step", "pytorch", "step", "pytorch", "ms")
    return outcome
