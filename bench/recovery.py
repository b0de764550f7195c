"""recovery: from SIGKILL of one of two ranks to the first all-reduce after the restart, under `lockstep run`, under
torchrun with the same program, and under Monarch with PyTorch and Gloo; the same from the moment in which a machine of two
is unplugged, which needs root; until the survivors of four ranks go on in their processes (reconfigure); and until all
ranks of a training that outlives them (ElasticTraining) have done their next step, with a newcomer and without, beside the
same training of PyTorch, which torchrun starts again from its checkpoint. And until each rank that is left has its error, of
our groups and of Gloo's."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from comparison import SEED
from harness import ENVIRONMENT, HERE, BenchError, Outcome, Row, Samples, Tools, interleave
from launch import free_port
from monarch_peer import monarch_name, monarch_recovery
from network import JOB_KEY, Network, address, network
from peer_ways import MONARCH_RECOVERY, Way, usual

RANKS = 2
ROUNDS, QUICK_ROUNDS = 6, 2
KILLS = 17  # a round; 6 rounds have more than 100
PEER_KILLS = 3
LOST_NODES, QUICK_LOST_NODES = 100, 2
GRACE = 15  # seconds that a launcher gets to end its job
PATIENCE = 60  # seconds for a recovery; it has failed then
LONGEST_QUIET_STEP = 0.1  # second, with the hash of its weights
STEADY = (0.02, 0.08)  # seconds of training between recoveries, when all is ready for one
STANDBY = "0.5"  # --standby: seconds until the processes for a restart are started; the default would only take longer
AIM_MS, LOST_NODE_AIM_MS, IN_PLACE_AIM_MS = 250, 3000, 50
KILLED, LOST, MEMORY = "a rank is killed", "a machine is unplugged", "memory"
IN_PLACE = "a rank of four is killed, and the others go on in place"
IN_PLACE_RANKS = 4
IN_PLACE_JOBS, QUICK_IN_PLACE_JOBS = 34, 2  # of three kills each
NEXT_STEP_AIM_MS = 150
REPLACED = "a rank is killed, a newcomer takes its place, and all have done their next step"
FEWER = "a rank is killed, and the others have done their next step"
REPLACEMENTS, QUICK_REPLACEMENTS = 100, 3
FEWER_RANKS, FEWER_JOBS, QUICK_FEWER_JOBS = 3, 50, 2  # of two kills each
NOTICED = "a rank of four is killed, and each of the others has an error"
NOTICED_FAR = "the same with two ranks on each of two machines"
CUT = "one of these machines is unplugged, and each rank of the other has an error"
NOTICE_RANKS = 4
NOTICE_ROUNDS, QUICK_NOTICE_ROUNDS = 12, 2
NOTICE_AIMS_MS = {NOTICED: 100, NOTICED_FAR: 1000, CUT: 5000}


def end_with_the_bench() -> None:
    """In a launcher before it starts: it is asked to end when the bench has been killed."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


class Job:
    """A job whose ranks write a line when the first all-reduce of a start is done."""

    def __init__(self, tools: Tools) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=tools.scratch))
        self.log = self.folder / "log"
        self.launchers: list[subprocess.Popen] = []

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
        path = self.folder / str(rank)
        if not path.exists():
            return []
        lines = path.read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines[:-1]]  # the last one may be unfinished

    def wait_for(self, starts: int, ranks: int | Iterable[int], patience: float = PATIENCE) -> list[dict]:
        """The reports of all these ranks, when each has written `starts` of them."""
        end = time.monotonic() + patience
        while time.monotonic() < end:
            found = [self.reports(rank) for rank in (range(ranks) if isinstance(ranks, int) else ranks)]
            if all(len(lines) >= starts for lines in found):
                return [lines[starts - 1] for lines in found]
            if all(launcher.poll() is not None for launcher in self.launchers):
                break
            time.sleep(0.002)
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


def killed_under_monarch(tools: Tools, way: Way) -> Samples:
    """The same under Monarch: each rank in turn."""
    order = random.Random(SEED)
    samples: list[float] = []
    command, environment = monarch_recovery(tools, way)
    with Job(tools) as job:
        job.launch(command, environment)
        running = job.wait_for(1, RANKS)
        for kill in range(PEER_KILLS):
            if "--spare" in way.options:
                job.wait_for_spare(kill)
            time.sleep(order.uniform(*STEADY))
            start = time.time()
            os.kill(running[kill % RANKS]["pid"], signal.SIGKILL)
            running = job.wait_for(kill + 2, RANKS)
            samples.append((max(report["done_at"] for report in running) - start) * 1e3)
    return {KILLED: samples}


def ours(tools: Tools, program: str, standby: str) -> list[str]:
    launcher = [tools.program("lockstep"), "run", "--nproc-per-node", RANKS, "--max-restarts", KILLS, "--standby", standby]
    return [str(part) for part in [*launcher, tools.program(program)]]


def torchrun(tools: Tools, options: tuple[str, ...], *command: object) -> list[str]:
    given = [str(free_port()) if option == "PORT" else option for option in options]
    launcher = [tools.python, "-m", "torch.distributed.run", "--nproc_per_node", RANKS, "--max-restarts", PEER_KILLS]
    return [str(part) for part in [*launcher, *given, "--no-python", *command]]


def contenders(tools: Tools, counts: dict[str, int]) -> dict[str, Callable[[], Samples]]:
    found: dict[str, Callable[[], Samples]] = {}

    def run(program: str, kills: int, standby: str) -> Samples:
        return killed(tools, ours(tools, program, standby), kills, counts, standby=standby != "off")

    found["core"] = lambda: run("bench_recovery_core", KILLS, "off")  # it has nothing to load
    found["LibTorch"] = lambda: run("bench_recovery_c10d", KILLS, STANDBY)
    found["LibTorch without"] = lambda: run("bench_recovery_c10d", PEER_KILLS, "off")
    for name, way in usual("torchrun").items():
        for program in ("core", "c10d"):
            found[f"torchrun {name} {program}"] = lambda way=way, program=program: killed(
                tools, torchrun(tools, way.options, tools.program(f"bench_recovery_{program}")), PEER_KILLS)
    for name, way in MONARCH_RECOVERY.items():
        found[f"monarch {name}"] = lambda way=way: killed_under_monarch(tools, way)
    return found


def best_torchrun(found: dict[str, Samples], program: str) -> tuple[str, list[float]] | None:
    """The better of torchrun's ways, by its median."""
    ways = [(name, samples[KILLED]) for name, samples in found.items()
            if name.startswith("torchrun") and name.endswith(program) and KILLED in samples]
    return min(ways, key=lambda way: sorted(way[1])[len(way[1]) // 2], default=None)


def measure_kills(tools: Tools, outcome: Outcome) -> None:
    counts = {"tried": 0, "recovered": 0}
    found = interleave(contenders(tools, counts), tools.choose_rounds(ROUNDS, QUICK_ROUNDS), outcome, "recovery")
    cases = [
        ("core", "core", KILLED, ""),
        ("LibTorch", "c10d", f"{KILLED}, with LibTorch", "monarch spare"),
        ("LibTorch without", "c10d", f"{KILLED}, with LibTorch, --standby off", "monarch no spare"),
    ]
    for name, program, case, monarch in cases:
        mine = found.get(name, {}).get(KILLED)
        if not mine:
            continue
        if program == "core":
            outcome.rows.append(Row("recovery", case, None, RANKS, mine, [AIM_MS], "the aim", "ms"))
        best = best_torchrun(found, program)
        if best and len(best[1]) == len(mine):
            outcome.rows.append(Row("recovery", case, None, RANKS, mine, best[1], "torchrun", "ms"))
            way = best[0].removeprefix("torchrun ").removesuffix(f" {program}")
            outcome.notes.append(f"{case}: torchrun, best of its ways: {way}")
        theirs = found.get(monarch, {}).get(KILLED)
        if theirs:
            outcome.rows.append(Row("recovery", case, None, RANKS, mine, theirs, monarch_name(tools), "ms"))
    memory = found.get("LibTorch", {}).get(MEMORY)
    if memory:
        outcome.notes.append(f"a process on standby has {statistics.median(memory):,.0f} MiB of its own, with LibTorch")
    outcome.rows.append(Row("recovery", f"recoveries of {counts['tried']}", None, RANKS, [counts["recovered"]],
                            [counts["tried"]], "all", "", more_is_better=True))


def lose_node(tools: Tools, net: Network) -> float:
    """Milliseconds from pulling the plug of machine 1 to the first all-reduce without it."""
    with Job(tools) as job:
        for node in range(2):
            meeting = ["--nnodes", "1:2", "--node-rank", node, "--rdzv-endpoint", address(0), "--max-restarts", 1,
                       "--grace", 1]
            job.launch(net.on(node, tools.program("lockstep"), "run", *meeting, tools.program("bench_recovery_core")),
                       JOB_KEY)
        job.wait_for(1, 2)
        time.sleep(random.uniform(0.5, 1.5))
        start = time.time()
        net.unplug(1)
        done_at = job.wait_for(2, 1)[0]["done_at"]
        net.plug_in(1)
        return (done_at - start) * 1e3


def measure_lost_nodes(tools: Tools, outcome: Outcome) -> None:
    trials = tools.choose_rounds(LOST_NODES, QUICK_LOST_NODES)
    times: list[float] = []
    with network(2) as net:
        for _ in range(trials):
            times.append(lose_node(tools, net))
    outcome.rows.append(Row("recovery", LOST, None, RANKS, times, [LOST_NODE_AIM_MS], "the aim", "ms"))
    outcome.notes.append(f"{LOST}: {len(times)} of {trials} recovered, the slowest in {max(times):,.0f} ms")


def kill_in_place(tools: Tools, order: random.Random) -> list[float]:
    """Kills the ranks of a job without a launcher one after another; milliseconds until the others have added up anew."""
    samples: list[float] = []
    living = list(range(IN_PLACE_RANKS))
    with Job(tools) as job:
        port = str(free_port())
        for rank in living:
            job.launch([str(tools.program("bench_recovery_c10d")), "in-place"],
                       {"RANK": str(rank), "WORLD_SIZE": str(IN_PLACE_RANKS), "MASTER_ADDR": "127.0.0.1",
                        "MASTER_PORT": port})
        running = [report["pid"] for report in job.wait_for(1, living)]
        for kill in range(IN_PLACE_RANKS - 1):
            time.sleep(order.uniform(*STEADY))
            victim = living.pop(order.randrange(len(living)))
            start = time.time()
            os.kill(running[victim], signal.SIGKILL)
            samples.append((max(report["done_at"] for report in job.wait_for(kill + 2, living)) - start) * 1e3)
    return samples


def measure_in_place(tools: Tools, outcome: Outcome) -> None:
    order = random.Random(SEED)
    times: list[float] = []
    for _ in range(tools.choose_rounds(IN_PLACE_JOBS, QUICK_IN_PLACE_JOBS)):
        times += kill_in_place(tools, order)
    outcome.rows.append(Row("recovery", IN_PLACE, None, IN_PLACE_RANKS, times, [IN_PLACE_AIM_MS], "the aim", "ms"))
    outcome.notes.append(f"{IN_PLACE}: {len(times)} times, the slowest in {max(times):,.0f} ms")


class Training:
    """A training that outlives its ranks, without a launcher."""

    def __init__(self, tools: Tools, job: Job, ranks: int, *, newcomers: bool, steps: int = 0) -> None:
        self.tools, self.job, self.ranks, self.steps = tools, job, ranks, steps
        self.port = str(free_port())
        self.newcomers = str(job.folder / "newcomers") if newcomers else "none"
        self.living = list(range(ranks))
        self.next = ranks
        for number in self.living:
            self.launch(number)
        self.pids = {number: report["pid"] for number, report in zip(self.living, job.wait_for(1, self.living))}

    def launch(self, number: int) -> None:
        self.job.launch([str(self.tools.program("bench_recovery_training")), self.newcomers, str(self.steps)],
                        {"RANK": str(number), "WORLD_SIZE": str(self.ranks), "MASTER_ADDR": "127.0.0.1",
                         "MASTER_PORT": self.port})

    def add_newcomer(self) -> None:
        """Until it waits. The ranks stop meanwhile, so the training is short enough to be repeated without a death."""
        for number in self.living:
            os.kill(self.pids[number], signal.SIGSTOP)
        self.launch(self.next)
        self.pids[self.next] = self.job.wait_for(1, [self.next])[0]["pid"]
        self.next += 1
        time.sleep(0.3)
        for number in self.living:
            os.kill(self.pids[number], signal.SIGCONT)

    def kill(self, victim: int) -> tuple[float, dict[str, float], set[tuple[int, str]]]:
        """Milliseconds until all ranks have done a step, and of each part of the recovery, on the slowest rank. The numbers
        of the ranks' steps, with their weights."""
        self.living.remove(victim)
        expected = {number: len(self.job.reports(number)) + 1 for number in self.living}
        if self.newcomers != "none":
            self.living.append(self.next - 1)
            expected[self.next - 1] = 2  # the first one says that it waits
        start = time.time()
        os.kill(self.pids[victim], signal.SIGKILL)
        done = [self.job.wait_for(count, [number])[0] for number, count in expected.items()]
        ends = {part: max(report[part] for report in done) for part in ("noticed", "met", "has_state", "rebuilt", "done_at")}
        parts, before = {}, start
        for part, end in ends.items():
            if end > 0:
                parts[part] = (end - before) * 1e3
                before = end
        return (ends["done_at"] - start) * 1e3, parts, {(report["step"], report["weights"]) for report in done}


def quiet_weights(tools: Tools, steps: int) -> set[tuple[int, str]]:
    """After each step, without a death."""
    with Job(tools) as job:
        training = Training(tools, job, RANKS, newcomers=False, steps=steps)
        job.wait_for(steps, training.living, PATIENCE + steps * LONGEST_QUIET_STEP)
        return {(report["step"], report["weights"]) for report in job.reports(0)}


def killed_under_torchrun(tools: Tools, outcome: Outcome) -> list[float]:
    """Milliseconds until all ranks of the same training in PyTorch have done a step, from its checkpoint: the best way."""
    script = str(HERE / "peers" / "recovery_training.py")
    found: dict[str, list[float]] = {}
    for name, way in usual("torchrun").items():
        try:
            found[name] = killed(tools, torchrun(tools, way.options, tools.python, script), PEER_KILLS)[KILLED]
        except BenchError as error:
            outcome.missing.append(f"recovery, {REPLACED}: torchrun {name} not measured: {error}")
    if not found:
        return []
    best = min(found, key=lambda name: statistics.median(found[name]))
    outcome.notes.append(f"{REPLACED}: torchrun, {PEER_KILLS} kills for each of its ways, best: {best}")
    return found[best]


def measure_next_step(tools: Tools, outcome: Outcome) -> None:
    order = random.Random(SEED)
    times: dict[str, list[float]] = {REPLACED: [], FEWER: []}
    parts: dict[str, list[dict[str, float]]] = {REPLACED: [], FEWER: []}
    weights: list[set[tuple[int, str]]] = []  # of each kill with a newcomer; with fewer ranks they are others

    def kill(training: Training, case: str) -> None:
        time.sleep(order.uniform(*STEADY))
        whole, of_parts, of_weights = training.kill(order.choice(training.living))
        times[case].append(whole)
        parts[case].append(of_parts)
        if case == REPLACED:
            weights.append(of_weights)

    with Job(tools) as job:
        training = Training(tools, job, RANKS, newcomers=True)
        for _ in range(tools.choose_rounds(REPLACEMENTS, QUICK_REPLACEMENTS)):
            training.add_newcomer()
            kill(training, REPLACED)
    for _ in range(tools.choose_rounds(FEWER_JOBS, QUICK_FEWER_JOBS)):
        with Job(tools) as job:
            training = Training(tools, job, FEWER_RANKS, newcomers=False)
            for _ in range(FEWER_RANKS - 1):
                kill(training, FEWER)
    names = {"noticed": "noticing", "met": "meeting", "has_state": "state", "rebuilt": "rebuild", "done_at": "step"}
    for case, ranks in ((REPLACED, RANKS), (FEWER, FEWER_RANKS)):
        outcome.rows.append(Row("recovery", case, None, ranks, times[case], [NEXT_STEP_AIM_MS], "the aim", "ms"))
        medians = {name: [one[part] for one in parts[case] if part in one] for part, name in names.items()}
        text = ", ".join(f"{name} {statistics.median(values):,.1f}" for name, values in medians.items() if values)
        outcome.notes.append(f"{case}: {len(times[case])} times, the slowest in {max(times[case]):,.0f} ms; medians of the "
                             f"parts in ms: {text}")
    right = quiet_weights(tools, 1 + max(step for of_one in weights for step, _ in of_one))
    outcome.rows.append(Row("recovery", f"recoveries to the weights of a quiet run, bit for bit, of {len(times[REPLACED])}", None,
                            RANKS, [sum(of_one <= right for of_one in weights)], [len(times[REPLACED])], "all", "",
                            more_is_better=True))
    if theirs := killed_under_torchrun(tools, outcome):
        outcome.rows.append(Row("recovery", REPLACED, None, RANKS, times[REPLACED], [statistics.median(theirs)], "torchrun",
                                "ms"))


def notice(tools: Tools, program: list[object], case: str, net: Network | None, *, forks: bool) -> list[float]:
    """Milliseconds from the loss of rank 3, or of its machine, to the error of each rank that is left."""
    with Job(tools) as job:
        port = str(free_port())
        machines = 1 if net is None else 2
        each = NOTICE_RANKS // machines if forks else 1  # ranks of a process
        for first in range(0, NOTICE_RANKS, each):
            command = [str(part) for part in program]
            if net is not None:
                command = net.on(first * machines // NOTICE_RANKS, *command)
            job.launch(command, {**JOB_KEY, "RANK": str(first), "RANKS": ",".join(map(str, range(first, first + each))),
                                 "WORLD_SIZE": str(NOTICE_RANKS), "MASTER_PORT": port,
                                 "GLOO_SOCKET_IFNAME": "lo" if net is None else "eth0",
                                 "MASTER_ADDR": "127.0.0.1" if net is None else address(0)})
        running = job.wait_for(1, NOTICE_RANKS)
        time.sleep(random.uniform(*STEADY))
        start = time.time()
        if case == CUT:
            net.unplug(1)
        else:
            os.kill(running[-1]["pid"], signal.SIGKILL)
        left = range(NOTICE_RANKS // 2 if case == CUT else NOTICE_RANKS - 1)
        try:
            return [(report["done_at"] - start) * 1e3 for report in job.wait_for(2, left)]
        finally:
            if case == CUT:
                net.plug_in(1)


def measure_notices(tools: Tools, outcome: Outcome, case: str, net: Network | None = None) -> None:
    programs: dict[str, list[object]] = {"Lockstep": [tools.program("bench_recovery_c10d"), "notice"],
                                         "gloo": [tools.python, HERE / "peers" / "notice.py"]}
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(tools.choose_rounds(NOTICE_ROUNDS, QUICK_NOTICE_ROUNDS)):
        for name, program in programs.items():
            times[name] += notice(tools, program, case, net, forks=name == "gloo")
    for peer, theirs in (("the aim", [NOTICE_AIMS_MS[case]]), ("gloo", times["gloo"])):
        outcome.rows.append(Row("recovery", case, None, NOTICE_RANKS, times["Lockstep"], theirs, peer, "ms"))
    worst = ", ".join(f"{name} {max(values):,.1f} ms" for name, values in times.items())
    outcome.notes.append(f"{case}: {len(times['Lockstep'])} errors, the latest after: {worst}")


def measure_all_notices(tools: Tools, outcome: Outcome) -> None:
    for case, machines in ((NOTICED, 1), (NOTICED_FAR, 2), (CUT, 2)):
        try:
            with network(machines) if machines > 1 else contextlib.nullcontext() as net:
                measure_notices(tools, outcome, case, net)
        except BenchError as error:
            outcome.missing.append(f"recovery, {case}: {error}")


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    measure_all_notices(tools, outcome)
    measure_kills(tools, outcome)
    measure_in_place(tools, outcome)
    measure_next_step(tools, outcome)
    try:
        measure_lost_nodes(tools, outcome)
    except BenchError as error:
        outcome.missing.append(f"recovery, {LOST}: {error}")
    return outcome
