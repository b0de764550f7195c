"""./dev bench: measures Lockstep against its peers. A bench is a module in this folder with measure(tools) -> Outcome."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import statistics
import sys
import tempfile
from pathlib import Path

from harness import BenchError, Outcome, Row, Tools

BENCHES = ["all_reduce", "collectives", "p2p", "hosts", "init", "ddp_step", "hooks", "memory", "launch", "loader"]


def size_text(size: int | None) -> str:
    if size is None:
        return ""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size / (1 << 20):.1f} MiB" if size > 1 << 20 else f"{size} B"


def number(value: float) -> str:
    return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"


def spread(values: list[float]) -> str:
    return f"{number(statistics.median(values))} [{number(min(values))} .. {number(max(values))}]"


def table(rows: list[Row]) -> str:
    """A table of the rows, with the median and [min .. max] of all samples."""
    lines = [["case", "ranks", "size", "ours", "peer", "", "unit", "ratio"]]
    for row in rows:
        ratio = f"{row.ratio:.2f}x"
        lines.append(
            [row.case, str(row.ranks), size_text(row.bytes), spread(row.ours), row.peer_name, spread(row.peer),
             row.unit, ratio]
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    right = {1, 2, 7}
    return "\n".join(
        "  ".join(cell.rjust(width) if column in right else cell.ljust(width)
                  for column, (cell, width) in enumerate(zip(line, widths, strict=True))).rstrip()
        for line in lines
    )


def world_sizes(text: str) -> list[int]:
    sizes = [int(size) for size in text.split(",") if size.isdecimal() and int(size) > 0]
    if len(sizes) != text.count(",") + 1:
        raise argparse.ArgumentTypeError(f"expected positive numbers such as 2,4, found '{text}'")
    return sizes


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(BENCHES)} (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows as JSON")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, for a first look")
    parser.add_argument("--ranks", type=world_sizes, default="2,4", help="world sizes, for example 2 or 2,4")
    parser.add_argument("--build", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--peers", type=Path, required=True, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in BENCHES]
    if unknown:
        parser.error(f"unknown bench {', '.join(unknown)}: expected some of {', '.join(BENCHES)}")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # an exception, so that clean-up runs
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"note: the machine is busy (load {load:.1f}); figures will be worse and noisier")
    everything, missing = [], []
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as scratch:
        tools = Tools(
            build=arguments.build,
            peers=arguments.peers,
            python=Path(sys.executable),
            ranks=arguments.ranks,
            quick=arguments.quick,
            scratch=Path(scratch),
        )
        for name in arguments.names or BENCHES:
            print(f"\n== {name}", flush=True)
            try:
                outcome = importlib.import_module(name).measure(tools)
            except BenchError as error:
                outcome = Outcome(missing=[f"{name}: {error}"])
            print(table(outcome.rows) if outcome.rows else "nothing measured")
            for message in outcome.missing:
                print(f"MISSING {message}")
            sys.stdout.flush()
            everything += outcome.rows
            missing += outcome.missing
    if arguments.json:
        arguments.json.write_text(json.dumps([row.to_json() for row in everything], indent=1) + "\n", encoding="utf-8")
        print(f"\n{len(everything)} rows written to {arguments.json}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
