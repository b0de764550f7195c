"""The programs that run on a GPU: those of this machine's own build, or a folder that was made on another machine.

Such a folder (`./dev package --gpu` makes it) has all that a machine without package registries lacks: bin with the programs,
lib with our backend for NCCL and the libraries that they are linked with, except LibTorch and the C and C++ run-time
libraries; programs.json says what they were built from."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from surroundings import SetupError, Torch

ROOT = Path(__file__).resolve().parents[2]
LIST = "programs.json"
TESTS = ["gpu_tests"]
BENCHES = ["bench_ddp_step", "bench_all_reduce_device", "resnet_train"]
LAUNCHER = "lockstep"
BACKEND = "liblockstep_nccl.so"
# Loaded when it is there, so no program is linked with it: without it, ranks are not bound to their cores.
LOADED_LATER = "libhwloc.so.15"
# What the programs are compiled from.
SOURCES = ("core", "vision", "studio", "tests", "bench", "examples", "cmake", "CMakeLists.txt")
SUFFIXES = {".cpp", ".h", ".inl", ".txt", ".cmake", ".in", ".map"}
# Parts of every system. A copy from another machine may not fit its other parts.
OF_THE_SYSTEM = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|gcc_s|stdc\+\+))\.so\.\d+")
MAKE_IT = "make it on a machine with package registries by `./dev package --gpu --torch {version}`, and bring it along"


def sources_hash(root: Path = ROOT) -> str:
    """Of the files alone: the machine with the GPU may have no git, nor the history."""
    digest = hashlib.sha256()
    for folder in SOURCES:
        top = root / folder
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.suffix in SUFFIXES and path.is_file():
                digest.update(f"{path.relative_to(root)}\0".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


@dataclass
class Programs:
    """`built_with`: the release of LibTorch. `packed`: made on another machine."""

    folder: Path
    built_with: str
    sources: str
    packed: bool = False

    def program(self, name: str) -> Path:
        path = self.folder / "bin" / name
        if not path.exists():
            remedy = MAKE_IT.format(version=self.built_with) if self.packed else "`./dev build --target gpu_programs` builds it"
            raise SetupError(f"{path} is not there; {remedy}")
        return path

    def there(self, names: list[str]) -> list[str]:
        return [name for name in names if (self.folder / "bin" / name).exists()]

    def environment(self, torch: Torch) -> dict[str, str]:
        """For our programs alone: Python's own libraries must not be replaced by those in lib."""
        folders = [str(self.folder / "lib"), str(torch.lib), os.environ.get("LD_LIBRARY_PATH", "")]
        return {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, folders)), "LOCKSTEP_TORCH_DIR": str(torch.folder)}

    def to_json(self) -> dict[str, object]:
        return {"torch": self.built_with, "sources": self.sources, "packed": self.packed}


def read_packed(folder: Path, root: Path = ROOT) -> Programs:
    """A folder of `./dev package --gpu`. It must be of these sources: other programs would give other results."""
    try:
        said = json.loads((folder / LIST).read_text(encoding="utf-8"))
        found = Programs(folder, said["torch"], said["sources"], packed=True)
    except FileNotFoundError as error:
        raise SetupError(f"there are no programs in {folder}") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SetupError(f"{folder / LIST} is damaged ({error}); {MAKE_IT.format(version='V')}") from error
    if found.sources != sources_hash(root):
        raise SetupError(f"the programs in {folder} were built from other sources than these; "
                         f"{MAKE_IT.format(version=found.built_with)}")
    return found


def check_torch(programs: Programs, torch: Torch) -> None:
    if torch.version != programs.built_with:
        raise SetupError(f"the programs in {programs.folder} were built with LibTorch {programs.built_with}, whose symbols differ "
                         f"from those of {torch.version} in '{torch.folder}'; {MAKE_IT.format(version=torch.version)}, or name "
                         "another folder in LOCKSTEP_TORCH_DIR")
    if torch.cuda is None:
        raise SetupError(f"LibTorch {torch.version} in '{torch.folder}' is without CUDA (no lib/libtorch_cuda.so); install the wheel "
                         "torch with CUDA, or name another folder in LOCKSTEP_TORCH_DIR")


def linked_libraries(file: Path, environment: Mapping[str, str]) -> tuple[dict[str, Path], list[str]]:
    """Libraries by name, and what cannot be had: missing libraries, versions that this system does not have."""
    ended = subprocess.run(["ldd", file], capture_output=True, text=True, check=False, env={**os.environ, **environment})
    found, wrong = {}, []
    for line in (ended.stdout + ended.stderr).splitlines():
        match = re.match(r"\s*(\S+) => (\S+) \(0x", line)
        if match:
            found[match[1]] = Path(match[2])
        elif "not found" in line:
            wrong.append(line.strip())
    return found, wrong


def check_linked(programs: Programs, torch: Torch, names: list[str]) -> None:
    """An error that names every missing library now is better than one program after the other that does not start."""
    wrong: dict[str, None] = {}
    files = [programs.program(name) for name in names]
    if (programs.folder / "lib" / BACKEND).exists():
        files.append(programs.folder / "lib" / BACKEND)
    for file in files:
        wrong |= dict.fromkeys(linked_libraries(file, programs.environment(torch))[1])
    if wrong:
        raise SetupError(f"the programs in {programs.folder} cannot start here: {'; '.join(wrong)}. Build them on a system that is not "
                         "newer than this one, or install these libraries")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source.resolve(), target)
    target.chmod(0o755)
    ended = subprocess.run(["strip", "--strip-unneeded", target], capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise SetupError(f"strip could not shorten {target}: {ended.stderr.strip()}")


def _loaded_later() -> list[Path]:
    program = shutil.which("ldconfig", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))
    if program is None:
        return []
    listed = subprocess.run([program, "-p"], capture_output=True, text=True, check=False).stdout
    found = re.findall(rf"^\s*{re.escape(LOADED_LATER)} .*=> (\S+)$", listed, re.MULTILINE)
    return [Path(found[0])] if found else []


def _carried(files: list[Path], torch: Torch, environment: Mapping[str, str]) -> dict[str, Path]:
    """The libraries to take along."""
    wheel = torch.folder.resolve().parent
    carried = {}
    for file in files:
        found, wrong = linked_libraries(file, environment)
        if wrong:
            raise SetupError(f"{file} is linked with what is not here: {'; '.join(wrong)}")
        for name, path in found.items():
            if not OF_THE_SYSTEM.fullmatch(name) and not path.resolve().is_relative_to(wheel):
                carried[name] = path
    return carried


def pack(build: Path, torch: Torch, folder: Path, limit_bytes: int) -> Programs:
    """Makes the folder anew from a build. Returns what is in it; an error if it is larger than the limit."""
    own = Programs(build, torch.version, sources_hash())
    names = [LAUNCHER, *TESTS, *BENCHES]
    environment = own.environment(torch)
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    files = [own.program(name) for name in names]
    backend = build / "lib" / BACKEND
    if not backend.exists():
        raise SetupError(f"{backend} is not built: LibTorch {torch.version} in '{torch.folder}' has no CUDA, or no headers of it")
    later = _loaded_later()
    carried = _carried([*files, backend, *later], torch, environment) | {path.name: path for path in later}
    for name, path in carried.items():
        _copy(path, part / "lib" / name)
    _copy(backend, part / "lib" / BACKEND)
    for file in files:
        _copy(file, part / "bin" / file.name)
    (part / LIST).write_text(json.dumps({"torch": torch.version, "sources": own.sources, "programs": names}, indent=1) + "\n",
                             encoding="utf-8")
    size = sum(path.stat().st_size for path in part.rglob("*") if path.is_file())
    if size > limit_bytes:
        raise SetupError(f"the programs for the GPU take {size >> 20} MiB, more than {limit_bytes >> 20} MiB; they are in {part}")
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
    return Programs(folder, torch.version, own.sources, packed=True)
