"""Shared by all benches: running programs, interleaving ours with the peers, medians, rows."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Samples = dict[object, list[float]]  # seconds (or another unit) by size or other key


class BenchError(Exception):
    """A program failed or is missing; the message is for the user."""


@dataclass
class Tools:
    """Where the programs are and how thoroughly to measure."""

    build: Path
    peers: Path
    python: Path
    ranks: list[int]
    quick: bool
    scratch: Path

    def program(self, name: str) -> Path:
        path = self.build / "bin" / name
        if not path.exists():
            raise BenchError(f"{path} is not built")
        return path

    def lockstep_run(self, ranks: int, *command: object) -> list[str]:
        launcher = [self.program("lockstep"), "run", "--standalone", "--nproc-per-node", ranks]
        return [str(part) for part in [*launcher, *command]]

    def torchrun(self, ranks: int, *command: object) -> list[str]:
        launcher = [self.python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", ranks]
        return [str(part) for part in [*launcher, *command]]

    def scratch_file(self, suffix: str = ".json") -> Path:
        handle, name = tempfile.mkstemp(suffix=suffix, dir=self.scratch)
        os.close(handle)
        return Path(name)


@dataclass
class Row:
    """One comparison; to_json() gives its format for --json."""

    bench: str
    case: str
    bytes: int | None
    ranks: int
    ours: list[float]
    peer: list[float]
    peer_name: str
    unit: str
    more_is_better: bool = False

    @property
    def ratio(self) -> float:
        """Above 1 when ours is better."""
        ours, peer = statistics.median(self.ours), statistics.median(self.peer)
        better, worse = (ours, peer) if self.more_is_better else (peer, ours)
        return better / worse

    def to_json(self) -> dict[str, object]:
        return {
            "bench": self.bench,
            "case": self.case,
            "bytes": self.bytes,
            "ranks": self.ranks,
            "ours": statistics.median(self.ours),
            "peer": statistics.median(self.peer),
            "peer_name": self.peer_name,
            "unit": self.unit,
            "ratio": self.ratio,
        }


@dataclass
class Outcome:
    """A bench's results, messages about what it could not measure, and about what there is not to measure."""

    rows: list[Row] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


# One thread per process, everywhere. All other settings keep their defaults.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def run(command: list[str], environment: Mapping[str, str] | None = None, timeout: float = 600) -> None:
    """Runs a program to its end. A failure raises an error with its last lines. A timeout kills its process group."""
    with subprocess.Popen(
        command,
        env={**os.environ, **ENVIRONMENT, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise BenchError(f"{Path(command[0]).name} did not end within {timeout:.0f} s") from error
            raise
    if process.returncode != 0:
        last = "\n".join(output.strip().splitlines()[-12:])
        raise BenchError(f"{' '.join(command)}\nended with {process.returncode}:\n{last}")


def read_samples(path: Path) -> Samples:
    """The lines that measure.h's Report writes: seconds by size."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {line["bytes"]: line["seconds"] for line in lines}


def interleave(
    contenders: Mapping[str, Callable[[], Samples]], rounds: int, outcome: Outcome, what: str
) -> dict[str, Samples]:
    """Runs every contender once per round, so that drift affects all of them. Drops one that fails and records why."""
    collected: dict[str, Samples] = {name: defaultdict(list) for name in contenders}
    for _ in range(rounds):
        for name in list(collected):
            try:
                for key, values in contenders[name]().items():
                    collected[name][key].extend(values)
            except BenchError as error:
                outcome.missing.append(f"{what}: {name} not measured: {error}")
                del collected[name]
    return collected
