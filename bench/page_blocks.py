"""Tables of benches in the project's pages: text between two comments, with a digest that shows later edits.

    <!-- bench NAME -->
    what `./dev bench NAME --markdown` has printed
    <!-- end of bench NAME DIGEST -->

A block without text is a place for a table that has not been measured yet; its end has no digest.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BEGIN = re.compile(r"^<!-- bench (.+?) -->$")
END = re.compile(r"^<!-- end of bench (.+?)(?: ([0-9a-f]{12}))? -->$")


@dataclass
class Block:
    name: str
    line: int  # of its first comment, from 1
    text: str  # between the comments, each line with its end
    digest: str | None


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def wrapped(name: str, text: str) -> str:
    return f"<!-- bench {name} -->\n{text}<!-- end of bench {name} {digest(text)} -->\n"


def blocks(page: str) -> Iterator[Block]:
    """The page's blocks. A ValueError names the line of a comment that has no partner."""
    open_block: Block | None = None
    for number, line in enumerate(page.splitlines(), 1):
        begin, end = BEGIN.match(line), END.match(line)
        if begin and open_block is None:
            open_block = Block(begin[1], number, "", None)
        elif begin or (end and (open_block is None or open_block.name != end[1])):
            raise ValueError(f"line {number}: '{line}' has no partner")
        elif end:
            open_block.digest = end[2]
            yield open_block
            open_block = None
        elif open_block is not None:
            open_block.text += line + "\n"
    if open_block is not None:
        raise ValueError(f"line {open_block.line}: '<!-- bench {open_block.name} -->' has no end")


def page_with(place: Path, name: str) -> Path:
    """The page with the block of that name: `place` itself, or a page in the folder `place`. A ValueError when there is none."""
    for page in sorted(place.glob("*.md")) if place.is_dir() else [place]:
        if any(block.name == name for block in blocks(page.read_text(encoding="utf-8"))):
            return page
    raise ValueError(f"there is no line '<!-- bench {name} -->'")


def replaced(page: str, name: str, text: str) -> str:
    """The page with this text in the block of that name. A ValueError when it has no such block."""
    for block in blocks(page):
        if block.name == name:
            lines = page.splitlines(keepends=True)
            after = block.line + len(block.text.splitlines()) + 1
            return "".join([*lines[: block.line - 1], wrapped(name, text), *lines[after:]])
    raise ValueError(f"there is no line '<!-- bench {name} -->'")
