"""Packs the Python package of a build as a wheel that pip installs on other machines. Nothing is compiled.

The files are those of the CMake component `python`, the metadata is what scikit-build-core makes of pyproject.toml, as
in `pip install .`. auditwheel puts the shared libraries into the wheel and finds the oldest Linux that the wheel runs
on (manylinux). LibTorch's libraries stay out: they come with the torch that the wheel requires. Must run with the Python
and the torch that the build is for.

usage: wheel.py BUILD FOLDER   (prints the wheel's path last)
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from scikit_build_core.build import prepare_metadata_for_build_wheel

SOURCE = pathlib.Path(__file__).resolve().parent.parent


def run(*command):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {result.returncode}:\n{result.stdout}")


def the_wheel_in(folder):
    (wheel,) = folder.glob("*.whl")
    return wheel


def main():
    build, into = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
    os.chdir(SOURCE)  # where scikit-build-core looks for pyproject.toml
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        content, repaired = scratch / "content", scratch / "repaired"
        content.mkdir()
        run("cmake", "--install", build, "--component", "python", "--strip", "--prefix", content)
        prepare_metadata_for_build_wheel(str(content))
        run(sys.executable, "-m", "wheel", "pack", content, "--dest-dir", scratch)
        run(sys.executable, "-m", "auditwheel", "repair", "--exclude", "libtorch*", "--exclude", "libc10*", "--wheel-dir",
            repaired, the_wheel_in(scratch))
        into.mkdir(parents=True, exist_ok=True)
        print(shutil.copy2(the_wheel_in(repaired), into))


if __name__ == "__main__":
    main()
