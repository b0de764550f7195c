"""loader: images per second from JPEG files to normalised batches, against torchvision and NVIDIA DALI (CPU); and the
index, the first batch and memory against limits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from harness import BenchError, Outcome, Row, Samples, Tools, interleave, run

PEERS = Path(__file__).resolve().parent / "peers"
ROUNDS, QUICK_ROUNDS = 5, 1
EPOCHS, MEMORY_EPOCHS = 4, 20
PIPELINES = ["reference", "crop-flip"]
FILES, CLASSES = 100_000, 100
# The limits for indexing FILES files, for the first batch and for growth over MEMORY_EPOCHS epochs.
INDEX_SECONDS, FIRST_BATCH_SECONDS, GROWTH_MIB = 1.0, 0.3, 8.0


def peer_python(tools: Tools) -> Path:
    """The peers' own virtual environment, with DALI and the photographs."""
    python = tools.peers / "bin" / "python"
    if not python.exists():
        raise BenchError(f"{python} is missing: ./dev bench creates it")
    return python


def images(tools: Tools) -> Path:
    folder = tools.scratch / "images"
    if not folder.exists():
        run([str(peer_python(tools)), str(PEERS / "make_images.py"), str(folder)])
    return folder


def many_files(tools: Tools) -> Path:
    """Empty files, because an index does not open them."""
    folder = tools.scratch / "many"
    for label in range(CLASSES):
        of_class = folder / f"class{label:03}"
        of_class.mkdir(parents=True)
        for number in range(FILES // CLASSES):
            (of_class / f"{number:06}.jpg").touch()
    return folder


def pack(tools: Tools, folder: Path) -> Path:
    """The same pictures in one file, shorter side 256 pixels (was 375), JPEG quality 90. Made once, not timed."""
    file = tools.scratch / "images.pack"
    if not file.exists():
        run([str(tools.program("lockstep-pictures")), "pack", str(folder), str(file), "--resize", "256", "--quality", "90"])
    return file


class Bench:
    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self.outcome = Outcome()
        self.rounds = QUICK_ROUNDS if tools.quick else ROUNDS
        program = tools.program("bench_loader")
        self.commands = {
            "fast": [program, "--precision", "fast"],
            "exact": [program, "--precision", "exact"],
            "torchvision": [tools.python, PEERS / "loader.py"],
            "dali": [peer_python(tools), PEERS / "loader_dali.py"],
        }

    def once(self, who: str, **options: object) -> Callable[[], Samples]:
        """Runs a program with these options once; returns its values."""

        def values() -> Samples:
            output = self.tools.scratch_file()
            given = [part for name, value in options.items() for part in (f"--{name}", value)]
            run([str(part) for part in [*self.commands[who], *given, "--output", output]])
            return {None: json.loads(output.read_text(encoding="utf-8"))["values"]}

        return values

    def rates(self, who: str, folder: Path, pipeline: str, workers: int) -> Callable[[], Samples]:
        return self.once(who, folder=folder, pipeline=pipeline, workers=workers, epochs=EPOCHS)

    def measure(self, contenders: dict[str, Callable[[], Samples]], what: str) -> dict[str, list[float]]:
        found = interleave(contenders, self.rounds, self.outcome, f"loader {what}")
        return {name: samples[None] for name, samples in found.items()}

    def add(self, case: str, ours: list[float] | None, peer: list[float] | None, name: str, unit: str = "images/s") -> None:
        if ours and peer:
            rate = unit == "images/s"
            self.outcome.rows.append(Row("loader", case, None, 1, ours, peer, name, unit, more_is_better=rate))

    def throughput(self, folder: Path) -> None:
        for pipeline in PIPELINES:
            contenders = {who: self.rates(who, folder, pipeline, 2) for who in self.commands}
            found = self.measure(contenders, f"{pipeline}, 2 workers")
            for precision in ("fast", "exact"):
                self.add(f"{pipeline}-{precision}", found.get(precision), found.get("torchvision"), "torchvision")
            self.add(f"{pipeline}-fast", found.get("fast"), found.get("dali"), "dali")

    def packed(self, folder: Path) -> None:
        contenders = {
            "packed": self.rates("fast", pack(self.tools, folder), "crop-flip", 2),
            "torchvision": self.rates("torchvision", folder, "crop-flip", 2),
        }
        found = self.measure(contenders, "packed, crop-flip, 2 workers")
        self.add("packed", found.get("packed"), found.get("torchvision"), "torchvision")

    def threads(self, folder: Path) -> None:
        contenders = {
            "none": self.rates("fast", folder, "reference", 0),
            "one": self.rates("fast", folder, "reference", 1),
            "two": self.rates("fast", folder, "reference", 2),
            "torchvision": self.rates("torchvision", folder, "reference", 0),
        }
        found = self.measure(contenders, "threads")
        self.add("one-thread", found.get("none"), found.get("torchvision"), "torchvision")
        # Two threads can reach at most twice the rate of one.
        self.add("two-threads", found.get("two"), [2 * rate for rate in found.get("one", [])], "limit")

    def starting(self, folder: Path) -> None:
        many = many_files(self.tools)
        for case, measured, place, most in (
            ("index-100k", "index", many, INDEX_SECONDS),
            ("first-batch", "first-batch", folder, FIRST_BATCH_SECONDS),
        ):
            contenders = {who: self.once(who, measure=measured, folder=place) for who in ("fast", "torchvision")}
            found = self.measure(contenders, case)
            self.add(case, found.get("fast"), [most], "limit", "s")
            self.add(case, found.get("fast"), found.get("torchvision"), "torchvision", "s")

    def memory(self, folder: Path) -> None:
        """Resident memory after the last epoch, against that after the first epoch (after a warm-up) plus the limit."""
        contender = self.once("fast", measure="memory", folder=folder, epochs=MEMORY_EPOCHS)
        values = self.measure({"fast": contender}, "memory").get("fast", [])
        allowed = [first + GROWTH_MIB for first in values[::MEMORY_EPOCHS]]
        self.add("memory-20-epochs", values[MEMORY_EPOCHS - 1 :: MEMORY_EPOCHS], allowed, "limit", "MiB")


def measure(tools: Tools) -> Outcome:
    bench = Bench(tools)
    folder = images(tools)
    for part in (bench.throughput, bench.packed, bench.threads, bench.starting, bench.memory):
        part(folder)
    return bench.outcome
