"""docs/environment.md names every environment variable that the sources use, and no other."""
import re
from pathlib import Path

PAGE = "docs/environment.md"
FOLDERS = ("core/src", "core/internal", "core/include", "vision/src", "vision/internal", "vision/include", "studio/src",
           "studio/internal", "studio/include", "python")
NAME = r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*_?"
# Read by name: getenv("TMPDIR"), environment.get("RANK"), number(environment, "RANK"), os.environ["RANK"].
ASKED = re.compile(rf'(?:getenv|get|has|number|required|find_variable|environ)\s*[(\[]\s*(?:\w+,\s*)?"({NAME})"')
# Any other string of that form: tables of names, arguments, variables that workers get.
LITERAL = re.compile(rf'"({NAME})"')
# A file with such an expression adds this prefix to the names in its table.
PREFIX = re.compile(r'"([A-Z]+_)"\) \+')
IN_TABLE = re.compile(rf'\{{"({NAME})",')
ON_PAGE = re.compile(rf"`({NAME})`")

# Strings of the same form that are not variables.
OTHER_TEXT = re.compile(r"F8_\w+|MPI_THREAD_\w+|MEM_FORMAT_\w+|T_0|PCI_BUS_ID")


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
    """The names in the first column of the page's tables."""
    names = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("|"):
            for name in ON_PAGE.findall(line.split("|")[1]):
                names.setdefault(name, number)
    return names


def without_others(text: str) -> str:
    """Drops the sections on variables that only other programs, tools and tests read: no source need name them."""
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
            yield page, line, f"no source uses {name}; remove it from this page"
