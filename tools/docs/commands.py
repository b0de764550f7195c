"""Commands on the pages exist: ./dev's commands and options, lockstep's options, CMake's LOCKSTEP_* settings.

tests/documented/commands.txt says for each command in a block which test runs it, or why none does.
"""
import re
from pathlib import Path

import markdown

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
# Up to a comment, the end of inline code, or a pipe.
DEV = re.compile(r"\./dev(?: ([a-z_-]+))?((?: [^`|#;)]*)?)")
# Options come before the program's name, which has a path or an extension, or is lockstep itself.
RUN = re.compile(r"(?<![\w/])lockstep run((?: +(?!lockstep\b)(?:--?[\w-]+|[\w:,]+))*)")
PICTURES = re.compile(r"(?<![\w/])lockstep (pack|data \w+)([^`|#;)]*)")
# A row of a table of options (core/include/lockstep/options/table.h).
KEY = re.compile(r'\b(?:option|key|key_of_text)\(\s*"([a-z_]+)"')
# What makes a row a key of files, or of words, alone.
NO_OPTION = re.compile(r"\.(only_in_file|rest|word)\(\)")
SETTING = re.compile(r"-D(LOCKSTEP_\w+)")
LIST = "tests/documented/commands.txt"
# The first words of a line that is a command. What a command prints begins otherwise.
COMMAND = re.compile(r"(\./|/opt/|build/|scripts/)\S+|[A-Z_]+=\S+ \S|lockstep [a-z]+( |$)|"
                     r"(apt-get|cd|cmake|ctest|export|git|kubectl|mpirun|pip|python3|sbatch|srun|tar|torchrun) ")
COMMENT = re.compile(r"(^|\s+)#\s.*")
TEST_MACRO = re.compile(r"^TEST(?:_[FP])?\((\w+), (\w+)\)", re.MULTILINE)
TEST_COMMAND = re.compile(r"add_test\(NAME (\S+)")


def all_text(root: Path, pattern: str) -> str:
    return "\n".join(path.read_text() for path in sorted(root.glob(pattern)))


def declared_options(text: str) -> set:
    rows = ((key[1], text[key.start():].split(";\n")[0]) for key in KEY.finditer(text))
    return {"--" + name.replace("_", "-") for name, row in rows if not NO_OPTION.search(row)} | {"--help"}


class Known:
    """The commands, options and settings, read where they are defined."""

    def __init__(self, root: Path):
        dev = (root / "dev").read_text()
        self.help = dev[dev.index("<<TEXT"):dev.index("\nTEXT")]
        self.commands = set(re.findall(r"^  ([a-z]+) ", self.help, re.MULTILINE))
        self.commands |= set(re.findall(r"^  ([a-z]+)$", self.help, re.MULTILINE))
        self.dev = set(OPTION.findall(self.help))
        self.run = declared_options(all_text(root, "core/src/cli/run_options.cpp") +
                                    all_text(root, "core/src/options/table.cpp"))
        self.pictures = declared_options(all_text(root, "vision/src/cli/pictures/*.cpp"))
        self.settings = set(re.findall(r"LOCKSTEP_\w+", all_text(root, "CMakeLists.txt") + all_text(root, "cmake/*") +
                                       all_text(root, "**/tests/**/CMakeLists.txt")))


def wrong_in(line: str, known: Known):
    for command, rest in DEV.findall(line):
        if command and command not in known.commands:
            yield f"./dev has no command '{command}'"
        for option in OPTION.findall(rest):
            if command and option not in known.dev:
                yield f"./dev help does not name {option}"
    for rest in RUN.findall(line):
        for option in OPTION.findall(rest):
            if option not in known.run:
                yield f"lockstep run has no option {option}"
    for command, rest in PICTURES.findall(line):
        for option in OPTION.findall(rest):
            if option not in known.pictures:
                yield f"lockstep {command} has no option {option}"
    for setting in SETTING.findall(line):
        if setting not in known.settings:
            yield f"CMake has no setting {setting}"


def commands_of(text: str):
    """(line, command) of each command in a block of shell commands or in an indented block."""
    blocks, prose = markdown.split(text)
    lines = [(block.line + at, line) for block in blocks if block.language in ("", "bash") and not block.text.startswith("#!")
             for at, line in enumerate(block.text.splitlines())]
    lines += [(number, line) for number, line in prose if line.startswith("    ")]
    begun = None
    for number, line in sorted(lines):
        begun = (begun[0], begun[1] + line) if begun else (number, line)
        if line.endswith("\\"):
            begun = (begun[0], begun[1][:-1])
            continue
        command = " ".join(COMMENT.sub("", begun[1]).split())
        if COMMAND.match(command):
            yield begun[0], command
        begun = None


def listed_commands(text: str):
    """{command: (line, what runs it)}."""
    listed, command = {}, None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(" ") and command:
            listed[command] = (number, line.strip())
        elif line and not line.startswith("#"):
            command = line.strip()
            listed[command] = (number, "")
    return listed


def tests_of(root: Path):
    """The names of all tests."""
    names = set()
    for pattern in ("*/tests/**/*.cpp", "tests/**/*.cpp"):
        for path in root.glob(pattern):
            names |= {f"{suite}.{name}" for suite, name in TEST_MACRO.findall(path.read_text())}
    for path in root.glob("tests/**/CMakeLists.txt"):
        names |= set(TEST_COMMAND.findall(path.read_text()))
    return names


def check_list(root: Path):
    listed = listed_commands((root / LIST).read_text())
    tests, shown = tests_of(root), set()
    for page in markdown.pages(root):
        name = f"page {page.relative_to(root)}"
        for line, command in commands_of(page.read_text()):
            known = [one for one in (command, name, command.split()[0]) if one in listed]
            shown.update(known[:1])
            if not known:
                yield page, line, f"{LIST} does not say which test runs '{command}', or why none does"
    for command, (line, how) in listed.items():
        kind, _, rest = how.partition(" ")
        if command not in shown:
            yield root / LIST, line, f"no page shows '{command}'"
        elif kind == "test" and rest not in tests:
            yield root / LIST, line, f"there is no test {rest}"
        elif kind != "test" and not how.startswith("not run: "):
            yield root / LIST, line, f"expected 'test SUITE.NAME' or 'not run: REASON' below '{command}'"


def check(root: Path):
    yield from check_list(root)
    known = Known(root)
    for page in markdown.pages(root):
        for number, line in enumerate(page.read_text().splitlines(), 1):
            for message in wrong_in(line, known):
                yield page, number, message
