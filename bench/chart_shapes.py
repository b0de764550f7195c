"""Reads the tables of the pages and draws their ratios as SVG. A chart has a logarithmic scale: right of 1, or above it,
Lockstep is faster. Each chart brings its own background, in light and in dark."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path

import page_blocks
from report import NO_DIFFERENCE

WIDTH, MARGIN, CAPTION_WIDTH = 640, 16, 98
RATIO = re.compile(r"(?P<slanted>\*?)(?P<ratio>[\d.]+)x \[(?P<low>-?[\d.]+) \.\. (?P<high>-?[\d.]+)\]")
COLOURS = 5

STYLE = """
text{font:13px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;fill:#1f2328}
.title{font-size:16px;font-weight:600}.soft{font-size:12px;fill:#59636e}.ratio{font-weight:600}
.card{fill:#fff;stroke:#d1d9e0}.grid{stroke:#e3e8ed}.one{stroke:#59636e;stroke-width:1.5}.slower{fill:#f4f1ec}
.mark,.line{stroke-width:2}.c1{stroke:#0b66d0;fill:#0b66d0}.c2{stroke:#c2570c;fill:#c2570c}.c3{stroke:#1a7f4b;fill:#1a7f4b}
.c4{stroke:#8250df;fill:#8250df}.c5{stroke:#bf3989;fill:#bf3989}.none{stroke:#6e7781;fill:#6e7781}
.line{fill:none}.hollow{fill:#fff}
@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.soft{fill:#9aa4af}.card{fill:#151b23;stroke:#3d444d}
.grid{stroke:#2b323a}.one{stroke:#9aa4af}.slower{fill:#221e1a}
.c1{stroke:#58a6ff;fill:#58a6ff}.c2{stroke:#f0883e;fill:#f0883e}.c3{stroke:#3fb96b;fill:#3fb96b}
.c4{stroke:#b392f0;fill:#b392f0}.c5{stroke:#f778ba;fill:#f778ba}.none{stroke:#9aa4af;fill:#9aa4af}
.line{fill:none}.hollow{fill:#151b23}}
"""


@dataclass(frozen=True)
class Result:
    """A row of a table, or a cell of a table by size."""
    ours: str  # the median, as in the table
    theirs: str  # "" in a table by size, which has none
    unit: str
    ratio: float
    low: float
    high: float
    shown: bool  # whether a difference is shown


# Bench block, case, peer, ranks, size ("" in a table without sizes): what finds a result.
Key = tuple[str, str, str, int, str]


@dataclass(frozen=True)
class Tables:
    results: dict[Key, Result]
    headings: dict[str, dict[str, str]]  # of each block: "Machine", "Date", ...

    def find(self, *key) -> Result:
        if key not in self.results:
            raise ValueError(f"the table of ./dev bench {key[0]} has no case '{key[1]}' against '{key[2]}' with {key[3]} ranks"
                             + (f" and {key[4]}" if key[4] else "") + ", which a chart of bench/charts.py shows")
        return self.results[key]

    def source(self, benches: Iterable[str]) -> str:
        """The caption: machines, dates, commands."""
        headings = [self.headings[bench] for bench in dict.fromkeys(benches)]
        machines = dict.fromkeys(heading["Machine"].split(",")[0] for heading in headings)
        dates = sorted(heading["Date"][:10] for heading in headings)
        when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
        commands = ", ".join(heading["Command"].strip("`").removesuffix(" --markdown").removeprefix("./dev bench ")
                             for heading in headings)
        versions = dict.fromkeys(heading["Versions"].split(",")[0] for heading in headings)
        return f"{', '.join(machines)}; {', '.join(versions)}; {when}; ./dev bench {commands}."


def result(ours: str, theirs: str, unit: str, ratio: re.Match[str], note: str) -> Result:
    return Result(ours.split(" [")[0], theirs.split(" [")[0], unit, *(float(ratio[part]) for part in ("ratio", "low", "high")),
                  shown=not note)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def results_of(block: page_blocks.Block) -> Iterable[tuple[Key, Result]]:
    sizes, ranks, case, ours, unit = [], 0, "", [], ""
    for line in block.text.splitlines():
        if not line.startswith("| "):
            continue
        first, *rest = cells(line)
        if head := re.fullmatch(r"(\d+) ranks", first):
            ranks, sizes = int(head[1]), rest
        elif head := re.fullmatch(r"\*\*(.+)\*\*, (\S*)", first):
            case, unit, ours = head[1], head[2], rest
        elif first.startswith("against "):
            for size, mine, cell in zip(sizes, ours, rest, strict=True):
                if ratio := RATIO.match(cell):
                    key = (block.name, case, first.removeprefix("against "), ranks, size)
                    yield key, result(mine, "", unit, ratio, NO_DIFFERENCE if ratio["slanted"] else "")
        elif len(rest) == 8 and (ratio := RATIO.match(f"{rest[5]} {rest[6]}")):
            yield (block.name, first, rest[2], int(rest[0]), ""), result(rest[1], rest[3], rest[4], ratio, rest[7])


def read(folder: Path) -> Tables:
    """All tables of the pages in this folder."""
    tables = Tables({}, {})
    for page in sorted(folder.glob("*.md")):
        for block in page_blocks.blocks(page.read_text(encoding="utf-8")):
            tables.results.update(results_of(block))
            tables.headings[block.name] = dict(re.findall(r"^- (\w+): (.+)$", block.text, re.MULTILINE))
    return tables


def scale(results: Iterable[Result], begin: float, end: float) -> tuple[list[float], Callable[[float], float]]:
    """Marks at powers of two, and where a ratio is drawn. Intervals that leave the range are cut at its ends."""
    ratios = [result.ratio for result in results]
    low = min(-1, math.floor(math.log2(min(ratios)) - 0.2))
    high = max(1, math.ceil(math.log2(max(ratios)) + 0.2))
    step = math.ceil((high - low) / 7)
    marks = [2.0**power for power in range(low, high + 1) if power % step == 0]

    def at(ratio: float) -> float:
        power = min(max(math.log2(ratio), low), high) if ratio > 0 else low
        return begin + (end - begin) * (power - low) / (high - low)

    return marks, at


def ratio_text(ratio: float) -> str:
    return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.0f}x"


def mark_text(mark: float) -> str:
    return f"{mark:g}x"


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" class="{kind}" text-anchor="{anchor}">{escape(content)}</text>\n'


def shape(index: int, x: float, y: float, colour: str, hollow: bool) -> str:
    """A mark; each line of a chart has another, so that colours are not needed to tell lines apart."""
    r = 4.5
    paths = (f"M{x - r:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0z", f"M{x - 4:.1f} {y - 4:.1f}h8v8h-8z",
             f"M{x:.1f} {y - 5:.1f}l5 9h-10z", f"M{x:.1f} {y - 5.5:.1f}l5.5 5.5l-5.5 5.5l-5.5 -5.5z",
             f"M{x:.1f} {y + 5:.1f}l5 -9h-10z")
    return f'<path class="mark {colour}{" hollow" if hollow else ""}" d="{paths[index]}"/>\n'


def picture(title: str, height: float, body: str, caption: str) -> str:
    lines = textwrap.wrap(caption, CAPTION_WIDTH)
    below = "".join(text(MARGIN, height + 14 + 17 * i, line, "soft") for i, line in enumerate(lines))
    full = height + 14 + 17 * len(lines)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{full:.0f}" viewBox="0 0 {WIDTH} {full:.0f}" '
            f'role="img">\n<title>{escape(title)}</title>\n<style>{STYLE}</style>\n'
            f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{full - 1:.0f}" rx="6"/>\n'
            f"{text(MARGIN, 28, title, 'title')}{body}{below}</svg>\n")


@dataclass(frozen=True)
class Line:
    """A line of a chart of rows: what a reader calls it, and where it is in the tables."""
    label: str
    bench: str
    case: str
    peer: str
    ranks: int = 2
    size: str = ""


@dataclass(frozen=True)
class Rows:
    """A mark and an interval for each line."""
    name: str
    title: str
    lines: tuple[Line, ...]

    ROW, TOP = 38, 66

    def draw(self, tables: Tables) -> str:
        found = [tables.find(line.bench, line.case, line.peer, line.ranks, line.size) for line in self.lines]
        marks, x = scale(found, MARGIN + 8, WIDTH - MARGIN - 8)
        bottom = self.TOP + self.ROW * len(found) + 4
        bands = [self.TOP + self.ROW * i + 21 for i in range(len(found))]  # below the text of each line
        body = f'<path class="slower" d="{"".join(f"M{x(0):.1f} {y}H{x(1):.1f}v14H{x(0):.1f}z" for y in bands)}"/>\n'
        for mark in marks:
            lines = "".join(f"M{x(mark):.1f} {y}v14" for y in bands)
            body += f'<path class="{"one" if mark == 1 else "grid"}" d="{lines}"/>\n'
            body += text(x(mark), bottom + 16, mark_text(mark), "soft", "middle")
        legend = (("c1", False, "Lockstep faster"), ("c2", False, "the other faster"), ("none", True, "no difference shown"))
        for i, (colour, hollow, name) in enumerate(legend):
            body += shape(0, MARGIN + 6 + 170 * i, 48, colour, hollow) + text(MARGIN + 17 + 170 * i, 52, name, "soft")
        for i, (line, one) in enumerate(zip(self.lines, found, strict=True)):
            y = self.TOP + self.ROW * i + 16
            colour = "none" if not one.shown else "c1" if one.ratio > 1 else "c2"
            times = f"{one.ours} against {one.theirs} {one.unit}" if one.theirs else f"{one.ours} {one.unit}"
            body += text(MARGIN, y, line.label)
            body += text(WIDTH - MARGIN, y, ratio_text(one.ratio), "ratio", "end")
            body += text(WIDTH - MARGIN - 52, y, times, "soft", "end")
            body += f'<path class="line {colour}" d="M{x(one.low):.1f} {y + 12}H{x(one.high):.1f}"/>\n'
            body += shape(0, x(one.ratio), y + 12, colour, not one.shown)
        caption = ("How many times as fast as the other, median of the rounds and 95 % interval, on a logarithmic scale. "
                   "Lockstep is called from C++ unless a line says Python. "
                   + tables.source(line.bench for line in self.lines))
        return picture(self.title, bottom + 26, body, caption)


@dataclass(frozen=True)
class Curve:
    label: str
    case: str
    peer: str
    ranks: int = 2


@dataclass(frozen=True)
class BySize:
    """A curve over sizes for each peer."""
    name: str
    title: str
    bench: str
    curves: tuple[Curve, ...]

    PLOT = 230

    def draw(self, tables: Tables) -> str:
        assert len(self.curves) <= COLOURS
        sizes = list(dict.fromkeys(key[4] for key in tables.results if key[0] == self.bench and key[1] == self.curves[0].case))
        found = {curve: [tables.find(self.bench, curve.case, curve.peer, curve.ranks, size) for size in sizes]
                 for curve in self.curves}
        top = 50 + 18 * math.ceil(len(self.curves) / 2)
        bottom, left, right = top + self.PLOT, MARGIN + 46, WIDTH - MARGIN - 22
        marks, y = scale((one for curve in found.values() for one in curve), bottom, top)
        body = f'<path class="slower" d="M{left - 10} {y(0):.1f}V{y(1):.1f}H{right + 14}V{y(0):.1f}z"/>\n'
        for mark in marks:
            body += f'<path class="{"one" if mark == 1 else "grid"}" d="M{left - 10} {y(mark):.1f}H{right + 14}"/>\n'
            body += text(left - 16, y(mark) + 4, mark_text(mark), "soft", "end")
        across = [left + (right - left) * i / (len(sizes) - 1) for i in range(len(sizes))]
        body += "".join(text(x, bottom + 18, size, "soft", "middle") for x, size in zip(across, sizes, strict=True))
        for i, (curve, results) in enumerate(found.items()):
            colour, at = f"c{i + 1}", (MARGIN + 6 + (WIDTH - 2 * MARGIN) / 2 * (i % 2), 48 + 18 * (i // 2))
            body += shape(i, *at, colour, False) + text(at[0] + 11, at[1] + 4, curve.label, "soft")
            points = "L".join(f"{x:.1f} {y(one.ratio):.1f}" for x, one in zip(across, results, strict=True))
            body += f'<path class="line {colour}" d="M{points}"/>\n'
            body += "".join(shape(i, x, y(one.ratio), colour, not one.shown) for x, one in zip(across, results, strict=True))
        caption = ("How many times as fast as the other, median of the rounds, by the bytes of a rank's buffer, on logarithmic "
                   "scales. Hollow: no difference shown. Below 1x, shaded, the other is faster. " + tables.source([self.bench]))
        return picture(self.title, bottom + 30, body, caption)
