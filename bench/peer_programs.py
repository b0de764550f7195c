"""Builds and starts the peers' programs of bench/peers/."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from harness import BenchError, Tools

HERE = Path(__file__).resolve().parent
FLAGS = ["-std=c++20", "-O3", "-march=native", f"-I{HERE}"]


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


def openmpi(
    tools: Tools, ranks: int, *arguments: object, source: str = "all_reduce_mpi"
) -> tuple[list[str], dict[str, str]]:
    mpicxx, mpirun = shutil.which("mpicxx.openmpi"), shutil.which("mpirun.openmpi")
    if not mpicxx or not mpirun:
        raise BenchError("Open MPI is not installed (Debian packages openmpi-bin, libopenmpi-dev)")
    program = build(tools, f"{source}_openmpi", [mpicxx, "-DOMPI_SKIP_MPICXX"], [], f"{source}.cpp")
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    crowded = ["--oversubscribe"] if ranks > (os.cpu_count() or 1) else []
    return [mpirun, *as_root, *crowded, "-n", str(ranks), str(program), *map(str, arguments)], {}


def intel(tools: Tools, ranks: int, program: Path, *arguments: object) -> tuple[list[str], dict[str, str]]:
    """The command and environment of Intel's mpirun, which finds its helpers by PATH."""
    root = tools.peers.resolve()
    environment = {
        "I_MPI_ROOT": str(root),
        "PATH": f"{root}/bin:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": f"{root}/lib",
        "CCL_LOG_LEVEL": "error",
    }
    return [str(root / "bin" / "mpirun"), "-n", str(ranks), str(program), *map(str, arguments)], environment


def intel_compile(tools: Tools, name: str, source: str, libraries: list[str]) -> Path:
    root = tools.peers.resolve()
    if not (root / "include" / "mpi.h").exists():
        raise BenchError(f"{root} has no Intel MPI (PyPI packages of bench/requirements.txt)")
    links = [f"-L{root}/lib", *libraries, f"-Wl,-rpath,{root}/lib"]
    return build(tools, name, ["g++", "-DMPICH_SKIP_MPICXX", f"-I{root}/include"], links, source)


def intelmpi(tools: Tools, ranks: int, *arguments: object) -> tuple[list[str], dict[str, str]]:
    program = intel_compile(tools, "all_reduce_intelmpi", "all_reduce_mpi.cpp", ["-lmpi"])
    return intel(tools, ranks, program, *arguments)


def oneccl(tools: Tools, ranks: int, *arguments: object) -> tuple[list[str], dict[str, str]]:
    libraries = ["-lccl", "-lmpi", "-lintlc", "-lirc"]
    return intel(
        tools, ranks, intel_compile(tools, "all_reduce_oneccl", "all_reduce_oneccl.cpp", libraries), *arguments
    )


def gloo(tools: Tools, ranks: int, *arguments: object) -> tuple[list[str], dict[str, str]]:
    return tools.torchrun(ranks, HERE / "peers" / "all_reduce_gloo.py", *arguments), {}
