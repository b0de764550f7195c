"""./dev bench --gpu: measures on a GPU, against PyTorch on the same card in the same call. A bench is a module in this folder
with measure(tools) -> Outcome, as for ./dev bench."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import harness
import machine
import report
from gpu_common import GpuTools
from harness import BenchError, Outcome
from run import world_sizes

sys.path.insert(0, str(harness.HERE.parent / "tools" / "gpu"))
import programs  # noqa: E402
import ready  # noqa: E402
from surroundings import SetupError, complain  # noqa: E402

BENCHES = ["gpu_step", "gpu_all_reduce", "gpu_train", "gpu_graph"]
LEAST = 30  # seconds that a bench needs to find out anything


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench --gpu", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(BENCHES)} (default: all)")
    ready.add_arguments(parser)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a first look")
    parser.add_argument("--rounds", type=int, metavar="N", help="how often to measure each contender")
    parser.add_argument("--ranks", type=world_sizes, default="2", help="world sizes of gpu_all_reduce, for example 2 or 2,4")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in BENCHES]
    if unknown:
        parser.error(f"unknown bench {', '.join(unknown)}: expected some of {', '.join(BENCHES)}")
    arguments.names = arguments.names or BENCHES
    return arguments


def measured(name: str, tools: GpuTools) -> Outcome:
    if tools.left() < LEAST:
        return Outcome(missing=[f"{name}: not measured; the time was used up"])
    try:
        return importlib.import_module(name).measure(tools)
    except BenchError as error:
        return Outcome(missing=[f"{name}: {error}"])


def measure_all(here: ready.Ready, arguments: argparse.Namespace, end: float) -> Outcome:
    """All benches: rows, notes, and what could not be measured."""
    del harness.ENVIRONMENT["CUDA_VISIBLE_DEVICES"]
    heading = machine.Machine(machine.pages_text(False), f"LibTorch {here.torch.version}, CUDA {here.torch.cuda}",
                              load=os.getloadavg()[0])
    gpu = here.cards.gpus[0]
    print("\n".join([*heading.lines(), f"- GPU: {len(here.cards.gpus)} x {gpu.name}, driver {gpu.driver}"]), flush=True)
    together = Outcome()
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as scratch:
        tools = GpuTools(build=here.programs.folder, peers=Path(scratch) / "peers", python=here.torch.python,
                         ranks=arguments.ranks, quick=arguments.quick, scratch=Path(scratch), rounds=arguments.rounds,
                         own=here.programs.environment(here.torch), end=end)
        for i, name in enumerate(arguments.names):
            # Each has its share of the time, and what the ones before it have left.
            tools.end = time.monotonic() + (end - time.monotonic()) / (len(arguments.names) - i)
            print(f"\n== {name}", flush=True)
            outcome = measured(name, tools)
            print(report.text_table(outcome.rows, heading) if outcome.rows else "nothing measured")
            print("\n".join([f"note: {note}" for note in outcome.notes] + [f"MISSING {text}" for text in outcome.missing]),
                  flush=True)
            for part in ("rows", "notes", "missing"):
                getattr(together, part).extend(getattr(outcome, part))
    return together


def main() -> int:
    arguments = parse_arguments()
    end = time.monotonic() + arguments.limit
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # an exception, so that clean-up runs
    try:
        here = ready.make_ready(arguments, programs.BENCHES)
        if here.torch.python is None:
            raise SetupError(f"there is no python3 beside '{here.torch.folder}', which the measurements of PyTorch need")
    except SetupError as error:
        ready.write_results(arguments.json, {"kind": "bench", "problem": str(error)})
        return complain(error)
    if here.cards.gpus:
        outcome = measure_all(here, arguments, end)
    else:
        outcome = Outcome(missing=[f"{name}: no GPU here" for name in arguments.names])
        print(ready.no_gpu_text(here))
    ready.write_results(arguments.json, {"kind": "bench", **here.head(), "rows": [row.to_json() for row in outcome.rows],
                                         "notes": outcome.notes, "missing": outcome.missing})
    return 1 if here.cards.gpus and outcome.missing else 0


if __name__ == "__main__":
    sys.exit(main())
