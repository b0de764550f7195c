"""recovery: from SIGKILL of one of two ranks to the first all-reduce after the restart, under `lockstep run`, under
torchrun with the same program, and under Monarch with PyTorch and Gloo; the same from the moment in which a machine of two
is unplugged, which needs root. What needs no restart is in recovery_in_place.py and recovery_steps.py, and what it costs
while nobody dies in recovery_cost.py."""

from __future__ import annotations

import os
import random
import signal
import statistics
import time

from comparison import SEED
from harness import BenchError, Contender, Outcome, Row, Samples, Tools, best_way, interleave
from monarch_peer import monarch_name, monarch_recovery
from network import JOB_KEY, Network, address, network
from peer_ways import MONARCH_RECOVERY, Way, usual
from recovery_cost import measure_costs
from recovery_in_place import measure_in_place, measure_notices
from recovery_job import KILLED, MEMORY, PEER_KILLS, QUICK_PEER_KILLS, RANKS, STEADY, Job, killed, torchrun
from recovery_steps import measure_next_step

ROUNDS, QUICK_ROUNDS = 6, 1
KILLS, QUICK_KILLS = 17, 5  # a round; 6 rounds have more than 100
LOST_NODES, QUICK_LOST_NODES = 20, 1
STANDBY = "0.5"  # --standby: seconds until the processes for a restart are started; the default would only take longer
AIM_MS, LOST_NODE_AIM_MS = 250, 3000
LOST = "a machine is unplugged"
PROGRAMS = ("core", "c10d")  # bench_recovery_NAME


def killed_under_monarch(tools: Tools, way: Way) -> Samples:
    """The same under Monarch: each rank in turn."""
    order = random.Random(SEED)
    samples: list[float] = []
    command, environment = monarch_recovery(tools, way)
    with Job(tools) as job:
        job.launch(command, environment)
        running = job.wait_for(1, RANKS)
        for kill in range(tools.choose(PEER_KILLS, QUICK_PEER_KILLS)):
            if "--spare" in way.options:
                job.wait_for_spare(kill)
            time.sleep(order.uniform(*STEADY))
            start = time.time()
            os.kill(running[kill % RANKS]["pid"], signal.SIGKILL)
            running = job.wait_for(kill + 2, RANKS)
            samples.append((max(report["done_at"] for report in running) - start) * 1e3)
    return {KILLED: samples}


def ours(tools: Tools, program: str, standby: str) -> list[str]:
    launcher = [tools.program("lockstep"), "run", "--nproc-per-node", RANKS, "--max-restarts", KILLS, "--standby", standby]
    return [str(part) for part in [*launcher, tools.program(program)]]


def under_torchrun(tools: Tools, way: Way, program: str) -> Contender:
    kills = tools.choose(PEER_KILLS, QUICK_PEER_KILLS)
    return lambda: killed(tools, torchrun(tools, way.options, tools.program(f"bench_recovery_{program}")), kills)


def torchrun_ways(tools: Tools, outcome: Outcome) -> dict[str, str]:
    """The best one for each program."""
    names = dict.fromkeys(PROGRAMS, next(iter(usual("torchrun"))))
    for program in () if tools.quick else PROGRAMS:
        ways = {name: under_torchrun(tools, way, program) for name, way in usual("torchrun").items()}
        names[program] = best_way(ways, outcome, "recovery, torchrun", passes=1).get(KILLED, names[program])
    searched = "without a search" if tools.quick else "the best of its ways"
    outcome.notes.append(f"torchrun of a program without LibTorch is '{names['core']}', with LibTorch '{names['c10d']}', "
                         f"{searched}")
    return names


def contenders(tools: Tools, counts: dict[str, int], ways: dict[str, str]) -> dict[str, Contender]:
    kills, few = tools.choose(KILLS, QUICK_KILLS), tools.choose(PEER_KILLS, QUICK_PEER_KILLS)

    def run(program: str, kills: int, standby: str) -> Samples:
        return killed(tools, ours(tools, program, standby), kills, counts, standby=standby != "off")

    found: dict[str, Contender] = {
        "core": lambda: run("bench_recovery_core", kills, "off"),  # it has nothing to load
        "LibTorch": lambda: run("bench_recovery_c10d", kills, STANDBY),
        "LibTorch without": lambda: run("bench_recovery_c10d", few, "off"),
    }
    for program, way in ways.items():
        found[f"torchrun {program}"] = under_torchrun(tools, usual("torchrun")[way], program)
    for name, way in MONARCH_RECOVERY.items():
        found[f"monarch {name}"] = lambda way=way: killed_under_monarch(tools, way)
    return found


def measure_kills(tools: Tools, outcome: Outcome) -> None:
    counts = {"tried": 0, "recovered": 0}
    ways = torchrun_ways(tools, outcome)
    found = interleave(contenders(tools, counts, ways), tools.choose_rounds(ROUNDS, QUICK_ROUNDS), outcome, "recovery")
    cases = [
        ("core", "core", KILLED, ""),
        ("LibTorch", "c10d", f"{KILLED}, with LibTorch", "monarch spare"),
        ("LibTorch without", "c10d", f"{KILLED}, with LibTorch, --standby off", "monarch no spare"),
    ]
    for name, program, case, monarch in cases:
        mine = found.get(name, {}).get(KILLED)
        if not mine:
            continue
        if program == "core":
            outcome.rows.append(Row("recovery", case, None, RANKS, mine, [AIM_MS], "the aim", "ms"))
        theirs = found.get(f"torchrun {program}", {}).get(KILLED)
        if theirs:
            outcome.rows.append(Row("recovery", case, None, RANKS, mine, theirs, "torchrun", "ms"))
        theirs = found.get(monarch, {}).get(KILLED)
        if theirs:
            outcome.rows.append(Row("recovery", case, None, RANKS, mine, theirs, monarch_name(tools), "ms"))
    memory = found.get("LibTorch", {}).get(MEMORY)
    if memory:
        outcome.notes.append(f"a process on standby has {statistics.median(memory):,.0f} MiB of its own, with LibTorch")
    outcome.rows.append(Row("recovery", f"recoveries of {counts['tried']}", None, RANKS, [counts["recovered"]],
                            [counts["tried"]], "all", "", more_is_better=True))


def lose_node(tools: Tools, net: Network) -> float:
    """Milliseconds from pulling the plug of machine 1 to the first all-reduce without it."""
    with Job(tools) as job:
        for node in range(2):
            meeting = ["--nnodes", "1:2", "--node-rank", node, "--rdzv-endpoint", address(0), "--max-restarts", 1,
                       "--grace", 1]
            job.launch(net.on(node, tools.program("lockstep"), "run", *meeting, tools.program("bench_recovery_core")),
                       JOB_KEY)
        job.wait_for(1, 2)
        time.sleep(random.uniform(0.5, 1.5))
        start = time.time()
        net.unplug(1)
        done_at = job.wait_for(2, 1)[0]["done_at"]
        net.plug_in(1)
        return (done_at - start) * 1e3


def measure_lost_nodes(tools: Tools, outcome: Outcome) -> None:
    trials = tools.choose_rounds(LOST_NODES, QUICK_LOST_NODES)
    times: list[float] = []
    with network(2) as net:
        for _ in range(trials):
            times.append(lose_node(tools, net))
    outcome.rows.append(Row("recovery", LOST, None, RANKS, times, [LOST_NODE_AIM_MS], "the aim", "ms"))
    outcome.notes.append(f"{LOST}: {len(times)} of {trials} recovered, the slowest in {max(times):,.0f} ms")


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    for part in (measure_notices, measure_in_place, measure_next_step, measure_costs, measure_kills, measure_lost_nodes):
        try:
            part(tools, outcome)
        except BenchError as error:
            outcome.missing.append(f"recovery, {part.__name__}: {error}")
    return outcome
