"""transforms: pictures per second of single transforms on one thread, from pixels in memory to normalised float samples,
against torchvision in the better of its ways: on PIL pictures (v1) and on uint8 tensors (v2).

The suffix of a case is our precision: "fast", or "exact" (PIL's pixels).
"""

from __future__ import annotations

import json

from harness import HERE, Contender, Outcome, Row, Samples, Tools, best_way, interleave, run
from loader import images

ROUNDS, QUICK_ROUNDS = 6, 1
PRECISIONS = ["fast", "exact"]
WAYS = {"PIL": "pil", "v2 tensors": "v2"}
PEER = "torchvision"


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    _, folder = images(tools)

    def contender(*command: object) -> Contender:
        def rates() -> Samples:
            output = tools.scratch_file()
            run([str(part) for part in [*command, "--folder", folder, "--output", output]])
            return json.loads(output.read_text(encoding="utf-8"))["values"]

        return rates

    program = tools.program("bench_transforms")
    ours = {precision: contender(program, "--precision", precision) for precision in PRECISIONS}
    ways = {name: contender(tools.python, HERE / "peers" / "transforms.py", "--way", way) for name, way in WAYS.items()}
    best = best_way(ways, outcome, "transforms, ways of torchvision", more_is_better=True, passes=1)
    found = interleave(ours | ways, tools.choose_rounds(ROUNDS, QUICK_ROUNDS), outcome, "transforms")
    for case, way in best.items():
        theirs = found.get(way, {}).get(case)
        for precision in PRECISIONS:
            mine = found.get(precision, {}).get(case)
            if mine and theirs:
                row = Row("transforms", f"{case}-{precision}", None, 1, mine, theirs, PEER, "images/s", more_is_better=True)
                outcome.rows.append(row)
    chosen = ", ".join(f"{case} {way}" for case, way in best.items())
    outcome.notes.append(f"torchvision, best of its ways: {chosen}")
    return outcome
