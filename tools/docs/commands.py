"""Commands on the pages exist: ./dev's commands and options, lockstep's options, CMake's LOCKSTEP_* settings."""
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
SETTING = re.compile(r"-D(LOCKSTEP_\w+)")


def all_text(root: Path, pattern: str) -> str:
    return "\n".join(path.read_text() for path in sorted(root.glob(pattern)))


def declared_options(text: str) -> set:
    return {"--" + name.replace("_", "-") for name in KEY.findall(text)} | {"--help"}


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


def check(root: Path):
    known = Known(root)
    for page in markdown.pages(root):
        for number, line in enumerate(page.read_text().splitlines(), 1):
            for message in wrong_in(line, known):
                yield page, number, message
