"""Machines for benches: network namespaces with links between them. Needs root."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from harness import BenchError


# The key of every job of the benches that spans several machines.
JOB_KEY = {"LOCKSTEP_JOB_KEY": "the key of all benches"}


def network_of(process: object) -> int | None:
    """The inode number of a process's network namespace; None if the process has exited."""
    try:
        return os.stat(f"/proc/{process}/ns/net").st_ino
    except OSError:
        return None


def address(machine: int) -> str:
    return f"10.78.0.{machine + 1}"


class Network:
    """Two namespaces with a link between them, or more on a bridge. Processes that die with this one keep them alive."""

    def __init__(self, machines: int, stack: list[subprocess.Popen]) -> None:
        self.machines = machines
        self.holders = stack
        for _ in range(machines if machines == 2 else machines + 1):
            self.add_namespace()
        if machines == 2:
            self.inside(0, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", str(stack[1].pid))
        else:
            self.make_bridge(machines)
        for machine in range(machines):
            self.inside(machine, "hostname", f"machine{machine}")
            self.inside(machine, "ip", "link", "set", "lo", "up")
            self.inside(machine, "ip", "address", "add", f"{address(machine)}/24", "dev", "eth0")
            self.inside(machine, "ip", "link", "set", "eth0", "up")
        for machine in range(machines):
            self.wait_for_link(machine)
        self.congestion_control = self.choose_congestion_control()

    def choose_congestion_control(self) -> str:
        """cubic, Linux's default, also where the machine has another one: bbr paces by timers, which cost more in a virtual
        machine than on the hardware. The name of what is used."""
        route = ("ip", "route", "change", "10.78.0.0/24", "dev", "eth0", "congctl", "cubic")
        try:
            for machine in range(self.machines):
                self.inside(machine, *route)
        except BenchError:  # a kernel without it
            return self.inside(0, "cat", "/proc/sys/net/ipv4/tcp_congestion_control").strip()
        return "cubic"

    def add_namespace(self) -> None:
        own = network_of("self")
        holder = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--uts", "sleep", "3600"])
        self.holders.append(holder)
        while network_of(holder.pid) == own:
            time.sleep(0.01)
        if network_of(holder.pid) is None:
            raise BenchError("cannot make a network namespace (`unshare --net`): run as root")

    def make_bridge(self, place: int) -> None:
        """In a namespace of its own, the last one."""
        self.inside(place, "ip", "link", "add", "bridge", "type", "bridge")
        self.inside(place, "ip", "link", "set", "bridge", "up")
        for machine in range(self.machines):
            self.inside(place, "ip", "link", "add", f"port{machine}", "type", "veth", "peer", "name", "eth0", "netns",
                        str(self.holders[machine].pid))
            self.inside(place, "ip", "link", "set", f"port{machine}", "master", "bridge", "up")

    def wait_for_link(self, machine: int) -> None:
        while "LOWER_UP" not in self.inside(machine, "ip", "link", "show", "eth0"):
            time.sleep(0.01)

    def on(self, machine: int, *command: object) -> list[str]:
        spaces = f"/proc/{self.holders[machine].pid}/ns"
        enter = ["setpriv", "--pdeathsig", "KILL", "nsenter", f"--net={spaces}/net", f"--uts={spaces}/uts", "--"]
        return [*enter, *(str(part) for part in command)]

    def inside(self, machine: int, *command: object) -> str:
        result = subprocess.run(self.on(machine, *command), capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise BenchError(f"{' '.join(map(str, command))}: {result.stderr.strip()}")
        return result.stdout

    def unplug(self, machine: int) -> None:
        self.inside(machine, "ip", "link", "set", "eth0", "down")

    def plug_in(self, machine: int) -> None:
        self.inside(machine, "ip", "link", "set", "eth0", "up")
        self.wait_for_link(machine)

    def sent_bytes(self, machine: int) -> int:
        return int(self.inside(machine, "cat", "/proc/net/dev").split("eth0:")[1].split()[8])

    def shape(self) -> None:
        for machine in range(self.machines):
            self.inside(machine, "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", "1gbit", "burst",
                        "256kb", "latency", "50ms")


@contextmanager
def network(machines: int) -> Iterator[Network]:
    holders: list[subprocess.Popen] = []
    try:
        yield Network(machines, holders)
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()
