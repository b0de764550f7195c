"""loader: images a second from JPEG files to normalised batches, against torchvision and NVIDIA DALI (CPU)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from harness import BenchError, Outcome, Row, Samples, Tools, interleave, run

PEERS = Path(__file__).resolve().parent / "peers"
ROUNDS, QUICK_ROUNDS = 5, 1
EPOCHS = 2
PIPELINES = ["reference", "crop-flip"]


def peer_python(tools: Tools) -> Path:
    """The peers' own environment: DALI, and the photographs."""
    python = tools.peers / "bin" / "python"
    if not python.exists():
        raise BenchError(f"{python} is not there: ./dev bench sets it up")
    return python


def images(tools: Tools) -> Path:
    folder = tools.scratch / "images"
    if not folder.exists():
        run([str(peer_python(tools)), str(PEERS / "make_images.py"), str(folder)])
    return folder


def pack(tools: Tools, folder: Path) -> Path:
    """The same pictures in one file, the shorter side 256 pixels (375 before), JPEG quality 90. Made once, not timed."""
    file = tools.scratch / "images.pack"
    if not file.exists():
        run([str(tools.program("lockstep-pictures")), "pack", str(folder), str(file), "--resize", "256", "--quality", "90"])
    return file


def rates(tools: Tools, folder: Path, command: list[object], pipeline: str, workers: int) -> Callable[[], Samples]:
    """Images a second of each epoch."""

    def once() -> Samples:
        output = tools.scratch_file()
        options = ["--folder", folder, "--pipeline", pipeline, "--workers", workers, "--epochs", EPOCHS, "--output", output]
        run([str(part) for part in [*command, *options]])
        return {pipeline: json.loads(output.read_text(encoding="utf-8"))["images_per_second"]}

    return once


def add(outcome: Outcome, case: str, found: dict[str, Samples], pipeline: str, ours: str, peer: str, name: str) -> None:
    mine, theirs = found.get(ours, {}).get(pipeline), found.get(peer, {}).get(pipeline)
    if mine and theirs:
        outcome.rows.append(Row("loader", case, None, 1, mine, theirs, name, "images/s", more_is_better=True))


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    rounds = QUICK_ROUNDS if tools.quick else ROUNDS
    folder = images(tools)
    program = tools.program("bench_loader")
    fast, exact = [program, "--precision", "fast"], [program, "--precision", "exact"]
    torchvision, dali = [tools.python, PEERS / "loader.py"], [peer_python(tools), PEERS / "loader_dali.py"]
    for pipeline in PIPELINES:
        contenders = {
            "fast": rates(tools, folder, fast, pipeline, 2),
            "exact": rates(tools, folder, exact, pipeline, 2),
            "torchvision": rates(tools, folder, torchvision, pipeline, 2),
            "dali": rates(tools, folder, dali, pipeline, 2),
        }
        found = interleave(contenders, rounds, outcome, f"loader {pipeline}, 2 workers")
        for precision in ("fast", "exact"):
            add(outcome, f"{pipeline}-{precision}", found, pipeline, precision, "torchvision", "torchvision")
        add(outcome, f"{pipeline}-fast", found, pipeline, "fast", "dali", "dali")
    contenders = {
        "packed": rates(tools, pack(tools, folder), fast, "crop-flip", 2),
        "torchvision": rates(tools, folder, torchvision, "crop-flip", 2),
    }
    found = interleave(contenders, rounds, outcome, "loader packed (shorter side 256, quality 90), crop-flip, 2 workers")
    add(outcome, "packed", found, "crop-flip", "packed", "torchvision", "torchvision")
    contenders = {
        "none": rates(tools, folder, fast, "reference", 0),
        "one": rates(tools, folder, fast, "reference", 1),
        "two": rates(tools, folder, fast, "reference", 2),
        "torchvision": rates(tools, folder, torchvision, "reference", 0),
    }
    found = interleave(contenders, rounds, outcome, "loader, threads")
    add(outcome, "one-thread", found, "reference", "none", "torchvision", "torchvision")
    # The most that two threads can reach: twice what one does.
    if "one" in found:
        found["limit"] = {"reference": [2 * rate for rate in found["one"]["reference"]]}
        add(outcome, "two-threads", found, "reference", "two", "limit", "limit")
    return outcome
