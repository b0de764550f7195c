"""loader: images per second from JPEG files to normalised batches, against torchvision, NVIDIA DALI (CPU) and others, each
in the best of its ways; and the index, the first batch and memory against limits.

The suffix of a case is our precision: "fast", or "exact" (PIL's pixels). Both are compared with the same peers.
"""

from __future__ import annotations

import json
from pathlib import Path

from by_size import NO_WAY
from harness import HERE, BenchError, Contender, Outcome, Row, Samples, Tools, best_way, interleave, run
from peer_ways import LOADER_ALLOCATOR, Way, usual
from settings import best_settings

PEERS = HERE / "peers"
ROUNDS, QUICK_ROUNDS = 6, 1
EPOCHS, QUICK_EPOCHS, MEMORY_EPOCHS = 3, 1, 20  # after one that warms up
# The pipelines, and who has one like it.
PIPELINES = {"reference": ["torchvision", "dali", "spdl"], "crop-flip": ["torchvision", "dali", "spdl", "datago"]}
PRECISIONS = ["fast", "exact"]
FILES, CLASSES = 100_000, 100
# The limits for indexing FILES files, for the first batch and for growth over MEMORY_EPOCHS epochs.
INDEX_SECONDS, FIRST_BATCH_SECONDS, GROWTH_MIB = 1.0, 0.3, 8.0


def peer_python(tools: Tools) -> Path:
    """The peers' own virtual environment, with DALI and the photographs."""
    python = tools.peers / "bin" / "python"
    if not python.exists():
        raise BenchError(f"{python} is missing: ./dev bench creates it")
    return python


def peer_packages(tools: Tools) -> Path:
    """Where that environment has its packages."""
    return next(tools.peers.resolve().glob("lib/python3*/site-packages"))


def images(tools: Tools) -> tuple[Path, Path]:
    """The folder of pictures, and that of the same with a shorter side of 256 pixels."""
    folder, small = tools.scratch / "images", tools.scratch / "images-256"
    if not folder.exists():
        run([str(peer_python(tools)), str(PEERS / "make_images.py"), str(folder), str(small)])
    return folder, small


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
    """The files of this folder in one, byte for byte. Made once, not timed."""
    file = tools.scratch / "images.pack"
    if not file.exists():
        run([str(tools.program("lockstep-pictures")), "pack", str(folder), str(file)])
    return file


class Bench:
    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self.outcome = Outcome()
        self.rounds = tools.choose_rounds(ROUNDS, QUICK_ROUNDS)
        self.epochs = QUICK_EPOCHS if tools.quick else EPOCHS
        program = tools.program("bench_loader")
        self.commands = {
            "fast": [program, "--precision", "fast"],
            "exact": [program, "--precision", "exact"],
            "torchvision": [tools.python, PEERS / "loader.py"],
            "dali": [peer_python(tools), PEERS / "loader_dali.py"],
            "spdl": [tools.python, PEERS / "loader_spdl.py", "--packages", peer_packages(tools)],
            "datago": [peer_python(tools), PEERS / "loader_datago.py"],
        }

    def once(self, who: str, way: Way = NO_WAY, **options: object) -> Contender:
        """Runs a program with these options once; returns its values."""

        def values() -> Samples:
            output = self.tools.scratch_file()
            given = [part for name, value in options.items() for part in (f"--{name}", value)]
            run([str(part) for part in [*self.commands[who], *way.options, *given, "--output", output]], way.environment)
            return {None: json.loads(output.read_text(encoding="utf-8"))["values"]}

        return values

    def rates(self, who: str, folder: Path, pipeline: str, workers: int, way: Way = NO_WAY, epochs: int = 0) -> Contender:
        return self.once(who, way, folder=folder, pipeline=pipeline, workers=workers, epochs=epochs or self.epochs)

    def best(self, who: str, folder: Path, pipeline: str, workers: int, what: str) -> dict[str, Contender]:
        """The peer in its best way for this row, with the best allocator for that, under its name."""

        def one_epoch(way: Way) -> Contender:
            return self.rates(who, folder, pipeline, workers, way, epochs=1)

        settings = {"way": usual(who), "allocator": LOADER_ALLOCATOR}
        way, names = best_settings(NO_WAY, settings, one_epoch, self.outcome, f"loader {what}, {who}", more_is_better=True,
                                   passes=2)
        self.outcome.notes.append(f"{what}: {who}, best of its ways: {names}")
        return {who: self.rates(who, folder, pipeline, workers, way)}

    def measure(self, contenders: dict[str, Contender], what: str) -> dict[str, list[float]]:
        found = interleave(contenders, self.rounds, self.outcome, f"loader {what}")
        return {name: samples[None] for name, samples in found.items()}

    def add(self, case: str, ours: list[float] | None, peer: list[float] | None, name: str, unit: str = "images/s") -> None:
        if ours and peer:
            rate = unit == "images/s"
            self.outcome.rows.append(Row("loader", case, None, 1, ours, peer, name, unit, more_is_better=rate))

    def throughput(self, folder: Path, _: Path) -> None:
        for pipeline, names in PIPELINES.items():
            what = f"{pipeline}, 2 workers"
            peers: dict[str, Contender] = {}
            for name in names:
                peers |= self.best(name, folder, pipeline, 2, what)
            contenders = {who: self.rates(who, folder, pipeline, 2) for who in PRECISIONS} | peers
            found = self.measure(contenders, what)
            for precision in PRECISIONS:
                for peer in peers:
                    self.add(f"{pipeline}-{precision}", found.get(precision), found.get(peer), peer)

    def packed(self, _: Path, small: Path) -> None:
        """Ours from a pack and from the folder that it was made of, the peers from that folder."""
        what = "pictures of 256 pixels, crop-flip, 2 workers"
        peers = self.best("torchvision", small, "crop-flip", 2, what) | self.best("dali", small, "crop-flip", 2, what)
        file = pack(self.tools, small)
        ours = {f"packed-{who}": self.rates(who, file, "crop-flip", 2) for who in PRECISIONS}
        ours["small-fast"] = self.rates("fast", small, "crop-flip", 2)
        found = self.measure(ours | peers, what)
        for case in ours:
            for peer in peers:
                self.add(case, found.get(case), found.get(peer), peer)

    def threads(self, folder: Path, _: Path) -> None:
        contenders = {str(workers): self.rates("fast", folder, "reference", workers) for workers in (0, 1, 2)}
        contenders["exact"] = self.rates("exact", folder, "reference", 0)
        contenders |= self.best("torchvision", folder, "reference", 0, "reference, in process")
        found = self.measure(contenders, "threads")
        self.add("one-thread-fast", found.get("0"), found.get("torchvision"), "torchvision")
        self.add("one-thread-exact", found.get("exact"), found.get("torchvision"), "torchvision")
        # Two threads can reach at most twice the rate of one.
        self.add("two-threads", found.get("2"), [2 * rate for rate in found.get("1", [])], "limit")

    def best_first_batch(self, folder: Path) -> Contender:
        """torchvision's. To start processes may take longer than to make the batch without them."""
        tried = {
            f"{name}, {'2 workers' if workers else 'in process'}":
                self.once("torchvision", way, measure="first-batch", folder=folder, workers=workers)
            for name, way in usual("torchvision").items() for workers in (0, 2)
        }
        chosen = best_way(tried, self.outcome, "loader first-batch, ways of torchvision")
        way = chosen.get(None, next(iter(tried)))
        self.outcome.notes.append(f"first-batch: torchvision, best of its ways: {way}")
        return tried[way]

    def starting(self, folder: Path, _: Path) -> None:
        many = many_files(self.tools)
        for case, measured, place, most in (
            ("index-100k", "index", many, INDEX_SECONDS),
            ("first-batch", "first-batch", folder, FIRST_BATCH_SECONDS),
        ):
            contenders = {
                "fast": self.once("fast", measure=measured, folder=place),
                "torchvision": self.best_first_batch(place) if measured == "first-batch" else
                               self.once("torchvision", measure=measured, folder=place),
            }
            found = self.measure(contenders, case)
            self.add(case, found.get("fast"), [most], "aim", "s")
            self.add(case, found.get("fast"), found.get("torchvision"), "torchvision", "s")

    def memory(self, folder: Path, _: Path) -> None:
        """Resident memory after the last epoch, against that after the first epoch (after a warm-up) plus the allowance."""
        once = self.once("fast", measure="memory", folder=folder, epochs=MEMORY_EPOCHS)

        def first_and_last() -> Samples:
            values = once()[None]
            return {"first": [values[0] + GROWTH_MIB], "last": [values[-1]]}

        found = interleave({"fast": first_and_last}, self.rounds, self.outcome, "loader memory").get("fast", {})
        self.add("memory-20-epochs", found.get("last"), found.get("first"), "allowance", "MiB")


def measure(tools: Tools) -> Outcome:
    bench = Bench(tools)
    folders = images(tools)
    for part in (bench.throughput, bench.packed, bench.threads, bench.starting, bench.memory):
        part(*folders)
    return bench.outcome
