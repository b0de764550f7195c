"""launch: time to run programs that exit at once, `lockstep run` against torchrun and Monarch in the best of their ways; on
several machines (network namespaces, as root) too. And what a launcher costs while its programs run."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from by_size import ways_text
from harness import ENVIRONMENT, BenchError, Contender, Outcome, Row, Samples, Tools, best_way, interleave, run
from monarch_peer import monarch_launch, monarch_name
from network import JOB_KEY, Network, address, network
from peer_ways import Way, usual
from workloads import SMALL_PAGES

ROUNDS, QUICK_ROUNDS = 20, 3
PORT = 29400
SETTLE, WATCHED = 2.0, 5.0  # seconds
PATIENCE = 120  # seconds; a launcher that waits for one that has failed is ended then
MEMORY, PROCESSOR = "memory of the launcher", "processor time of the launcher in a second"
LEAST_PROCESSOR = 0.1  # ms; a ratio to less than this says nothing
SELDOM = ("--monitor_interval", "5")  # how often torchrun looks; nothing ends while its cost is measured


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    workers: int  # on each node
    aim_ms: float
    nodes: int = 1


TWO = Case("two programs that exit at once", 2, 10)
CASES = (TWO, Case("64 programs", 64, 200), Case("4 machines with 2 programs each", 2, 150, nodes=4))


def timed(
    case: Case, commands: Callable[[], list[list[str]]], environment: Mapping[str, str] | None = None
) -> Contender:
    def once() -> Samples:
        lines = commands()
        with ThreadPoolExecutor(len(lines)) as launchers:
            start = time.perf_counter()
            list(launchers.map(lambda line: run(line, {**JOB_KEY, **(environment or {})}, PATIENCE), lines))
            return {case.name: [(time.perf_counter() - start) * 1e3]}

    return once


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def on_nodes(net: Network | None, launcher: list[str], case: Case, what: list[str]) -> list[list[str]]:
    """A launcher on each machine; our options and torchrun's are the same."""
    if net is None:
        return [[*launcher, *what]]
    meeting = ["--nnodes", str(case.nodes), "--rdzv-endpoint", f"{address(0)}:{PORT}", "--rdzv-id", "bench"]
    options = [[*meeting, "--rdzv-backend", "c10d", "--node-rank", str(node)] for node in range(case.nodes)]
    return [net.on(node, *launcher, *options[node], *what) for node in range(case.nodes)]


def ours(tools: Tools, case: Case, net: Network | None, what: str) -> list[list[str]]:
    launcher = [str(tools.program("lockstep")), "run", "--nproc-per-node", str(case.workers)]
    return on_nodes(net, [*launcher, *(["--standalone"] if net is None else [])], case, [what])


def on_several(way: tuple[str, ...], case: Case, node: int) -> list[str]:
    """A way of torchrun for one machine, on one of several: the same options with other values."""
    values = {"--nnodes": str(case.nodes), "--node_rank": str(node), "--master_addr": address(0), "--master_port": str(PORT)}
    return [values.get(option, word) for option, word in zip(("", *way), way)]


def torchrun(tools: Tools, case: Case, net: Network | None, way: tuple[str, ...], what: str) -> list[list[str]]:
    launcher = [str(tools.python), "-m", "torch.distributed.run", "--nproc_per_node", str(case.workers)]
    program = ["--no-python", what]
    if net is None:
        given = [str(free_port()) if option == "PORT" else option for option in way]
        return [[*launcher, *given, *program]]
    if "--standalone" in way:  # is for one machine: the same meeting over several
        return on_nodes(net, launcher, case, program)
    return [net.on(node, *launcher, *on_several(way, case, node), *program) for node in range(case.nodes)]


def program() -> str:
    found = shutil.which("true")
    if found is None:
        raise BenchError("there is no program `true` in PATH")
    return found


def torchrun_ways(
    tools: Tools, ways: Mapping[str, Way], case: Case = TWO, net: Network | None = None
) -> dict[str, Contender]:
    return {
        name: timed(case, lambda options=way.options: torchrun(tools, case, net, options, program()))
        for name, way in ways.items()
    }


def monarch(tools: Tools, case: Case, net: Network | None, way: Way) -> Contender:
    """Its processes are actors in Python that do nothing; it starts no other programs. Other machines are reached by a
    worker loop on each."""
    command, environment = monarch_launch(tools, way, case.workers)
    if net is None:
        return timed(case, lambda: [command], environment)
    workers = [f"tcp://{address(node)}:{PORT}" for node in range(case.nodes)]
    lines = [net.on(node, *command, "--serve", worker) for node, worker in enumerate(workers)]
    lines.append(net.on(0, *command, "--address", f"tcp://{address(0)}:{PORT + 1}", "--workers", *workers))
    return timed(case, lambda: lines, environment)


def monarch_ways(
    tools: Tools, ways: Mapping[str, Way], case: Case = TWO, net: Network | None = None
) -> dict[str, Contender]:
    return {name: monarch(tools, case, net, way) for name, way in ways.items()}


def best_ways(tools: Tools, case: Case, net: Network | None, outcome: Outcome) -> dict[str, Way]:
    """Of each peer that can be measured."""
    found = {}
    for peer, search in (("torchrun", torchrun_ways), ("torchmonarch", monarch_ways)):
        ways = usual(peer)
        try:
            chosen = best_way(search(tools, ways, case, net), outcome, f"launch, ways of {peer}")
        except BenchError as error:
            outcome.missing.append(f"launch: {peer} not measured: {error}")
            continue
        if chosen:
            outcome.notes.append(ways_text(peer, chosen, str))
            found[peer] = ways[chosen[case.name]]
    return found


def peers_of(tools: Tools, case: Case, ways: Mapping[str, Way], net: Network | None) -> dict[str, Contender]:
    """By the names in the table."""
    found: dict[str, Contender] = {}
    if "torchrun" in ways:
        found["torchrun"] = timed(case, lambda: torchrun(tools, case, net, ways["torchrun"].options, program()))
    if "torchmonarch" in ways:
        found[monarch_name(tools)] = monarch(tools, case, net, ways["torchmonarch"])
    return found


def measure_case(tools: Tools, case: Case, net: Network | None, outcome: Outcome) -> None:
    ways = best_ways(tools, case, net, outcome)
    contenders = {"ours": timed(case, lambda: ours(tools, case, net, program())), **peers_of(tools, case, ways, net)}
    # The peers take seconds for many programs.
    rounds = ROUNDS if case == TWO else 6
    found = interleave(contenders, tools.choose_rounds(rounds, QUICK_ROUNDS), outcome, f"launch, {case.name}")
    ranks = case.workers * case.nodes
    if "ours" not in found:
        return
    mine = found["ours"][case.name]
    outcome.rows.append(Row("launch", case.name, None, ranks, mine, [case.aim_ms], "the aim", "ms"))
    for peer in (name for name in found if name != "ours"):
        outcome.rows.append(Row("launch", case.name, None, ranks, mine, found[peer][case.name], peer, "ms"))


def descendants(pid: int) -> list[int]:
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    found = [int(child) for child in children.stdout.split()]
    return found + [other for child in found for other in descendants(child)]


def processor_ns(pid: int) -> int:
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat", encoding="utf-8") as file:
            total += int(file.read().split()[0])
    return total


def memory_kib(pid: int) -> int:
    with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss:"))


def cost(command: list[str]) -> Samples:
    """Of the launcher's own processes, all but the programs that sleep. With 4 KiB pages, as all that counts memory."""
    process = subprocess.Popen(command, env={**os.environ, **ENVIRONMENT, **SMALL_PAGES}, stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        end = time.monotonic() + 60
        while sum(is_program(pid) for pid in descendants(process.pid)) < 2:
            if process.poll() is not None or time.monotonic() > end:
                raise BenchError(f"{' '.join(command)} does not start its programs")
            time.sleep(0.05)
        time.sleep(SETTLE)
        own = [process.pid, *(pid for pid in descendants(process.pid) if not is_program(pid))]
        before = sum(map(processor_ns, own))
        time.sleep(WATCHED)
        spent = (sum(map(processor_ns, own)) - before) / WATCHED
        return {MEMORY: [sum(map(memory_kib, own)) / 1024], PROCESSOR: [max(spent / 1e6, LEAST_PROCESSOR)]}
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def is_program(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
            return file.read().strip() == "sleep"
    except OSError:
        return False


def measure_cost(tools: Tools, outcome: Outcome) -> None:
    way = (*usual("torchrun")["static"].options, *SELDOM)
    contenders = {
        "ours": lambda: cost([*tools.lockstep_run(2), "sleep", "120"]),
        "torchrun": lambda: cost([*torchrun(tools, TWO, None, way, "sleep")[0], "120"]),
    }
    found = interleave(contenders, tools.choose_rounds(6, 2), outcome, "launch, cost")
    for key, aim, unit in ((MEMORY, 10, "MiB"), (PROCESSOR, None, "ms")):
        if "ours" in found and aim:
            outcome.rows.append(Row("launch", key, None, 2, found["ours"][key], [aim], "the aim", unit))
        if len(found) == 2:
            outcome.rows.append(Row("launch", key, None, 2, found["ours"][key], found["torchrun"][key], "torchrun", unit))


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    for case in CASES:
        if case.nodes == 1:
            measure_case(tools, case, None, outcome)
            continue
        with network(case.nodes) as net:
            for machine in range(case.nodes):  # torchrun looks its machine's name up
                net.inside(machine, "hostname", address(machine))
            measure_case(tools, case, net, outcome)
    measure_cost(tools, outcome)
    return outcome
