"""Shared by all benches: running programs, rounds that interleave ours with the peers, rows."""

from __future__ import annotations

import functools
import json
import math
import os
import random
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from comparison import SEED, Comparison, compare

HERE = Path(__file__).resolve().parent
CLOSE = 1.3  # how much slower than the best a way may be in a search's first pass, to be measured again
Samples = dict[object, list[float]]  # seconds (or another unit) by size or other key
Contender = Callable[[], Samples]


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
    rounds: int | None = None  # as the user asks

    def choose_rounds(self, full: int, quick: int) -> int:
        return self.rounds or self.choose(full, quick)

    def choose(self, full: int, quick: int) -> int:
        """A number that --rounds does not change."""
        return quick if self.quick else full

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

    def torchrun_pinned(self, ranks: int, script: Path, *arguments: object) -> list[str]:
        """Python ranks under torchrun, each pinned to its share of the cores, as `lockstep run` and mpirun do it."""
        pinned = [self.python, "-I", HERE / "peers" / "pinned.py", self.python, script]
        return self.torchrun(ranks, "--no-python", *pinned, *arguments)

    def torchrun_free(self, ranks: int, script: Path, *arguments: object) -> list[str]:
        """The same, on whichever core the system chooses."""
        return self.torchrun(ranks, "--no-python", self.python, script, *arguments)

    def scratch_file(self, suffix: str = ".json") -> Path:
        handle, name = tempfile.mkstemp(suffix=suffix, dir=self.scratch)
        os.close(handle)
        return Path(name)


# The languages that peers are called from. All others, and the machine's limits, are C++.
PYTHON_PEERS = {"gloo", "pytorch", "torchvision", "dali", "spdl", "datago", "torchrun", "torchmonarch",
                "safetensors"}


@dataclass
class Row:
    """One comparison. `ours` and `peer` have one value for each round (the median of what that round measured), or one
    value in all. to_json() gives its format for --json."""

    bench: str
    case: str
    bytes: int | None
    ranks: int
    ours: list[float]
    peer: list[float]
    peer_name: str
    unit: str
    more_is_better: bool = False
    language: str = "C++"  # that ours is called from

    def __post_init__(self) -> None:
        if len(self.ours) != len(self.peer) and 1 not in (len(self.ours), len(self.peer)):
            raise BenchError(f"{self.case} against {self.peer_name}: {len(self.ours)} rounds of ours, {len(self.peer)} of "
                             "the peer; a row needs as many of both (interleave gives them)")

    @functools.cached_property
    def comparison(self) -> Comparison:
        return compare(self.ours, self.peer, self.more_is_better)

    @property
    def ratio(self) -> float:
        """The median of the rounds' ratios; above 1 when ours is better."""
        return self.comparison.ratio

    @property
    def case_text(self) -> str:
        return f"{self.case} (Python)" if self.language == "Python" else self.case

    @property
    def peer_text(self) -> str:
        return f"{self.peer_name} (Python)" if self.peer_name.split()[0] in PYTHON_PEERS else self.peer_name

    def to_json(self) -> dict[str, object]:
        return {
            "bench": self.bench,
            "case": self.case,
            "language": self.language,
            "bytes": self.bytes,
            "ranks": self.ranks,
            "ours": statistics.median(self.ours),
            "peer": statistics.median(self.peer),
            "peer_name": self.peer_name,
            "unit": self.unit,
            "ratio": self.ratio,
            "interval": [self.comparison.low, self.comparison.high],
            "rounds": {"ours": self.ours, "peer": self.peer},
        }


@dataclass
class Outcome:
    """A bench's results, what to know about them, and messages about what it could not measure."""

    rows: list[Row] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


# The same for every process of every contender: one thread, huge pages for what malloc returns (run.py removes that for
# --pages small), and freed memory stays with the process. `lockstep run` sets all of these for its ranks by itself.
# No GPU: the peers train on the CPU, and so do our programs then.
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "MALLOC_TRIM_THRESHOLD_": "536870912",
    "MALLOC_MMAP_THRESHOLD_": "536870912",
}


def pinned(command: list[str], rank: int, ranks: int) -> list[str]:
    """The command on its share of the cores, as `lockstep run` would start it."""
    cores = sorted(os.sched_getaffinity(0))
    if not 1 < ranks <= len(cores):
        return command
    share = cores[rank * len(cores) // ranks : (rank + 1) * len(cores) // ranks]
    return ["taskset", "-c", ",".join(map(str, share)), *command]


def run(command: list[str], environment: Mapping[str, str] | None = None, timeout: float = 600) -> str:
    """Runs a program to its end, and returns what it printed. A failure raises an error with its last lines. A timeout kills
    its process group."""
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
    return output


def read_samples(path: Path) -> Samples:
    """The lines that measure.h's Report writes: seconds by size."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {line["bytes"]: line["seconds"] for line in lines}


def interleave(
    contenders: Mapping[str, Contender], rounds: int, outcome: Outcome, what: str, until: float = math.inf
) -> dict[str, Samples]:
    """Runs every contender once per round, in a new random order each time, so that drift affects all of them.
    Returns for each contender and key one value a round: the median of what the contender measured in that round.
    Drops a contender that fails, and records why. After the first round, begins only those that will probably be over by
    `until` (time.monotonic())."""
    order = random.Random(SEED)
    collected: dict[str, Samples] = {name: {} for name in contenders}
    longest = -math.inf
    for _ in range(rounds):
        begin = time.monotonic()
        if begin + longest > until:
            break
        for name in order.sample(list(collected), len(collected)):
            try:
                found = contenders[name]()
            except BenchError as error:
                outcome.missing.append(f"{what}: {name} not measured: {error}")
                del collected[name]
                continue
            for key, values in found.items():
                collected[name].setdefault(key, []).append(statistics.median(values))
        longest = max(longest, time.monotonic() - begin)
    return collected


def best_way(
    ways: Mapping[str, Contender], outcome: Outcome, what: str, more_is_better: bool = False, passes: int = 2
) -> dict[object, str]:
    """For each key the name of the way that is best, by a search before the rounds. The rounds measure the winner
    again, so the search's luck is not in the figure. After a first pass, only ways that are close to the best for some key are
    measured again. Ways that fail do not count, unless all do."""
    tried = Outcome()
    found = interleave(ways, 1, tried, what)
    if not found:
        outcome.missing += tried.missing
    keys = {key: None for samples in found.values() for key in samples}

    def rank(way: str, key: object) -> float:
        """Less is better; infinite for a way that has not measured this."""
        if key not in found[way]:
            return math.inf
        median = statistics.median(found[way][key])
        return 1 / median if more_is_better else median

    least = {key: min(rank(way, key) for way in found) for key in keys}
    close = {way: ways[way] for way in found if any(rank(way, key) <= CLOSE * least[key] for key in keys)}
    if len(close) > 1 and passes > 1:
        for way, samples in interleave(close, passes - 1, tried, what).items():
            for key, values in samples.items():
                found[way].setdefault(key, []).extend(values)
        found = {way: found[way] for way in close}
    return {key: min(found, key=lambda way: rank(way, key)) for key in keys}
