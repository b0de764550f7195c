"""Runs all commands of docs/tutorial.md, in one shell, as a reader would: tutorial.py PAGE FOLDER PREFIX CXX.

FOLDER is empty, PREFIX is where Lockstep is installed. The first command that fails ends it.
"""
import os
import re
import subprocess
import sys
from pathlib import Path

PROMISED = ["runs/first/report.html", "runs/two/checkpoints", "scaling/report.html", "runs/mobilenet/report.html",
            "runs/mobilenet/predictions.csv", "runs/mobilenet/model.pt", "runs/mobilenet/model.ts", "runs/first/model.ts",
            "runs/first/predictions.csv"]


def main(page: str, folder: str, prefix: str, compiler: str) -> None:
    blocks = re.findall(r"^```bash\n(.*?)^```", Path(page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    if len(blocks) < 9:
        sys.exit(f"found {len(blocks)} blocks of commands in {page}, expected at least 9")
    path = f"{prefix}/bin:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "CMAKE_PREFIX_PATH": prefix, "CXX": compiler, "OMP_NUM_THREADS": "1",
                   "CUDA_VISIBLE_DEVICES": ""}  # two processes would share the one GPU of a machine
    script = "set -euo pipefail\nset -x\n" + "\n".join(blocks)
    done = subprocess.run(["bash", "-c", script], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(done.stdout)
    if done.returncode != 0:
        sys.exit(f"a command of {page} ended with {done.returncode}")
    missing = [name for name in PROMISED if not (Path(folder) / "flowers" / name).exists()]
    if missing:
        sys.exit(f"{page} promises {', '.join(missing)}")
    report = (Path(folder) / "flowers/runs/first/report.html").read_text(encoding="utf-8")
    for text in ("Curves", "Where the time went", "Confusion, epoch", "Versions"):
        if text not in report:
            sys.exit(f"expected '{text}' in the report that the commands of {page} make")
    best = float(re.search(r"best accuracy: ([0-9.]+) %", done.stdout).group(1))
    if best < 90:
        sys.exit(f"{page} promises a model above 90 %, found {best}")
    for text in ("train 20/20: loss", "epoch 20: test loss", "epoch 30: test loss", "speed-up"):
        if text not in done.stdout:
            sys.exit(f"expected '{text}' in the output of the commands of {page}")


if __name__ == "__main__":
    main(*sys.argv[1:])
