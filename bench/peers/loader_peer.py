"""Shared by the loader's peers: the options and measurements of bench/loader.cpp."""

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


def parse_arguments(
    description: str, measurements: list[str], ways: Sequence[str] = (), flags: Mapping[str, str] = {},
    packages: bool = False,
) -> argparse.Namespace:
    """`ways`: the choices of --way, the last is the default. `flags`: the peer's own switches and their help. `packages`:
    whether there is an option --packages."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--measure", choices=measurements, default="rates")
    parser.add_argument("--pipeline", choices=["reference", "crop-flip"], default="reference")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--extra-threads", type=int, default=0, help="beside the workers")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--output", type=Path, required=True)
    if ways:
        parser.add_argument("--way", choices=ways, default=ways[-1])
    if packages:
        parser.add_argument("--packages", required=True, help="a folder to import from")
    for name, text in flags.items():
        parser.add_argument(name, action="store_true", help=text)
    return parser.parse_args()


def rates(epochs: int, epoch: Callable[[], int]) -> list[float]:
    """Images per second of each epoch; `epoch` runs one and returns its number of images."""
    epoch()  # warm-up: starts the workers, caches the files
    found = []
    for _ in range(epochs):
        start = time.perf_counter()
        count = epoch()
        found.append(count / (time.perf_counter() - start))
    return found


def seconds(work: Callable[[], object]) -> list[float]:
    start = time.perf_counter()
    work()
    return [time.perf_counter() - start]


def report(output: Path, values: list[float]) -> None:
    output.write_text(json.dumps({"values": values}), encoding="utf-8")
