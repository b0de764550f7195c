"""trainer: what the Trainer costs over a loop by hand, and what its log, progress and TensorBoard's files cost; and the
report of a long run."""

from __future__ import annotations

import json
import time
from pathlib import Path

from harness import BenchError, Outcome, Row, Samples, Tools, interleave, run

ROUNDS, QUICK_ROUNDS = 6, 1
COST_ROUNDS, COST_QUICK_ROUNDS, COST_STEPS = 20, 2, 30
TRAINER_COST, REPORTS_COST = 0.01, 0.005  # limits, as parts of a step
LOG_EPOCHS, LOG_STEPS = 100, 500
REPORT_SECONDS, REPORT_MEGABYTES = 2.0, 2.0


def measure_costs(tools: Tools, outcome: Outcome) -> None:
    """One process measures all three."""
    output, folder = tools.scratch_file(), tools.scratch / "costs"
    rounds = tools.choose_rounds(COST_ROUNDS, COST_QUICK_ROUNDS)
    try:
        run(tools.lockstep_run(2, tools.program("bench_trainer"), "--rounds", rounds, "--steps", COST_STEPS, "--folder", folder,
                               "--output", output), timeout=1800)
    except BenchError as error:
        outcome.missing.append(f"trainer, costs: {error}")
        return
    found = json.loads(output.read_text(encoding="utf-8"))
    by_hand = [value * (1 + TRAINER_COST) for value in found["by_hand"]]
    allowed = [value * REPORTS_COST for value in found["trainer"]]
    rows = [("step of the Trainer, against one by hand", found["trainer"], found["by_hand"]),
            (f"step of the Trainer, against one by hand and {TRAINER_COST:.0%}", found["trainer"], by_hand),
            (f"log, TensorBoard and progress, against {REPORTS_COST:.1%} of a step", found["reports"], allowed)]
    outcome.rows += [Row("trainer", case, None, 2, mine, limit, "aim", "ms") for case, mine, limit in rows]


def write_log(folder: Path) -> None:
    """What `lockstep train` writes in a long run."""
    folder.mkdir()
    classes = [f"class {number}" for number in range(10)]
    seconds = {"input": 1.0, "compute": 50.0, "communication": 3.0}
    ranks = [{"rank": rank, "host": "node", "seconds": seconds} for rank in range(4)]
    cells = [[label, predicted, 900 if label == predicted else 11] for label in range(10) for predicted in range(10)]
    with (folder / "run.jsonl").open("w", encoding="utf-8") as file:

        def write(event: str, **fields: object) -> None:
            file.write(json.dumps({"event": event, "time": 1.7e9, **fields}) + "\n")

        write("start", format=1, name="", host="node", pid=1, world_size=4, first_epoch=0, first_step=0, command=["train"],
              configuration={"optimizer.lr": 0.1}, versions={}, classes=classes)
        for epoch in range(LOG_EPOCHS):
            for step in range(epoch * LOG_STEPS, (epoch + 1) * LOG_STEPS):
                write("step", epoch=epoch, step=step, scalars={"loss": 2.3 / (1 + step / 999) + step % 7 / 50, "lr": 0.1})
            passed = {"seconds": 60.0, "samples": 60000, "scalars": {"loss": 2.3 / (1 + epoch), "accuracy": epoch / 101}}
            write("epoch", epoch=epoch, **passed)
            write("times", epoch=epoch, ranks=ranks)
            write("evaluation", epoch=epoch, **passed)
            write("confusion", epoch=epoch, classes=10, cells=cells)
        write("end", results={"accuracy": 0.99})


def measure_report(tools: Tools, outcome: Outcome) -> None:
    folder = tools.scratch / "long-run"
    write_log(folder)

    def once() -> Samples:
        start = time.perf_counter()
        run([str(tools.program("lockstep")), "report", str(folder)])
        return {"s": [time.perf_counter() - start], "MB": [(folder / "report.html").stat().st_size / 1e6]}

    found = interleave({"ours": once}, tools.choose_rounds(ROUNDS, QUICK_ROUNDS), outcome, "trainer, report").get("ours", {})
    for unit, limit in (("s", REPORT_SECONDS), ("MB", REPORT_MEGABYTES)):
        if unit in found:
            case = f"report of {LOG_EPOCHS} epochs, {LOG_EPOCHS * LOG_STEPS:,} steps"
            outcome.rows.append(Row("trainer", case, None, 4, found[unit], [limit], "aim", unit))


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    measure_costs(tools, outcome)
    measure_report(tools, outcome)
    return outcome
