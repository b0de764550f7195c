"""docs/environment.md names every environment variable that the sources know, and no other."""
import re
from pathlib import Path

PAGE = "docs/environment.md"
FOLDERS = ("src", "include", "python")
NAME = r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*_?"
# Asked for by name: getenv("TMPDIR"), environment.get("RANK"), number(environment, "RANK"), os.environ["RANK"].
ASKED = re.compile(rf'(?:getenv|get|has|number|required|find_variable|environ)\s*[(\[]\s*(?:\w+,\s*)?"({NAME})"')
# Any other text of that form: tables of names, names handed on, what workers are given.
LITERAL = re.compile(rf'"({NAME})"')
# A file that says so puts this in front of the names in its table.
PREFIX = re.compile(r'"([A-Z]+_)"\) \+')
IN_TABLE = re.compile(rf'\{{"({NAME})",')
ON_PAGE = re.compile(rf"`({NAME})`")

# Text of the same form that is no variable.
OTHER_TEXT = re.compile(r"F8_\w+|MPI_THREAD_\w+")


def names_in_source(text: str):
    """(name, line) of each variable that a source file names."""
    prefix = PREFIX.search(text)
    table = {}
    if prefix:
        table = {match.start(1): prefix[1] + match[1] for match in IN_TABLE.finditer(text)}
    found = {match.start(1): match[1] for match in ASKED.finditer(text)}
    found |= {match.start(1): match[1] for match in LITERAL.finditer(text) if "_" in match[1]}
    found |= table
    for start, name in sorted(found.items()):
        if not OTHER_TEXT.fullmatch(name) and not (prefix and name == prefix[1]):
            yield name, text.count("\n", 0, start) + 1


def names_on_page(text: str):
    """Those in the first column of its tables."""
    names = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("|"):
            for name in ON_PAGE.findall(line.split("|")[1]):
                names.setdefault(name, number)
    return names


# Sections for what this project only hands on, or what its tools and tests read: not looked for in the sources.
def without_others(text: str) -> str:
    return text.split("\n## Read by others")[0]


def check(root: Path):
    page = root / PAGE
    text = page.read_text()
    listed = names_on_page(text)
    known = set()
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".cpp", ".h", ".inl", ".py"):
                continue
            for name, line in names_in_source(path.read_text()):
                if name not in listed and name not in known:
                    yield path, line, f"the environment variable {name} is not in {PAGE}"
                known.add(name)
    for name, line in names_on_page(without_others(text)).items():
        if name not in known:
            yield page, line, f"no source names {name}; take it off this page"
