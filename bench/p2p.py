"""p2p: half a round trip of send and recv between two ranks, by size, through torch.distributed from Python against
Gloo, and the core against MPIs.
"""

from __future__ import annotations

from collectives import SIZES, compare, compare_core
from harness import Outcome, Tools


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    compare(tools, "p2p", "send_recv", 2, SIZES, outcome)
    compare_core(tools, "p2p", "send_recv", 2, outcome)
    return outcome
