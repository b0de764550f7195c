"""The code in pages and public headers compiles: a file that the tests build contains each block.

A block is covered if a file of tests/documented or an example contains its text; white space and comments are ignored.
"..." in a block matches any text. The text between must be contiguous in the file too, so that the compiler sees all of
it. A script on a page ("#!" in a block of language bash) is a file of the examples, which the tests run.
"""
import re
from pathlib import Path

import markdown

# One token that may hold "//": a string, a character, or a comment.
TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.DOTALL)
COMMENT = re.compile(r"^ *//(.*)$")
LIST_ITEM = re.compile(r" *(-|\*|\d+\.) ")
CODE_INDENT = "   "  # after the slashes
INCLUDE = re.compile(r'^#include [<"](.+?)[>"].*$', re.MULTILINE)
LOOKS_LIKE_CPP = re.compile(r"#include|\bstd::|\blockstep::|\btorch::")


def squeezed(code: str) -> str:
    """Removes white space and comments, and writes all includes with <>."""
    code = INCLUDE.sub(r"#include <\1>", code)
    code = TOKEN.sub(lambda token: "" if token[0].startswith("/") else token[0], code)
    return re.sub(r"\s+", "", code)


def covers(source: str, block: str) -> bool:
    """Whether `source` (squeezed) contains the pieces of the block between "...", in this order."""
    if not all(f"#include<{path}>" in source for path in INCLUDE.findall(block)):
        return False
    at = 0
    for piece in squeezed(INCLUDE.sub("", block)).split("..."):
        at = source.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True


def blocks_of_page(text: str):
    """(line, code) of each C++ block. A block that looks like C++ but names no language is an error."""
    for block in markdown.split(text)[0]:
        if block.language == "cpp":
            yield block.line, block.text
        elif not block.language and LOOKS_LIKE_CPP.search(block.text):
            raise ValueError(f"line {block.line}: this block looks like C++; begin it with ```cpp")


def scripts_of_page(text: str):
    """(line, script) of each block of language bash that begins with "#!"."""
    for block in markdown.split(text)[0]:
        if block.language == "bash" and block.text.startswith("#!"):
            yield block.line, block.text


def blocks_of_header(text: str):
    """(line, code) of each block in a comment: lines that are indented by three and not part of a list."""
    begin, code, list_indent = 0, [], None
    for number, line in enumerate([*text.splitlines(), ""], 1):
        comment = COMMENT.match(line)
        content = comment[1] if comment else None
        if content:
            indent = len(content) - len(content.lstrip())
            if LIST_ITEM.match(content):
                list_indent = indent
            elif list_indent is not None and indent <= list_indent:
                list_indent = None
        elif content is None:
            list_indent = None
        if content and content.startswith(CODE_INDENT) and list_indent is None:
            begin = begin or number
            code.append(content[len(CODE_INDENT):])
        elif code and content == "":
            code.append("")
        elif code:
            yield begin, "\n".join(code)
            begin, code = 0, []


def check_scripts(root: Path):
    files = {path.read_bytes().strip() for path in (root / "examples").glob("*/*") if path.is_file()}
    for page in markdown.pages(root):
        for line, script in scripts_of_page(page.read_text()):
            if script.strip().encode() not in files:
                yield page, line, "no file of examples is this script; add it there, so that a test can run it"


def check(root: Path):
    yield from check_scripts(root)
    sources = sorted((root / "tests/documented").glob("*.cpp")) + sorted((root / "examples").glob("*/*.cpp"))
    compiled = [squeezed(path.read_text()) for path in sources]
    documents = [(page, blocks_of_page) for page in markdown.pages(root)]
    documents += [(header, blocks_of_header) for header in sorted(root.glob("*/include/**/*.h"))]
    for path, blocks_of in documents:
        try:
            for line, code in blocks_of(path.read_text()):
                if not any(covers(source, code) for source in compiled):
                    yield path, line, "no file of tests/documented or examples contains this code; add it there, so that it is compiled"
        except ValueError as error:
            yield path, 1, str(error)
