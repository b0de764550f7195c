"""What the benches on a GPU share: programs that come from another machine, ranks on one card, rounds within a time."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from comparison import SEED
from harness import Contender, Outcome, Samples, Tools, interleave

# NCCL refuses two ranks of one machine on one card, so each is on a machine of its own, as far as NCCL knows.
ONE_CARD = 'NCCL_HOSTID=rank$RANK exec "$0" "$@"'
# They talk through the loopback interface.
NCCL = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}


@dataclass
class GpuTools(Tools):
    """`own`: the environment of our programs. `end`: of the time, as time.monotonic() has it."""

    own: Mapping[str, str] = field(default_factory=dict)
    end: float = float("inf")

    def left(self) -> float:
        return self.end - time.monotonic()

    def our_environment(self) -> dict[str, str]:
        return {**NCCL, **self.own}

    def our_ranks(self, ranks: int, *command: object) -> list[str]:
        return self.lockstep_run(ranks, "sh", "-c", ONE_CARD, *command)

    def python_ranks(self, ranks: int, script: object, *arguments: object) -> list[str]:
        return self.torchrun(ranks, "--no-python", "sh", "-c", ONE_CARD, self.python, script, *arguments)


def cores_of_each(ranks: int) -> int:
    return max(1, len(os.sched_getaffinity(0)) // ranks)


def interleave_within(
    tools: GpuTools, contenders: Mapping[str, Contender], rounds: int, outcome: Outcome, what: str
) -> dict[str, Samples]:
    """As interleave(), but no round begins that would not end in time. All contenders have as many rounds."""
    order = random.Random(SEED)
    left, collected = dict(contenders), {name: {} for name in contenders}
    longest = 0.0
    for done in range(rounds):
        if tools.left() < max(longest, 1.0):
            text = f"{what}: {done} of {rounds} rounds; the time was used up"
            (outcome.notes if done else outcome.missing).append(text)
            break
        start = time.monotonic()
        names = order.sample(list(left), len(left))
        found = interleave({name: left[name] for name in names}, 1, outcome, what)
        longest = max(longest, time.monotonic() - start)
        left = {name: left[name] for name in left if name in found}
        for name, samples in found.items():
            for key, values in samples.items():
                collected[name].setdefault(key, []).extend(values)
    return {name: collected[name] for name in left if collected[name]}
