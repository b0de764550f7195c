"""What this machine has for programs on GPUs: the cards and their driver, LibTorch with CUDA, and how to tell of them."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path

# Where containers mount the driver's programs without a word in PATH.
DRIVER_FOLDERS = ("/usr/local/nvidia/bin", "/usr/bin", "/usr/lib/wsl/lib")
QUERY = ("name", "memory.total", "driver_version", "uuid")
ASK_TIMEOUT = 60  # a driver that has just been loaded takes its time


class SetupError(Exception):
    """Something that is needed is not here; the message says what, and what to do."""


@dataclass
class Gpu:
    name: str
    memory_mib: int  # 0: the driver does not say
    driver: str
    uuid: str


@dataclass
class Cards:
    """The GPUs that a program of this environment sees, or why there are none."""

    gpus: list[Gpu] = field(default_factory=list)
    reason: str = ""


def _smi(environment: Mapping[str, str], root: Path) -> str | None:
    folders = [environment.get("PATH", ""), *(str(root / folder.lstrip("/")) for folder in DRIVER_FOLDERS)]
    return shutil.which("nvidia-smi", path=os.pathsep.join(folders))


def _hidden(environment: Mapping[str, str]) -> str | None:
    """CUDA takes the entries before the first one that names no device."""
    value = environment.get("CUDA_VISIBLE_DEVICES")
    if value is None or re.match(r" *(\d|GPU-|MIG-)", value):
        return None
    return f"CUDA_VISIBLE_DEVICES is '{value}', which hides all GPUs"


def _parse(lines: str) -> list[Gpu]:
    gpus = []
    for line in lines.strip().splitlines():
        name, memory, driver, uuid = (part.strip() for part in line.split(","))
        gpus.append(Gpu(name, int(memory) if memory.isdecimal() else 0, driver, uuid))
    return gpus


def find_cards(environment: Mapping[str, str] = os.environ, root: Path = Path("/")) -> Cards:
    """As the driver lists them. `root`: of the driver's files."""
    hidden = _hidden(environment)
    if hidden:
        return Cards(reason=hidden)
    program = _smi(environment, root)
    if program is None:
        if (root / "dev/nvidiactl").exists():
            return Cards(reason="there is an NVIDIA driver (/dev/nvidiactl), but no nvidia-smi in PATH or beside it")
        return Cards(reason="there is no NVIDIA driver here (no nvidia-smi, no /dev/nvidiactl)")
    command = [program, f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=ASK_TIMEOUT)
        gpus = _parse(ended.stdout) if ended.returncode == 0 else []
    except subprocess.TimeoutExpired:
        return Cards(reason=f"{program} did not answer within {ASK_TIMEOUT} s")
    except (OSError, ValueError) as error:
        return Cards(reason=f"{program} gave no list of GPUs: {error}")
    if gpus:
        return Cards(gpus)
    said = (ended.stderr or ended.stdout).strip().splitlines()
    return Cards(reason=f"{program} lists no GPU (it ended with {ended.returncode}: {said[0] if said else 'no output'})")


@dataclass
class Torch:
    """A LibTorch: the folder of the Python package torch."""

    folder: Path
    version: str  # 2.11.0
    cuda: str | None  # 13.0; None: built without CUDA
    python: Path | None  # of the environment that holds it

    @property
    def lib(self) -> Path:
        return self.folder / "lib"


def _interpreter_beside(folder: Path) -> Path | None:
    """Of .../lib/python3.x/site-packages/torch."""
    found = folder.parents[3] / "bin/python3" if len(folder.parents) > 3 else None
    return found if found and found.exists() else None


def read_torch(folder: Path, python: Path | None = None) -> Torch:
    try:
        text = (folder / "version.py").read_text(encoding="utf-8")
    except OSError as error:
        raise SetupError(f"expected the folder of the Python package torch, found no version.py in '{folder}'") from error
    version = re.search(r"^__version__ = '(\d+\.\d+\.\d+)", text, re.MULTILINE)
    if version is None or not (folder / "lib/libtorch_cpu.so").exists():
        raise SetupError(f"'{folder}' is no LibTorch that can be used: expected a release in version.py, and lib/libtorch_cpu.so")
    cuda = re.search(r"^cuda: .* = '([\d.]+)'", text, re.MULTILINE)
    has_library = (folder / "lib/libtorch_cuda.so").exists()
    return Torch(folder, version[1], cuda[1] if cuda and has_library else None, python or _interpreter_beside(folder))


FIND_TORCH = "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"


def find_torch(environment: Mapping[str, str] = os.environ, own: Path | None = None) -> Torch:
    """LOCKSTEP_TORCH_DIR, else that of the python3 in PATH, else that of the environment `own` if there is such."""
    if environment.get("LOCKSTEP_TORCH_DIR"):
        return read_torch(Path(environment["LOCKSTEP_TORCH_DIR"]))
    python = shutil.which("python3", path=environment.get("PATH"))
    remedy = "name the folder of the Python package torch in LOCKSTEP_TORCH_DIR, or put its python3 first in PATH"
    if python is None:
        raise SetupError(f"there is no python3 in PATH to ask for torch: {remedy}")
    ended = subprocess.run([python, "-c", FIND_TORCH], capture_output=True, text=True, check=False, env=dict(environment))
    folder = ended.stdout.strip()
    if folder:
        return read_torch(Path(folder), Path(python))
    for found in sorted(own.glob("lib/python3*/site-packages/torch")) if own else []:
        return read_torch(found)
    raise SetupError(f"{python} has no torch: {remedy}")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def describe(cards: Cards, torch: Torch | None, programs: Mapping[str, object]) -> dict[str, object]:
    """The head of every file of results."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": {
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)),
            "kernel": platform.release(),
            "glibc": platform.libc_ver()[1],
        },
        "gpus": [asdict(gpu) for gpu in cards.gpus],
        "no_gpu": cards.reason,
        "driver": cards.gpus[0].driver if cards.gpus else None,
        "versions": {
            "torch": torch.version if torch else None,
            "cuda": torch.cuda if torch else None,
            "python": platform.python_version(),
        },
        "programs": dict(programs),
    }


def complain(error: Exception) -> int:
    print(f"./dev: {error}", file=sys.stderr)
    return 2
