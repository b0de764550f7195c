"""What the parts of the `recovery` bench share: a job whose ranks write lines into a folder, for this process to read."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from comparison import SEED
from harness import ENVIRONMENT, BenchError, Samples, Tools
from launch import free_port

RANKS = 2
PEER_KILLS, QUICK_PEER_KILLS = 3, 1  # of a job
KILLED, MEMORY = "a rank is killed", "memory"
GRACE = 15  # seconds that a launcher gets to end its job
PATIENCE = 60  # seconds for a recovery; it has failed then
LOOK_EVERY = 0.002  # seconds; the ranks themselves note when they were ready
STEADY = (0.02, 0.08)  # seconds of training between recoveries, when all is ready for one


def end_with_the_bench() -> None:
    """In a launcher before it starts: it is asked to end when the bench has been killed."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


@dataclass
class Known:
    """What was read of a rank's file."""

    bytes: int = 0
    reports: list[dict] = field(default_factory=list)


class Job:
    """A job whose ranks write a line when the first all-reduce of a start is done."""

    def __init__(self, tools: Tools) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=tools.scratch))
        self.log = self.folder / "log"
        self.launchers: list[subprocess.Popen] = []
        self.known: dict[int, Known] = {}  # by rank

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        # A second signal must not cut this short.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        try:
            self.end()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def end(self) -> None:
        for launcher in self.launchers:
            launcher.send_signal(signal.SIGTERM)
        for launcher in self.launchers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(timeout=GRACE)
        # torchrun's workers are in sessions of their own, and live on when it is killed.
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for launcher in self.launchers:
            launcher.wait()

    def processes(self, name: str = "") -> list[int]:
        """Those of this job, which all have its folder on their command line; with `name`, whose name begins with it."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (folder / "cmdline").read_bytes()
                if os.fsencode(self.folder) in command and (folder / "comm").read_text().startswith(name):
                    found.append(int(folder.name))
        return found

    def wait_for_standby(self) -> list[int]:
        """Until one more process for each rank is loaded."""
        end = time.monotonic() + PATIENCE
        while len(found := self.processes("standby:")) < RANKS:
            if time.monotonic() > end:
                raise BenchError(f"no processes were on standby after {PATIENCE} s")
            time.sleep(0.02)
        return found

    def wait_for_spare(self, kill: int) -> None:
        """Until Monarch's spare process for this kill is loaded; the program writes a line for each."""
        end = time.monotonic() + PATIENCE
        path = self.folder / "spares"
        while not path.exists() or path.read_text(encoding="utf-8").count("\n") <= kill:
            if time.monotonic() > end:
                raise BenchError(f"no spare process was ready after {PATIENCE} s")
            time.sleep(0.02)

    def launch(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        with self.log.open("a", encoding="utf-8") as sink:
            self.launchers.append(
                subprocess.Popen([*command, str(self.folder)], stdin=subprocess.DEVNULL, stdout=sink,
                                 stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=end_with_the_bench,
                                 env={**os.environ, **ENVIRONMENT, **(environment or {})}))

    def reports(self, rank: int) -> list[dict]:
        """Those so far. Each line is read once: a job has hundreds, and whoever waits looks often."""
        path, known = self.folder / str(rank), self.known.setdefault(rank, Known())
        if path.exists() and path.stat().st_size > known.bytes:
            with path.open("rb") as file:
                file.seek(known.bytes)
                lines = file.read().splitlines(keepends=True)
            for line in lines:
                if line.endswith(b"\n"):  # the last one may be unfinished
                    known.bytes += len(line)
                    known.reports.append(json.loads(line))
        return known.reports

    def wait_for(self, starts: int, ranks: int | Iterable[int], patience: float = PATIENCE) -> list[dict]:
        """The reports of all these ranks, when each has written `starts` of them."""
        end = time.monotonic() + patience
        numbers = range(ranks) if isinstance(ranks, int) else list(ranks)
        over = False
        while not over:
            # Looked at first: a rank may write its last line and end.
            over = time.monotonic() > end or all(launcher.poll() is not None for launcher in self.launchers)
            found = [self.reports(rank) for rank in numbers]
            if all(len(lines) >= starts for lines in found):
                return [lines[starts - 1] for lines in found]
            time.sleep(LOOK_EVERY)
        tail = "\n".join(self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-12:])
        raise BenchError(f"the ranks did not train within {patience:.0f} s:\n{tail}")


def own_memory(process: int) -> float:
    """The MiB that a process shares with no other."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean", "Private_Dirty"))) / 1024


def killed(tools: Tools, command: list[str], kills: int, counts: dict[str, int] | None = None, *,
           standby: bool = False) -> Samples:
    """Kills one rank of a running job again and again; milliseconds until both train again."""
    order = random.Random(SEED)
    samples: list[float] = []
    memory: list[float] = []
    with Job(tools) as job:
        job.launch(command)
        running = job.wait_for(1, RANKS)
        for kill in range(kills):
            if counts is not None:
                counts["tried"] += 1
            if standby:
                memory.append(own_memory(job.wait_for_standby()[0]))
            time.sleep(order.uniform(*STEADY))
            start = time.time()
            os.kill(running[kill % RANKS]["pid"], signal.SIGKILL)
            running = job.wait_for(kill + 2, RANKS)
            samples.append((max(report["done_at"] for report in running) - start) * 1e3)
            if counts is not None:
                counts["recovered"] += 1
    return {KILLED: samples, MEMORY: memory} if standby else {KILLED: samples}


def torchrun(tools: Tools, options: tuple[str, ...], *command: object) -> list[str]:
    given = [str(free_port()) if option == "PORT" else option for option in options]
    launcher = [tools.python, "-m", "torch.distributed.run", "--nproc_per_node", RANKS, "--max-restarts", PEER_KILLS]
    return [str(part) for part in [*launcher, *given, "--no-python", *command]]
