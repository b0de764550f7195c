"""Reads Markdown pages for the checks: fenced blocks, links, headings."""
import re
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^```(\w*)\s*$")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+?)\s*$")
INLINE_CODE = re.compile(r"`[^`]*`")


@dataclass
class Block:
    line: int  # the number of its first line of text, from 1
    language: str
    text: str


def pages(root: Path):
    """The project's own pages, without those in builds and dependencies."""
    found = sorted(root.glob("*.md"))
    for folder in ("bench", "core", "docs", "examples", "python", "studio", "tests", "tools", "vision"):
        found += sorted((root / folder).rglob("*.md"))
    return found


def split(text: str):
    """The page's fenced blocks, and its other lines as (number, line)."""
    blocks, prose, opened = [], [], None
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if opened is None and fence:
            opened = Block(number + 1, fence[1], "")
        elif opened is not None and line.startswith("```"):
            blocks.append(opened)
            opened = None
        elif opened is not None:
            opened.text += line + "\n"
        else:
            prose.append((number, line))
    if opened is not None:
        raise ValueError(f"line {opened.line - 1}: a block begins here and does not end")
    return blocks, prose


def links(prose):
    """(line number, target) of each link."""
    for number, line in prose:
        for target in LINK.findall(INLINE_CODE.sub("", line)):
            yield number, target


def anchors(prose):
    """The link names of headings, as GitHub makes them."""
    names = set()
    for _, line in prose:
        heading = HEADING.match(line)
        if not heading:
            continue
        text = LINK.sub(lambda link: link[0][1:link[0].index("]")], heading[1])
        name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        count = sum(1 for other in names if re.fullmatch(re.escape(name) + r"(-\d+)?", other))
        names.add(f"{name}-{count}" if count else name)
    return names
