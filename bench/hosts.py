"""hosts: all-reduce over two machines (network namespaces) of one rank and of two ranks each, against Gloo and Open MPI
over TCP; and against the time on the wire, on a link of 1 Gbit/s. Needs root."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import peer_programs
from by_size import NO_WAY, each_in_its_way, take_best_of_gloo, ways_text
from harness import (
    ENVIRONMENT,
    HERE,
    BenchError,
    Outcome,
    Row,
    Samples,
    Tools,
    best_way,
    interleave,
    pinned,
    read_samples,
)
from network import JOB_KEY, Network, address, network
from peer_ways import OWN_CORE_WAYS, SHARED_CORE_WAYS, Way
from report import size_text

KI, MI = 1 << 10, 1 << 20
SIZES = {4: 100, 64 * KI: 50, MI: 20, 25 * MI: 7}
MACHINES = 2
# As in peer_ways.py, whose reasons count here too.
GLOO_WAYS = {"meeting of all": Way("as all others"), "own barrier": Way("no rank spins", options=("--own-barrier",))}
GLOO_OWN_CORE_WAYS = {**GLOO_WAYS, **{f"{name}, not pinned": replace(way, pinned=False) for name, way in GLOO_WAYS.items()}}
MEMORIES = ("shared", "private")  # memory of the group, as the buckets of DDP, or any other
ROUNDS, QUICK_ROUNDS = 10, 2
LINK_BITS = 1e9
LINK_SIZE, LINK_REPETITIONS = 25 * MI, 8
WARM_UP = 3  # calls, see measure.h
PORT = 29500


def plan(sizes: dict[int, int]) -> str:
    return ",".join(f"{size}:{repetitions}" for size, repetitions in sizes.items())


@dataclass(frozen=True)
class Layout:
    """The ranks of the two machines, which share the cores of this one."""

    per_machine: int

    @property
    def ranks(self) -> int:
        return MACHINES * self.per_machine

    @property
    def has_own_cores(self) -> bool:
        """Then ranks are pinned, as a launcher does it."""
        return self.ranks <= len(os.sched_getaffinity(0))

    @property
    def mpi_ways(self) -> Mapping[str, Way]:
        return OWN_CORE_WAYS if self.has_own_cores else SHARED_CORE_WAYS

    @property
    def gloo_ways(self) -> Mapping[str, Way]:
        return GLOO_OWN_CORE_WAYS if self.has_own_cores else GLOO_WAYS

    def machine_of(self, rank: int) -> int:
        return rank // self.per_machine


ALONE, PAIRS = Layout(1), Layout(2)


def run_ranks(
    net: Network, layout: Layout, command: list[object], sizes: dict[int, int], tools: Tools, variables: dict,
    pin: bool = True,
) -> Samples:
    """Starts one process per rank, with the variables that a launcher on each machine would set."""
    output = tools.scratch_file()
    log = tools.scratch_file(".log")
    processes = []
    with log.open("w", encoding="utf-8") as sink:
        for rank in range(layout.ranks):
            environment = {
                **os.environ, **ENVIRONMENT, **variables, "RANK": str(rank), "WORLD_SIZE": str(layout.ranks),
                "LOCAL_RANK": str(rank % layout.per_machine), "LOCAL_WORLD_SIZE": str(layout.per_machine),
                **JOB_KEY, "MASTER_ADDR": address(0), "MASTER_PORT": str(PORT),
            }
            words = [str(word) for word in [*command, "--plan", plan(sizes), "--output", output]]
            line = net.on(layout.machine_of(rank), *(pinned(words, rank, layout.ranks) if pin else words))
            processes.append(subprocess.Popen(line, env=environment, stdin=subprocess.DEVNULL, stdout=sink,
                                              stderr=subprocess.STDOUT, start_new_session=True))
    wait_for(processes, command, log)
    return read_samples(output)


def wait_for(processes: list[subprocess.Popen], command: list[object], log: Path) -> None:
    end = time.monotonic() + 120
    try:
        for process in processes:
            if process.wait(timeout=max(0.1, end - time.monotonic())) != 0:
                tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-8:])
                raise BenchError(f"{' '.join(map(str, command))} ended with {process.returncode}:\n{tail}")
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{' '.join(map(str, command))} did not end within 120 s") from error
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def ours(net: Network, layout: Layout, tools: Tools, memory: str, sizes: dict[int, int]) -> Samples:
    return run_ranks(net, layout, [tools.program("bench_all_reduce_core"), "--memory", memory], sizes, tools, {})


def from_python(net: Network, layout: Layout, tools: Tools, backend: str, memory: str, way: Way = NO_WAY) -> Samples:
    command = [tools.python, HERE / "peers" / "c10d_collectives.py", "--backend", backend, "--operation", "all_reduce",
               "--memory", memory, *way.options]
    variables = {"GLOO_SOCKET_IFNAME": "eth0", "PYTHONPATH": str(tools.build / "python")}
    return run_ranks(net, layout, command, SIZES, tools, variables, way.pinned)


def given(name: str, value: str) -> list[str]:
    """A variable as options of mpirun, which passes them to all machines."""
    if name.startswith("OMPI_MCA_"):
        return ["--mca", name.removeprefix("OMPI_MCA_"), value]
    return ["-x", f"{name}={value}"]


def script(tools: Tools, name: str, text: str) -> Path:
    path = tools.scratch / name
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def pinned_program(tools: Tools, program: str, layout: Layout) -> Path:
    """Each machine's mpirun takes all cores for its own, so it cannot pin its ranks itself."""
    lines = [f'{rank}) exec {shlex.join(pinned([program], rank, layout.ranks))} "$@";;' for rank in range(layout.ranks)]
    return script(tools, "pinned", "\n".join(["case $OMPI_COMM_WORLD_RANK in", *lines, "esac"]))


def openmpi(net: Network, layout: Layout, tools: Tools, sizes: dict[int, int], way: Way) -> Samples:
    """mpirun starts its daemon on the second machine with a script instead of ssh."""
    command, _ = peer_programs.mpi_command(tools, "openmpi", layout.ranks, way, "all_reduce_mpi")
    program = pinned_program(tools, command[-1], layout)
    settings = [part for name, value in way.environment.items() for part in given(name, value)]
    if "OMPI_MCA_pml" not in way.environment:
        settings += ["--mca", "pml", "ob1", "--mca", "btl", "tcp,vader,self", "--mca", "btl_tcp_if_include", "eth0"]
    agent = script(tools, "enter", f'shift\nexec {" ".join(net.on(1))} sh -c "$*"')
    output = tools.scratch_file()
    log = tools.scratch_file(".log")
    hosts = ",".join(f"{address(machine)}:{layout.per_machine}" for machine in range(MACHINES))
    line = net.on(0, command[0], *peer_programs.as_root(), "--oversubscribe", "--bind-to", "none", "-n", layout.ranks,
                  "--host", hosts, *settings, "--mca", "plm_rsh_agent", agent, "--mca", "oob_tcp_if_include", "eth0",
                  program, "--plan", plan(sizes), "--output", output)
    with log.open("w", encoding="utf-8") as sink:
        process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT,
                                   start_new_session=True, env={**os.environ, **ENVIRONMENT})
    wait_for([process], ["mpirun", program], log)
    return read_samples(output)


def compare(outcome: Outcome, layout: Layout, found: dict[str, Samples], peer: str, language: str = "C++") -> None:
    for memory in MEMORIES:
        own = found.get(f"{language} {memory}", {})
        for size in SIZES:
            if size in own and size in found.get(peer, {}):
                mine, theirs = ([value * 1e6 for value in samples[size]] for samples in (own, found[peer]))
                outcome.rows.append(
                    Row("hosts", f"all_reduce-{memory}", size, layout.ranks, mine, theirs, peer, "us", language=language))


def measure_link(net: Network, tools: Tools, outcome: Outcome) -> None:
    """The time against that of the wire for 2S(h-1)/h bytes per machine, and the bytes that the interface counted."""
    net.shape()
    before = net.sent_bytes(0)
    seconds = ours(net, PAIRS, tools, "shared", {LINK_SIZE: LINK_REPETITIONS})[LINK_SIZE]
    sent = net.sent_bytes(0) - before
    least = 2 * LINK_SIZE * (MACHINES - 1) / MACHINES
    wire = [least * 8 / LINK_BITS * 1e3] * len(seconds)
    outcome.rows.append(
        Row("hosts", "all_reduce at 1 Gbit/s", LINK_SIZE, PAIRS.ranks, [value * 1e3 for value in seconds], wire, "the wire",
            "ms"))
    outcome.rows.append(
        Row("hosts", "bytes a machine sends", LINK_SIZE, PAIRS.ranks, [sent / (LINK_REPETITIONS + WARM_UP) / MI],
            [least / MI], "2S(h-1)/h", "MiB"))


def measure_layout(net: Network, layout: Layout, tools: Tools, outcome: Outcome) -> None:
    what = f"hosts, {layout.ranks} ranks"
    contenders = {
        **{f"C++ {memory}": lambda memory=memory: ours(net, layout, tools, memory, SIZES) for memory in MEMORIES},
        **{f"Python {memory}": lambda memory=memory: from_python(net, layout, tools, "lockstep", memory)
           for memory in MEMORIES},
        **{f"gloo {name}": lambda way=way: from_python(net, layout, tools, "gloo", "private", way)
           for name, way in layout.gloo_ways.items()},
    }
    ways = {
        name: lambda sizes, way=way: openmpi(net, layout, tools, {size: SIZES[size] for size in sizes}, way)
        for name, way in layout.mpi_ways.items()
    }
    searched = {name: lambda sized=sized: sized(list(SIZES)) for name, sized in ways.items()}
    if chosen := best_way(searched, outcome, f"{what}, ways of openmpi"):
        outcome.notes.append(f"{what}: {ways_text('openmpi', chosen, size_text)}")
        contenders["openmpi"] = each_in_its_way(ways, chosen)
    found = interleave(contenders, tools.choose_rounds(ROUNDS, QUICK_ROUNDS), outcome, what)
    take_best_of_gloo(found, outcome, what)
    compare(outcome, layout, found, "gloo", "Python")
    compare(outcome, layout, found, "openmpi")


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    with network(MACHINES) as net:
        outcome.notes.append(f"hosts: TCP with {net.congestion_control} for all")
        for layout in (ALONE, PAIRS):
            measure_layout(net, layout, tools, outcome)
        measure_link(net, tools, outcome)
    return outcome
