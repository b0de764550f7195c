"""Relative links have a target, and the indices name everything."""
from pathlib import Path

import markdown

# An index must name every page of its folder, or every folder of programs.
INDICES = {"docs/README.md": "*.md", "docs/performance.md": "measurements/*.md", "examples/README.md": "*/"}


def targets(prose):
    return {target.split("#")[0] for _, target in markdown.links(prose)}


def check_links(root: Path, page: Path, prose):
    for line, target in markdown.links(prose):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if not linked.exists():
            yield page, line, f"the link to {target} leads nowhere"
        elif anchor and linked.suffix == ".md" and anchor not in markdown.anchors(markdown.split(linked.read_text())[1]):
            yield page, line, f"{linked.relative_to(root)} has no heading #{anchor}"


def check_index(root: Path, name: str, pattern: str):
    index = root / name
    linked = {(index.parent / target).resolve() for target in targets(markdown.split(index.read_text())[1])}
    for path in sorted(index.parent.glob(pattern)):
        named = path in linked or any(path in other.parents for other in linked)
        if path != index and not named:
            yield index, 1, f"this index does not name {path.relative_to(index.parent)}"


def check(root: Path):
    for page in markdown.pages(root):
        try:
            yield from check_links(root, page, markdown.split(page.read_text())[1])
        except ValueError as error:
            yield page, 1, str(error)
    for name, pattern in INDICES.items():
        yield from check_index(root, name, pattern)
