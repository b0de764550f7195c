"""Tables of ./dev bench on the pages are as the command has written them, and say what they were measured with. The charts
show these tables.

bench/page_blocks.py describes their form. A block without text, a place for a table, is fine.
"""
import re
import sys
from pathlib import Path

import markdown

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
import charts  # noqa: E402
import page_blocks  # noqa: E402

HEADING = ("Command", "Date", "Machine", "Versions", "Noise", "Rounds")
NAMES = re.compile(r"^BENCHES = \[(.*?)\]", re.MULTILINE | re.DOTALL)


def names(root: Path):
    """The benches, and the search of a peer's settings."""
    return {"tune", *re.findall(r'"(\w+)"', NAMES.search((root / "bench/run.py").read_text())[1])}


def wrong_in(block: page_blocks.Block, known):
    if block.name.split()[0] not in known:
        yield f"./dev bench has no '{block.name.split()[0]}'"
    if not block.text:
        return
    if block.digest != page_blocks.digest(block.text):
        yield f"the table was edited by hand; write it again: ./dev bench {block.name} --into PAGE"
    for part in HEADING:
        if f"\n- {part}: " not in f"\n{block.text}":
            yield f"the table of ./dev bench {block.name} has no line '- {part}: '"


def wrong_charts(root: Path):
    try:
        drawn = charts.draw(root)
    except ValueError as error:
        yield root / charts.CHARTS, 1, str(error)
        return
    for file in sorted({*drawn, *(root / charts.CHARTS).glob("*.svg")}):
        if file not in drawn:
            yield file, 1, "bench/charts.py has no chart of this name"
        elif not file.exists() or file.read_text() != drawn[file]:
            yield file, 1, "the chart shows other figures than the tables; draw it again: python3 bench/charts.py"


def check(root: Path):
    known = names(root)
    for page in markdown.pages(root):
        try:
            for block in page_blocks.blocks(page.read_text()):
                for message in wrong_in(block, known):
                    yield page, block.line, message
        except ValueError as error:
            yield page, 1, str(error)
    if (root / charts.CHARTS).is_dir():
        yield from wrong_charts(root)
