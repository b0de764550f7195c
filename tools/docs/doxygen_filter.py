#!/usr/bin/env python3
"""Doxygen's INPUT_FILTER: turns a header's plain comments into documentation.

    doxygen_filter.py HEADER     prints the result

A comment before a declaration becomes `///`, one after a member `///<`, and the first one the file's description. Lines
indented by three become a block of code. Comments inside functions do not change. If the class that the file is named
after has no comment, it gets the file's.
"""
import re
import sys
from pathlib import Path

import code_blocks

COMMENT_LINE = re.compile(r"^( *)//(?!/)(.*)$")
TRAILING = re.compile(r"^(?P<code> *[^ /].*?)  //(?P<text> .*)$")
# Notes for other tools, and comments that mark the end of a namespace.
NO_TEXT = re.compile(r" (NOLINT|IWYU|namespace )")
# Lines that a comment does not describe: empty, the end of a scope, an access label, a directive other than a macro.
NO_DECLARATION = re.compile(r"^\s*($|\}|(public|private|protected):|#(?!define))")
SCOPE = re.compile(r"^(template\s*<.*>\s*)?(requires\b.*>\s*)?(inline\s+)?(namespace|class|struct|union|enum)\b")
CLASS = re.compile(r"^class (?:LOCKSTEP_\w+ |\[\[\w+\]\] )?(\w+)[^;]*$")
LITERAL_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|//.*')
INLINE_CODE = re.compile(r"(`[^`]*`)")
# Characters that Doxygen would read as markup.
SPECIAL = re.compile(r"[\\@<>]|#(?=\w)|(?<!\w)\*(?=\w)")


class Scopes:
    """Tracks whether a line is among declarations or inside a function."""

    def __init__(self):
        self.declares = []  # for each open brace: whether it holds declarations
        self.statement = ""
        self.directive = False  # of the preprocessor, which a backslash continues

    def among_declarations(self):
        return all(self.declares)

    def read(self, line):
        if self.directive or line.startswith("#"):
            self.directive = line.endswith("\\")
            return
        for character in LITERAL_OR_COMMENT.sub("", line) + " ":
            if character == "{":
                self.declares.append(bool(SCOPE.match(self.statement.strip())))
            elif character == "}" and self.declares:
                self.declares.pop()
            if character in "{};":
                self.statement = ""
            else:
                self.statement += character


def plain(text):
    """Escapes what Doxygen would read as commands or HTML."""
    parts = INLINE_CODE.split(text)
    return "".join(part if part.startswith("`") else SPECIAL.sub(r"\\\g<0>", part) for part in parts)


def documented(block, code_lines, mark):
    """Turns a block of comment lines, each (number, indent, text), into documentation."""
    result, in_code = [], False
    for number, indent, text in block:
        if (number in code_lines) != in_code:
            in_code = not in_code
            result.append(f"{indent}{mark} @{'code{.cpp}' if in_code else 'endcode'}")
        result.append(f"{indent}{mark}{text if in_code else plain(text)}")
    if in_code:
        result.append(f"{block[-1][1]}{mark} @endcode")
    return result


def code_lines_of(text):
    lines = set()
    for begin, code in code_blocks.blocks_of_header(text):
        lines |= set(range(begin, begin + len(code.rstrip().split("\n"))))
    return lines


def is_named(path, lines):
    """Whether these lines begin the class that the file is named after."""
    at = 1 if lines[0].startswith("template") else 0
    name = CLASS.match(lines[at]) if at < len(lines) else None
    return name is not None and re.sub(r"(?<!^)(?=[A-Z])", "_", name[1]).lower() == path.stem


def filtered(text, path):
    lines, code_lines = text.splitlines(), code_lines_of(text)
    scopes, result, at = Scopes(), [], 0
    trailing_column = None  # of the comment on the line before; comments in this column continue it
    while at < len(lines):
        block = []
        while at < len(lines) and (match := COMMENT_LINE.match(lines[at])) and (not block or match[1] == block[0][1]):
            block.append((at + 1, match[1], match[2]))
            at += 1
        following = lines[at] if at < len(lines) else ""
        if block:
            mark = "//"
            if block[0][0] == 1:
                mark = "///"
                result.append("/// @file")
            elif trailing_column == len(block[0][1]):
                mark = "///<"
            elif scopes.among_declarations() and not NO_DECLARATION.match(following):
                mark = "///"
            result += documented(block, code_lines, mark) if mark != "//" else lines[block[0][0] - 1:at]
            trailing_column = None
            continue
        trailing = TRAILING.match(following)
        trailing_column = None
        if is_named(path, lines[at:at + 2]) and not "".join(result[-1:]).startswith(("///", "template")):
            result.append(f"/// @copydoc {path.as_posix().rpartition('include/')[2]}")
        if trailing and scopes.among_declarations() and not NO_TEXT.match(trailing["text"]):
            result.append(f"{trailing['code']}  ///<{plain(trailing['text'])}")
            trailing_column = len(trailing["code"]) + 2
        else:
            result.append(following)
        scopes.read(following)
        at += 1
    return "\n".join(result) + "\n"


if __name__ == "__main__":
    header = Path(sys.argv[1])
    sys.stdout.write(filtered(header.read_text(), header))
