#!/usr/bin/env python3
"""Checks the pages against the sources. `./dev check` and the tests run it. Needs only Python.

    tools/docs/check.py [CHECK...]     links, commands, environment, code_blocks, bench_tables or atomics; default: all

Prints a line PATH:LINE: TEXT for each error. The exit code is 1 if there is any.
"""
import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHECKS = ("links", "commands", "environment", "code_blocks", "bench_tables", "atomics")


def main(names):
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        print(f"check.py: unknown check '{unknown[0]}': expected {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    wrong = 0
    for name in names or CHECKS:
        for path, line, text in importlib.import_module(name).check(ROOT):
            print(f"{path.relative_to(ROOT)}:{line}: {text}")
            wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
