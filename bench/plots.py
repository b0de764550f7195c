"""Plots of rows by their number of ranks, as one HTML page that needs no network: a panel for each case and size, with a line
for ours and each peer. It has the look of report.html, and its way to be readable at any width: labels are HTML, lines an
SVG that is stretched to the room there is."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from html import escape

from harness import HERE, Row
from report import number, size_text

STYLE = HERE.parent / "studio" / "src" / "report" / "report.cpp"
WIDTH, HEIGHT = 1000, 1000
COLOURS = 4  # of the style
LIMITS = {"limit"}  # dashed: nobody's, what would be ideal
LARGE_RANGE = 10  # from this factor on the axis is logarithmic


@dataclass
class Panel:
    title: str
    unit: str
    lines: dict[str, dict[int, list[float]]] = field(default_factory=dict)  # values of each round, by name and ranks


def panels(rows: Iterable[Row]) -> list[Panel]:
    """`case` is "what" or "what, which of ours": rows of the same "what", language and size share a panel."""
    found: dict[tuple[str, int | None], Panel] = {}
    for row in rows:
        what, _, which = row.case.partition(", ")
        what = f"{what} from Python" if row.language == "Python" else what
        size = size_text(row.bytes)
        panel = found.setdefault((what, row.bytes), Panel(f"{what}, {size}" if size else what, row.unit))
        panel.lines.setdefault(f"lockstep, {which}" if which else "lockstep", {})[row.ranks] = row.ours
        panel.lines.setdefault(row.peer_text, {})[row.ranks] = row.peer
    return [panel for panel in found.values() if len({ranks for line in panel.lines.values() for ranks in line}) > 1]


def round_marks(high: float) -> list[float]:
    """From 0 to at least `high`, some five."""
    power = 10.0 ** math.floor(math.log10(high / 4))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power * 4 >= high * (1 - 1e-9))
    return [step * count for count in range(math.ceil(high / step - 1e-9) + 1)]


def y_axis(values: list[float]) -> tuple[list[float], Callable[[float], float]]:
    """The marks, and where a value is: 0 at the bottom, 1 at the top."""
    low, high = min(values), max(values)
    if low > 0 and high / low >= LARGE_RANGE:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        return [10.0**power for power in range(first, last + 1)], lambda value: (math.log10(value) - first) / (last - first)
    marks = round_marks(high)
    return marks, lambda value: value / marks[-1]


def mark_text(value: float) -> str:
    return f"{value:,.10g}" if value < 1e6 else f"{value / 1e6:,.10g}M"


def curve(name: str, colour: int, points: dict[int, list[float]], x, y) -> str:
    """The line through the medians, a whisker from the least to the largest round, and a dot that tells its value."""
    where = {ranks: (WIDTH * x(ranks), statistics.median(values)) for ranks, values in sorted(points.items())}

    def at(value: float) -> str:
        return f"{HEIGHT * (1 - y(value)):.0f}"

    line = "L".join(f"{left:.0f} {at(median)}" for left, median in where.values())
    dashed = " dashed" if name in LIMITS else ""
    parts = [f"<path class='line c{colour}{dashed}' d='M{line}h0'/>"]
    for ranks, (left, median) in where.items():
        parts.append(f"<path class='line faint c{colour}' d='M{left:.0f} {at(min(points[ranks]))}V{at(max(points[ranks]))}'/>"
                     f"<path class='dot c{colour}' d='M{left:.0f} {at(median)}h0'>"
                     f"<title>{escape(name)}, {ranks}: {number(median)}</title></path>")
    return "".join(parts)


def figure(panel: Panel) -> str:
    ranks = sorted({count for line in panel.lines.values() for count in line})
    marks, y = y_axis([value for line in panel.lines.values() for values in line.values() for value in values])
    legend, curves = "", ""
    for index, (name, points) in enumerate(panel.lines.items()):
        colour = index % COLOURS + 1
        most = max(points)
        dashed = " dashed" if name in LIMITS else ""
        legend += (f"<span class='key c{colour}{dashed}'>{escape(name)} "
                   f"<b>{number(statistics.median(points[most]))}</b></span>")
        curves += curve(name, colour, points, lambda count: ranks.index(count) / (len(ranks) - 1), y)
    grid = "".join(f"M0 {HEIGHT * (1 - y(mark)):.0f}H{WIDTH}" for mark in marks)
    y_labels = "".join(f"<span style='top:{100 * (1 - y(mark)):.1f}%'>{mark_text(mark)}</span>" for mark in marks)
    x_labels = "".join(f"<span style='left:{100 * index / (len(ranks) - 1):.1f}%'>{count}</span>"
                       for index, count in enumerate(ranks))
    title = escape(f"{panel.title}, {panel.unit}")
    return (f"<figure class='card'><figcaption><h3>{title}</h3><div class='legend'>{legend}</div></figcaption>"
            f"<div class='plot'><div class='ys'>{y_labels}</div>"
            f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' preserveAspectRatio='none' role='img' aria-label='{title}'>"
            f"<path class='grid' d='{grid}'/>{curves}</svg>"
            f"<div class='xs'>{x_labels}</div><div class='xname'>ranks or threads</div></div></figure>\n")


def page(name: str, rows: Iterable[Row], head: Iterable[str]) -> str:
    """`head`: lines about the machine, as in the heading of a table."""
    style = re.search(r'R"css\((.*?)\)css"', STYLE.read_text(encoding="utf-8"), re.DOTALL)[1]
    lines = "".join(f"<p class='soft'>{escape(line.removeprefix('- '))}</p>" for line in head)
    figures = "".join(map(figure, panels(rows)))
    return ("<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>\n"
            "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; img-src data:; "
            "style-src 'unsafe-inline'\">\n"
            "<meta name='viewport' content='width=device-width,initial-scale=1'><link rel='icon' href='data:,'>\n"
            f"<title>{escape(name)}</title><style>{style}</style></head>\n<body><main><h1>{escape(name)}</h1>{lines}"
            "<p class='soft'>A line goes through the medians of the rounds, a whisker from the least to the largest; beside a "
            f"name is the value at its largest number.</p>\n<div class='grid'>\n{figures}</div></main></body></html>\n")
