"""How long the ranks that are left take after a death: until each has its error, of our groups and of Gloo's; and until
they have formed the group anew in their processes (reconfigure) and done an all-reduce."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import time

from comparison import SEED
from harness import HERE, BenchError, Outcome, Row, Tools
from launch import free_port
from network import JOB_KEY, Network, address, network
from recovery_job import STEADY, Job

IN_PLACE_AIM_MS = 50
IN_PLACE = "a rank of four is killed, and the others go on in place"
IN_PLACE_RANKS = 4
IN_PLACE_JOBS, QUICK_IN_PLACE_JOBS = 20, 2  # of three kills each
NOTICED = "a rank of four is killed, and each of the others has an error"
NOTICED_FAR = "the same with two ranks on each of two machines"
CUT = "one of these machines is unplugged, and each rank of the other has an error"
NOTICE_RANKS = 4
NOTICE_ROUNDS, QUICK_NOTICE_ROUNDS = 8, 2
CUT_ROUNDS, QUICK_CUT_ROUNDS = 10, 1
GLOO_CUTS = 1  # each takes the operation's timeout
NOTICE_AIMS_MS = {NOTICED: 100, NOTICED_FAR: 1000, CUT: 5000}


def kill_in_place(tools: Tools, order: random.Random) -> list[float]:
    """Kills the ranks of a job without a launcher one after another; milliseconds until the others have added up anew."""
    samples: list[float] = []
    living = list(range(IN_PLACE_RANKS))
    with Job(tools) as job:
        port = str(free_port())
        for rank in living:
            job.launch([str(tools.program("bench_recovery_c10d")), "in-place"],
                       {"RANK": str(rank), "WORLD_SIZE": str(IN_PLACE_RANKS), "MASTER_ADDR": "127.0.0.1",
                        "MASTER_PORT": port})
        running = [report["pid"] for report in job.wait_for(1, living)]
        for kill in range(IN_PLACE_RANKS - 1):
            time.sleep(order.uniform(*STEADY))
            victim = living.pop(order.randrange(len(living)))
            start = time.time()
            os.kill(running[victim], signal.SIGKILL)
            samples.append((max(report["done_at"] for report in job.wait_for(kill + 2, living)) - start) * 1e3)
    return samples


def measure_in_place(tools: Tools, outcome: Outcome) -> None:
    order = random.Random(SEED)
    times: list[float] = []
    for _ in range(tools.choose_rounds(IN_PLACE_JOBS, QUICK_IN_PLACE_JOBS)):
        times += kill_in_place(tools, order)
    outcome.rows.append(Row("recovery", IN_PLACE, None, IN_PLACE_RANKS, times, [IN_PLACE_AIM_MS], "the aim", "ms"))
    outcome.notes.append(f"{IN_PLACE}: {len(times)} times, the slowest in {max(times):,.0f} ms")


def notice(tools: Tools, program: list[object], case: str, net: Network | None, *, forks: bool) -> list[float]:
    """Milliseconds from the loss of rank 3, or of its machine, to the error of each rank that is left."""
    with Job(tools) as job:
        port = str(free_port())
        machines = 1 if net is None else 2
        each = NOTICE_RANKS // machines if forks else 1  # ranks of a process
        for first in range(0, NOTICE_RANKS, each):
            command = [str(part) for part in program]
            if net is not None:
                command = net.on(first * machines // NOTICE_RANKS, *command)
            job.launch(command, {**JOB_KEY, "RANK": str(first), "RANKS": ",".join(map(str, range(first, first + each))),
                                 "WORLD_SIZE": str(NOTICE_RANKS), "MASTER_PORT": port,
                                 "GLOO_SOCKET_IFNAME": "lo" if net is None else "eth0",
                                 "MASTER_ADDR": "127.0.0.1" if net is None else address(0)})
        running = job.wait_for(1, NOTICE_RANKS)
        time.sleep(random.uniform(*STEADY))
        start = time.time()
        if case == CUT:
            net.unplug(1)
        else:
            os.kill(running[-1]["pid"], signal.SIGKILL)
        left = range(NOTICE_RANKS // 2 if case == CUT else NOTICE_RANKS - 1)
        try:
            return [(report["done_at"] - start) * 1e3 for report in job.wait_for(2, left)]
        finally:
            if case == CUT:
                net.plug_in(1)


def measure_case(tools: Tools, outcome: Outcome, case: str, net: Network | None) -> None:
    programs: dict[str, list[object]] = {"Lockstep": [tools.program("bench_recovery_c10d"), "notice"],
                                         "gloo": [tools.python, HERE / "peers" / "notice.py"]}
    times: dict[str, list[float]] = {name: [] for name in programs}
    rounds = [CUT_ROUNDS, QUICK_CUT_ROUNDS] if case == CUT else [NOTICE_ROUNDS, QUICK_NOTICE_ROUNDS]
    for number in range(tools.choose_rounds(*rounds)):
        for name, program in programs.items():
            if name == "Lockstep" or case != CUT or number < GLOO_CUTS:
                times[name] += notice(tools, program, case, net, forks=name == "gloo")
    gloo = [statistics.median(times["gloo"])] if case == CUT else times["gloo"]
    for peer, theirs in (("the aim", [NOTICE_AIMS_MS[case]]), ("gloo", gloo)):
        outcome.rows.append(Row("recovery", case, None, NOTICE_RANKS, times["Lockstep"], theirs, peer, "ms"))
    worst = ", ".join(f"{name} {max(values):,.1f} ms" for name, values in times.items())
    outcome.notes.append(f"{case}: {len(times['Lockstep'])} errors, the latest after: {worst}")


def measure_notices(tools: Tools, outcome: Outcome) -> None:
    for case, machines in ((NOTICED, 1), (NOTICED_FAR, 2), (CUT, 2)):
        try:
            with network(machines) if machines > 1 else contextlib.nullcontext() as net:
                measure_case(tools, outcome, case, net)
        except BenchError as error:
            outcome.missing.append(f"recovery, {case}: {error}")
