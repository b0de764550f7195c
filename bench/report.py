"""The tables of ./dev bench: as text for the terminal, as Markdown for the pages."""

from __future__ import annotations

import re
import statistics

from comparison import LEAST_ROUNDS
from harness import Outcome, Row
from machine import Machine

NO_DIFFERENCE = "no difference shown"
TOO_FEW_ROUNDS = "too few rounds"
EQUAL = "equal"
# Units of what is counted, not timed: the noise of the machine's clock says nothing about them.
COUNTED = {"KiB", "MiB", "MB"}


def in_short(message: str) -> str:
    """What was not measured, and the last line of what was said of it: the reason, as a rule. Without the folders of this
    machine, which say nothing to a reader of the page."""
    lines = [line for line in message.splitlines() if line.strip(" =-")]
    return re.sub(r"(?<=\s)/\S*/", "", " ... ".join(dict.fromkeys((lines[0], lines[-1].strip()))))


def size_text(size: int | None) -> str:
    if size is None:
        return ""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size / (1 << 20):.1f} MiB" if size > 1 << 20 else f"{size} B"


def number(value: float) -> str:
    return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"


def spread(values: list[float]) -> str:
    if len(values) == 1:
        return number(values[0])
    return f"{number(statistics.median(values))} [{number(min(values))} .. {number(max(values))}]"


def factor(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}" if ratio < 100 else f"{ratio:.0f}"


def interval(row: Row) -> str:
    return f"[{factor(row.comparison.low)} .. {factor(row.comparison.high)}]"


def note(row: Row, machine: Machine) -> str:
    if row.comparison.rounds < LEAST_ROUNDS:
        return TOO_FEW_ROUNDS
    if row.unit not in COUNTED:
        return "" if row.comparison.shows_difference(machine.noise_width) else NO_DIFFERENCE
    if row.comparison.low == row.comparison.high == 1:
        return EQUAL
    return "" if row.comparison.shows_difference() else NO_DIFFERENCE


def text_table(rows: list[Row], machine: Machine) -> str:
    """Each side's median and [min .. max] over the rounds; the median of the rounds' ratios and its interval."""
    lines = [["case", "ranks", "size", "ours", "peer", "", "unit", "ratio", "95 % interval", "rounds", ""]]
    for row in rows:
        lines.append(
            [row.case_text, str(row.ranks), size_text(row.bytes), spread(row.ours), row.peer_text, spread(row.peer),
             row.unit, f"{factor(row.ratio)}x", interval(row), str(row.comparison.rounds), note(row, machine)]
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    right = {1, 2, 7, 9}
    return "\n".join(
        "  ".join(cell.rjust(width) if column in right else cell.ljust(width)
                  for column, (cell, width) in enumerate(zip(line, widths, strict=True))).rstrip()
        for line in lines
    )


def markdown_line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def markdown_table(lines: list[list[str]]) -> str:
    rule = "|" + "---|" * len(lines[0])
    return "\n".join([markdown_line(lines[0]), rule, *map(markdown_line, lines[1:])]) + "\n"


def list_table(rows: list[Row], machine: Machine) -> str:
    """A line for each row."""
    lines = [["case", "ranks", "ours", "against", "peer", "unit", "ratio", "95 % interval", ""]]
    for row in rows:
        case = row.case_text if row.bytes is None else f"{row.case_text}, {size_text(row.bytes)}"
        lines.append([case, str(row.ranks), spread(row.ours), row.peer_text, spread(row.peer), row.unit,
                      f"{factor(row.ratio)}x", interval(row), note(row, machine)])
    return markdown_table(lines)


def size_table(rows: list[Row], ranks: int, machine: Machine) -> str:
    """A column for each size: our median for each case, then the ratio to each peer."""
    sizes = sorted({row.bytes for row in rows})
    lines = [[f"{ranks} ranks", *map(size_text, sizes)]]
    for case in dict.fromkeys(row.case_text for row in rows):
        of_case = [row for row in rows if row.case_text == case]
        ours = {(row.unit, row.bytes): number(statistics.median(row.ours)) for row in of_case}
        for unit in dict.fromkeys(row.unit for row in of_case):
            lines.append([f"**{case}**, {unit}", *(ours.get((unit, size), "") for size in sizes)])
        for peer in dict.fromkeys(row.peer_text for row in of_case):
            cells = {row.bytes: row for row in of_case if row.peer_text == peer}
            lines.append([f"against {peer}", *(cell(cells.get(size), machine) for size in sizes)])
    return markdown_table(lines)


def cell(row: Row | None, machine: Machine) -> str:
    if row is None:
        return ""
    text = f"{factor(row.ratio)}x {interval(row)}"
    return f"*{text}*" if note(row, machine) else text


def by_size(rows: list[Row]) -> list[Row]:
    """The rows with sizes, if some case has several sizes for one peer."""
    sized = [row for row in rows if row.bytes is not None]
    keys = {(row.case_text, row.peer_text, row.ranks) for row in sized}
    return sized if len(keys) < len(sized) else []


def heading(command: str, machine: Machine, rounds: str) -> list[str]:
    """What every table on a page says about itself; tools/docs/bench_tables.py looks for it."""
    return [f"- Command: `{command}`", *machine.lines(), f"- Rounds: {rounds}, all contenders in each; {machine.seeds()}"]


def markdown(outcome: Outcome, command: str, machine: Machine) -> str:
    """The text of a block for the pages, see page_blocks.py."""
    rounds = sorted({row.comparison.rounds for row in outcome.rows})
    parts = ["\n".join(heading(command, machine, " or ".join(map(str, rounds)) or "none")) + "\n"]
    sized = by_size(outcome.rows)
    for ranks in sorted({row.ranks for row in sized}):
        parts.append(size_table([row for row in sized if row.ranks == ranks], ranks, machine))
    if any(note(row, machine) for row in sized):
        parts.append(f"*Slanted*: {NO_DIFFERENCE}, because the interval has 1 in it, the machine's noise is as large, "
                     f"or there are fewer than {LEAST_ROUNDS} rounds.\n")
    if listed := [row for row in outcome.rows if not sized or row.bytes is None]:
        parts.append(list_table(listed, machine))
    remarks = [*outcome.notes, *(f"Not measured: {in_short(message)}" for message in outcome.missing)]
    if remarks:
        parts.append("\n".join(f"- {remark}" for remark in remarks) + "\n")
    return "\n".join(parts)
