"""./dev package --gpu: a folder with the programs for GPUs, for machines that cannot build them. With --check: whether a
folder has the programs of these sources."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import surroundings
import programs
from surroundings import SetupError

LIMIT_MIB = 56  # so that it can travel with the sources where 64 MiB is the limit


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--build", type=Path)
    parser.add_argument("--torch-dir", type=Path)
    arguments = parser.parse_args()
    try:
        if arguments.check:
            programs.read_packed(arguments.folder)
            return 0
        torch = surroundings.read_torch(arguments.torch_dir)
        found = programs.pack(arguments.build, torch, arguments.folder, LIMIT_MIB << 20)
    except SetupError as error:
        return surroundings.complain(error)
    files = [path for path in found.folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / (1 << 20)
    print(f"{arguments.folder}: {len(files)} files, {size:.1f} MiB, for LibTorch {torch.version} with CUDA {torch.cuda}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
