"""checkpoint: loading and saving state dicts against PyTorch and the package safetensors, and how long an asynchronous
save keeps a training, against 5 % of a synchronous one.

Files are loaded from the cache of the file system, written by the peer, and every value is read once. Lockstep waits until
the disk has a file that it saves; "flushed" peers do too. Lockstep's files have a checksum, those of safetensors have none.
PyTorch can leave its CRC-32 out when it saves ("without CRC-32"), and map a file instead of copying it ("mapped").

The stall of an asynchronous save is the time of save().
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from harness import HERE, Contender, Outcome, Row, Samples, Tools, interleave, run
from loader import peer_packages, peer_python

MIB, QUICK_MIB = 512, 128
TIMES, ROUNDS, QUICK_ROUNDS = 5, 6, 2
MOST_STALL = 0.05
FORMATS = {"pt": "pytorch", "safetensors": "safetensors"}
# Options of peers/checkpoint.py, by what the peer's name in the table ends with.
SAVES = {"pt": {"": (), "flushed": ("--flush",), "without CRC-32": ("--no-checksum",)},
         "safetensors": {"": (), "flushed": ("--flush",)}}
LOADS = {"pt": {"": (), "mapped": ("--mapped",)}, "safetensors": {"": ()}}  # the package maps files by itself


class Bench:
    def __init__(self, tools: Tools) -> None:
        peer_python(tools)  # safetensors is there
        self.tools = tools
        self.outcome = Outcome()
        self.mib = QUICK_MIB if tools.quick else MIB
        self.rounds = tools.choose_rounds(ROUNDS, QUICK_ROUNDS)

    def once(self, command: list[object], measured: str, file: Path) -> Contender:
        def values() -> Samples:
            output = self.tools.scratch_file()
            options = ["--measure", measured, "--file", file, "--mib", self.mib, "--times", TIMES, "--output", output]
            run([str(part) for part in [*command, *options]])
            return {None: [1e3 * value for value in json.loads(output.read_text(encoding="utf-8"))["values"]]}

        return values

    def ours(self, measured: str, file: Path) -> Contender:
        return self.once([self.tools.program("bench_checkpoint")], measured, file)

    def peer(self, measured: str, file: Path, *options: str) -> Contender:
        script = HERE / "peers" / "checkpoint.py"
        return self.once([self.tools.python, script, "--packages", peer_packages(self.tools), *options], measured, file)

    def add(self, case: str, found: dict[str, Samples], name: str, peer: str, ours: str = "ours") -> None:
        if ours in found and name in found:
            row = Row("checkpoint", case, self.mib << 20, 1, found[ours][None], found[name][None], peer, "ms")
            self.outcome.rows.append(row)

    def files(self) -> None:
        for ending, peer in FORMATS.items():
            file = self.tools.scratch / f"state.{ending}"
            self.compare("save", file, peer, SAVES[ending])
            self.peer("save", file)()
            self.compare("load", file, peer, LOADS[ending])
            file.unlink()

    def compare(self, measured: str, file: Path, peer: str, ways: Mapping[str, tuple[str, ...]]) -> None:
        """Ours beside the peer in each of these ways, each in a row."""
        case = f"{measured} {file.suffix[1:]}"
        names = {f"{peer} {way}".strip(): options for way, options in ways.items()}
        contenders = {name: self.peer(measured, file, *options) for name, options in names.items()}
        found = interleave({"ours": self.ours(measured, file), **contenders}, self.rounds, self.outcome, f"checkpoint {case}")
        for name in names:
            self.add(case, found, name, name)

    def stall(self) -> None:
        folder = self.tools.scratch / "runs"
        ways = ["asynchronous", "synchronous"]
        found = interleave({way: self.ours(way, folder) for way in ways}, self.rounds, self.outcome, "checkpoint stall")
        for name, samples in found.items():
            if name == "synchronous":
                samples[None] = [MOST_STALL * value for value in samples[None]]
        limit = "5 % of a synchronous save"
        self.add("stall of an asynchronous save", found, "synchronous", limit, ours="asynchronous")
        shutil.rmtree(folder, ignore_errors=True)


def measure(tools: Tools) -> Outcome:
    bench = Bench(tools)
    bench.files()
    bench.stall()
    return bench.outcome
