"""From the command line to programs that can run: the arguments of ./dev that test and bench share, and the checks."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import surroundings
import programs
from surroundings import Cards, Torch
from programs import Programs

LIMIT = 540  # seconds: nine minutes


@dataclass
class Ready:
    """Programs that start here. `there`: the names of those that are built."""

    programs: Programs
    torch: Torch
    cards: Cards
    there: list[str]

    def head(self) -> dict[str, object]:
        return surroundings.describe(self.cards, self.torch, self.programs.to_json())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("--limit", type=int, default=LIMIT, metavar="SECONDS", help="what has not run by then does not run")
    # From ./dev: one of the two.
    parser.add_argument("--packed", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--build", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--torch-dir", type=Path, help=argparse.SUPPRESS)


def make_ready(arguments: argparse.Namespace, names: list[str]) -> Ready:
    """`names`: the programs that must be there. Raises SetupError with everything that is wrong about one thing."""
    if arguments.packed:
        found = programs.read_packed(arguments.packed)
        torch = surroundings.find_torch(own=programs.ROOT / ".deps" / f"torch-{found.built_with}")
    else:
        torch = surroundings.read_torch(arguments.torch_dir)
        found = Programs(arguments.build, torch.version, programs.sources_hash())
    cards = surroundings.find_cards()
    programs.check_torch(found, torch)
    programs.check_linked(found, torch, [programs.LAUNCHER, *names])
    return Ready(found, torch, cards, found.there([*programs.TESTS, *programs.BENCHES]))


def no_gpu_text(ready: Ready) -> str:
    return f"no GPU here: {ready.cards.reason}. {len(ready.there)} programs built, none run"


def write_results(path: Path | None, results: dict[str, object]) -> None:
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    part.rename(path)
