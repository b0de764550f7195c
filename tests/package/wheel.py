"""Run by ctest: the wheel of `./dev package --wheel` installs beside torch without a compiler, and two ranks train with it.

usage: wheel.py BUILD SCRATCH   (with tools/wheel.py's PYTHONPATH and PATH)
"""
import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]


def output(*command, **options):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {result.returncode}:\n{result.stdout}")
    return result.stdout


def main():
    build, scratch = map(pathlib.Path, sys.argv[1:])
    shutil.rmtree(scratch, ignore_errors=True)
    output(sys.executable, "-B", SOURCE / "tools/wheel.py", build, scratch / "wheels")
    (wheel,) = (scratch / "wheels").iterdir()
    assert "-manylinux_" in wheel.name, wheel
    installed = scratch / "installed"
    output(sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--target", installed, wheel)
    (package,) = importlib.metadata.distributions(path=[str(installed)])
    torch = importlib.metadata.version("torch").partition("+")[0]
    assert package.requires == [f"torch=={torch}"], package.requires
    assert "torch.distributed.backends" in {point.group for point in package.entry_points}, package.entry_points
    environment = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    said = output(build / "bin/lockstep", "run", "--nproc-per-node", "2", sys.executable, "-B",
                  pathlib.Path(__file__).with_name("wheel_train.py"), env=environment, timeout=200)
    assert said.count("trained") == 2, said
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
