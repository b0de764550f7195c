"""hosts: all-reduce over two machines (network namespaces) of two ranks each, against Gloo and Open MPI over TCP; and
against the time on the wire, on a link of 1 Gbit/s. Needs root."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import peer_programs
from by_size import each_in_its_way, take_best_of_gloo, ways_text
from harness import ENVIRONMENT, HERE, BenchError, Outcome, Row, Samples, Tools, best_way, interleave, read_samples
from network import Network, address, network
from peer_ways import HOST_WAYS, Way
from report import size_text

KI, MI = 1 << 10, 1 << 20
SIZES = {4: 100, 64 * KI: 50, MI: 20, 25 * MI: 7}
MACHINES, RANKS_PER_MACHINE = 2, 2
RANKS = MACHINES * RANKS_PER_MACHINE
# As in peer_ways.py. Its ranks are never pinned here.
GLOO_WAYS: dict[str, tuple[str, ...]] = {"meeting of all": (), "own barrier": ("--own-barrier",)}
MEMORIES = ("shared", "private")  # memory of the group, as the buckets of DDP, or any other
ROUNDS, QUICK_ROUNDS = 6, 2
LINK_BITS = 1e9
LINK_SIZE, LINK_REPETITIONS = 25 * MI, 8
WARM_UP = 3  # calls, see measure.h
PORT = 29500


def plan(sizes: dict[int, int]) -> str:
    return ",".join(f"{size}:{repetitions}" for size, repetitions in sizes.items())


def run_ranks(net: Network, command: list[object], sizes: dict[int, int], tools: Tools, variables: dict) -> Samples:
    """Starts one process per rank, with the variables that a launcher on each machine would set."""
    output = tools.scratch_file()
    log = tools.scratch_file(".log")
    processes = []
    with log.open("w", encoding="utf-8") as sink:
        for rank in range(RANKS):
            environment = {
                **os.environ, **ENVIRONMENT, **variables, "RANK": str(rank), "WORLD_SIZE": str(RANKS),
                "LOCAL_RANK": str(rank % RANKS_PER_MACHINE), "LOCAL_WORLD_SIZE": str(RANKS_PER_MACHINE),
                "MASTER_ADDR": address(0), "MASTER_PORT": str(PORT), "LOCKSTEP_JOB_KEY": "bench",
            }
            line = net.on(rank // RANKS_PER_MACHINE, *command, "--plan", plan(sizes), "--output", output)
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


def ours(net: Network, tools: Tools, memory: str, sizes: dict[int, int]) -> Samples:
    return run_ranks(net, [tools.program("bench_all_reduce_core"), "--memory", memory], sizes, tools, {})


def from_python(net: Network, tools: Tools, backend: str, memory: str, *more: str) -> Samples:
    command = [tools.python, HERE / "peers" / "c10d_collectives.py", "--backend", backend, "--operation", "all_reduce",
               "--memory", memory, *more]
    variables = {"GLOO_SOCKET_IFNAME": "eth0", "PYTHONPATH": str(tools.build / "python")}
    return run_ranks(net, command, SIZES, tools, variables)


def given(name: str, value: str) -> list[str]:
    """A variable as options of mpirun, which passes them to all machines."""
    if name.startswith("OMPI_MCA_"):
        return ["--mca", name.removeprefix("OMPI_MCA_"), value]
    return ["-x", f"{name}={value}"]


def openmpi(net: Network, tools: Tools, sizes: dict[int, int], way: Way) -> Samples:
    """mpirun starts its daemon on the second machine with a script instead of ssh."""
    command, _ = peer_programs.mpi_command(tools, "openmpi", RANKS, way, "all_reduce_mpi")
    program = command[-1]
    settings = [part for name, value in way.environment.items() for part in given(name, value)]
    if "OMPI_MCA_pml" not in way.environment:
        settings += ["--mca", "pml", "ob1", "--mca", "btl", "tcp,vader,self", "--mca", "btl_tcp_if_include", "eth0"]
    agent = tools.scratch / "enter"
    enter = " ".join(net.on(1))
    agent.write_text(f'#!/bin/sh\nshift\nexec {enter} sh -c "$*"\n', encoding="utf-8")
    agent.chmod(0o755)
    output = tools.scratch_file()
    log = tools.scratch_file(".log")
    hosts = ",".join(f"{address(machine)}:{RANKS_PER_MACHINE}" for machine in range(MACHINES))
    line = net.on(0, command[0], *peer_programs.as_root(), "--oversubscribe", "--bind-to", "none", "-n", RANKS, "--host",
                  hosts, *settings, "--mca", "plm_rsh_agent", agent, "--mca", "oob_tcp_if_include", "eth0", program,
                  "--plan", plan(sizes), "--output", output)
    with log.open("w", encoding="utf-8") as sink:
        process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT,
                                   start_new_session=True, env={**os.environ, **ENVIRONMENT})
    wait_for([process], ["mpirun", program], log)
    return read_samples(output)


def compare(outcome: Outcome, found: dict[str, Samples], peer: str, language: str = "C++") -> None:
    for memory in MEMORIES:
        own = found.get(f"{language} {memory}", {})
        for size in SIZES:
            if size in own and size in found.get(peer, {}):
                mine, theirs = ([value * 1e6 for value in samples[size]] for samples in (own, found[peer]))
                outcome.rows.append(
                    Row("hosts", f"all_reduce-{memory}", size, RANKS, mine, theirs, peer, "us", language=language))


def measure_link(net: Network, tools: Tools, outcome: Outcome) -> None:
    """The time against that of the wire for 2S(h-1)/h bytes per machine, and the bytes that the interface counted."""
    net.shape()
    before = net.sent_bytes(0)
    seconds = ours(net, tools, "shared", {LINK_SIZE: LINK_REPETITIONS})[LINK_SIZE]
    sent = net.sent_bytes(0) - before
    least = 2 * LINK_SIZE * (MACHINES - 1) / MACHINES
    wire = [least * 8 / LINK_BITS * 1e3] * len(seconds)
    outcome.rows.append(
        Row("hosts", "all_reduce at 1 Gbit/s", LINK_SIZE, RANKS, [value * 1e3 for value in seconds], wire, "the wire",
            "ms"))
    outcome.rows.append(
        Row("hosts", "bytes a machine sends", LINK_SIZE, RANKS, [sent / (LINK_REPETITIONS + WARM_UP) / MI],
            [least / MI], "2S(h-1)/h", "MiB"))


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    with network(MACHINES) as net:
        outcome.notes.append(f"hosts: TCP with {net.congestion_control} for all")
        contenders = {
            **{f"C++ {memory}": lambda memory=memory: ours(net, tools, memory, SIZES) for memory in MEMORIES},
            **{f"Python {memory}": lambda memory=memory: from_python(net, tools, "lockstep", memory) for memory in MEMORIES},
            **{f"gloo {name}": lambda more=more: from_python(net, tools, "gloo", "private", *more)
               for name, more in GLOO_WAYS.items()},
        }
        ways = {
            name: lambda sizes, way=way: openmpi(net, tools, {size: SIZES[size] for size in sizes}, way)
            for name, way in HOST_WAYS.items()
        }
        searched = {name: lambda sized=sized: sized(list(SIZES)) for name, sized in ways.items()}
        if chosen := best_way(searched, outcome, "hosts, ways of openmpi"):
            outcome.notes.append(ways_text("openmpi", chosen, size_text))
            contenders["openmpi"] = each_in_its_way(ways, chosen)
        found = interleave(contenders, tools.choose_rounds(ROUNDS, QUICK_ROUNDS), outcome, "hosts")
        take_best_of_gloo(found, outcome, "hosts")
        compare(outcome, found, "gloo", "Python")
        compare(outcome, found, "openmpi")
        measure_link(net, tools, outcome)
    return outcome
