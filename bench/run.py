"""./dev bench: measures Lockstep against its peers. A bench is a module in this folder with measure(tools) -> Outcome.

`./dev bench tune PEER` searches the peer's settings instead."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shlex
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import charts
import machine
import page_blocks
import plots
import report
import scale
import tune
from harness import BenchError, Outcome, Tools

BENCHES = [
    "all_reduce",
    "collectives",
    "p2p",
    "hosts",
    "init",
    "ddp_step",
    "sync_batch_norm",
    "hooks",
    "optimizers",
    "zero",
    "data_parallel",
    "memory",
    "launch",
    "strangers",
    "recovery",
    "loader",
    "transforms",
    "checkpoint",
    "train",
    "trainer",
    "efficiency",
    "scale",
]


def world_sizes(text: str) -> list[int]:
    sizes = [int(size) for size in text.split(",") if size.isdecimal() and int(size) > 0]
    if len(sizes) != text.count(",") + 1:
        raise argparse.ArgumentTypeError(f"expected positive numbers such as 2,4, found '{text}'")
    return sizes


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"some of {', '.join(BENCHES)} (default: all); or tune and a peer's name"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows as JSON")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown for the pages")
    parser.add_argument("--into", type=Path, metavar="PLACE",
                        help="replace the tables in this page, or in the pages of this folder; draw the charts again")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a first look")
    parser.add_argument("--rounds", type=int, metavar="N", help="how often to measure each contender")
    parser.add_argument(
        "--ranks", type=world_sizes, help="world sizes, for example 2 or 2,4 (default: 2; scale: 1,2,4,8,16 up to the cores)"
    )
    parser.add_argument("--pages", choices=["huge", "small"], default="huge", help="pages of all contenders")
    parser.add_argument("--build", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--peers", type=Path, required=True, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    known, kind = BENCHES, "bench"
    if arguments.names[:1] == ["tune"]:
        known, kind = list(tune.PEERS), "peer"
        del arguments.names[0]
    unknown = [name for name in arguments.names if name not in known]
    if unknown:
        parser.error(f"unknown {kind} {', '.join(unknown)}: expected some of {', '.join(known)}")
    prefix = "tune " if kind == "peer" else ""
    arguments.names = [prefix + name for name in arguments.names or known]
    return arguments


def default_ranks(name: str) -> list[int]:
    return scale.default_ranks() if name == "scale" else [2]


def command_text(name: str, arguments: argparse.Namespace) -> str:
    """The command that makes this table again."""
    options = ["--quick"] if arguments.quick else []
    if arguments.rounds:
        options += ["--rounds", str(arguments.rounds)]
    if arguments.ranks not in (None, default_ranks(name)):
        options += ["--ranks", ",".join(map(str, arguments.ranks))]
    if arguments.pages != "huge":
        options += ["--pages", arguments.pages]
    return shlex.join(["./dev", "bench", *name.split(), *options, "--markdown"])


def block_name(name: str, arguments: argparse.Namespace) -> str:
    """The name of the block in a page: other ranks or pages make another table. More or fewer rounds do not."""
    same = argparse.Namespace(**{**vars(arguments), "quick": False, "rounds": None})
    return command_text(name, same).removeprefix("./dev bench ").removesuffix(" --markdown")


def measured(name: str, tools: Tools) -> Outcome:
    try:
        return importlib.import_module(name).measure(tools)
    except BenchError as error:
        return Outcome(missing=[f"{name}: {error}"])


def write(block: str, text: str, missing: list[str], arguments: argparse.Namespace) -> None:
    """Markdown: prints the block, replaces it in the page, or both."""
    if arguments.markdown or not arguments.into:
        print(page_blocks.wrapped(block, text))
    if arguments.into:
        page = page_blocks.page_with(arguments.into, block)
        page.write_text(page_blocks.replaced(page.read_text(encoding="utf-8"), block, text), encoding="utf-8")
        print(f"{page}: table {block} written", file=sys.stderr)
    for message in missing:
        print(f"MISSING {message}", file=sys.stderr)
    sys.stdout.flush()


def draw_charts() -> list[str]:
    """Returns a message if a table lacks what a chart shows; the charts stay as they were."""
    try:
        for chart in charts.write(charts.ROOT):
            print(f"{chart} drawn", file=sys.stderr)
    except ValueError as error:
        return [f"charts: {error}"]
    return []


def show(outcome: Outcome, here: machine.Machine) -> None:
    print(report.text_table(outcome.rows, here) if outcome.rows else "nothing measured")
    for remark in outcome.notes:
        print(f"note: {remark}")
    for message in outcome.missing:
        print(f"MISSING {message}")
    sys.stdout.flush()


def write_plots(file: Path, command: str, outcome: Outcome, here: machine.Machine) -> None:
    file.write_text(plots.page(command.removesuffix(" --markdown"), outcome.rows, here.lines()), encoding="utf-8")
    print(f"plots written to {file}", file=sys.stderr)


def measure_machine(tools: Tools, arguments: argparse.Namespace) -> machine.Machine:
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"note: the machine is busy (load {load:.1f}); figures will be worse and noisier", file=sys.stderr)
    here = machine.Machine(machine.pages_text(arguments.pages == "small"), machine.versions(tools), load=load)
    here.noise = machine.measure_noise(tools)
    print("\n".join(here.lines()), flush=True, file=sys.stderr if arguments.markdown else sys.stdout)
    return here


def measure_all(tools: Tools, arguments: argparse.Namespace) -> list[str]:
    """Measures, shows and writes. Returns messages about what could not be measured."""
    here = measure_machine(tools, arguments)
    rows, missing = [], []
    for name in arguments.names:
        print(f"\n== {name}", flush=True, file=sys.stderr if arguments.markdown else sys.stdout)
        command = command_text(name, arguments)
        if name.startswith("tune "):
            text, unmeasured = tune.measure(tools, name.removeprefix("tune "), here, command)
            write(block_name(name, arguments), text, unmeasured, arguments)
            missing += unmeasured
            continue
        outcome = measured(name, replace(tools, ranks=arguments.ranks or default_ranks(name)))
        if not arguments.markdown:
            show(outcome, here)
        if name == "scale":
            write_plots(tools.build.parent / "scale.html", command, outcome, here)
        if arguments.markdown or arguments.into:
            write(block_name(name, arguments), report.markdown(outcome, command, here), outcome.missing, arguments)
        rows += outcome.rows
        missing += outcome.missing
    if arguments.into:
        unlike = draw_charts()
        print("".join(f"MISSING {message}\n" for message in unlike), end="", file=sys.stderr)
        missing += unlike
    if arguments.json:
        arguments.json.write_text(json.dumps([row.to_json() for row in rows], indent=1) + "\n", encoding="utf-8")
        print(f"\n{len(rows)} rows written to {arguments.json}", file=sys.stderr)
    return missing


def check_pages(arguments: argparse.Namespace) -> None:
    """An error now is better than one after an hour of measuring."""
    for name in arguments.names:
        page_blocks.page_with(arguments.into, block_name(name, arguments))


def main() -> int:
    arguments = parse_arguments()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # an exception, so that clean-up runs
    if arguments.into:
        try:
            check_pages(arguments)
        except (OSError, ValueError) as error:
            print(f"./dev bench: --into {arguments.into}: {error}", file=sys.stderr)
            return 2
    if arguments.pages == "small":
        machine.use_small_pages()
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as scratch:
        tools = Tools(
            build=arguments.build,
            peers=arguments.peers,
            python=Path(sys.executable),
            ranks=[2],
            quick=arguments.quick,
            scratch=Path(scratch),
            rounds=arguments.rounds,
        )
        return 1 if measure_all(tools, arguments) else 0


if __name__ == "__main__":
    sys.exit(main())
