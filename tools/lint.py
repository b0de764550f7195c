#!/usr/bin/env python3
"""Runs clang-tidy over the sources of a build tree and remembers which were clean.

A source whose text, headers, compile command and settings are those of a clean run is not linted again: an interrupted
run goes on where it stopped, and a change lints only what it touches. Headers are those of this repository, found by
following #include "...". LibTorch's version is part of the compile command. The memory is TREE/clean, one empty file a
source. Prints the findings; exits with 1 if any.

usage: lint.py --tree BUILD_TREE --clang-tidy PROGRAM [--jobs N] [FILE...]    (default: all files of the tree)
"""
import argparse
import concurrent.futures
import hashlib
import json
import pathlib
import re
import signal
import subprocess
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
FOLDER = re.compile(r"-I\s*(\S+)")
# What clang-tidy says about itself.
CHATTER = re.compile(
    r"warnings? (generated|treated as errors)|^Suppressed|^Use -header-filter|^\[\d+/\d+\].* Processing file "
)


class Sources:
    """The repository's files: each is read and hashed once."""

    def __init__(self, root):
        self.root = root
        self.hashes = {}
        self.names = {}

    def hash(self, path):
        if path not in self.hashes:
            content = path.read_bytes()
            self.hashes[path] = hashlib.sha256(content).hexdigest()
            self.names[path] = INCLUDE.findall(content.decode(errors="replace"))
        return self.hashes[path]

    def closure(self, source, folders):
        """The source and all headers of the repository that it includes."""
        found, open_ones = set(), [source]
        while open_ones:
            path = open_ones.pop()
            if path in found:
                continue
            found.add(path)
            self.hash(path)
            for name in self.names[path]:
                places = [(folder / name).resolve() for folder in [path.parent, *folders]]
                open_ones += [place for place in places if place.is_relative_to(self.root) and place.is_file()][:1]
        return sorted(found)


def settings_of(path, root):
    folders = [folder for folder in path.parents if folder.is_relative_to(root)]
    return [folder / ".clang-tidy" for folder in folders if (folder / ".clang-tidy").is_file()]


def key_of(source, command, sources, version):
    folders = [pathlib.Path(folder) for folder in FOLDER.findall(command)]
    lines = [version, command]
    for path in sources.closure(source, folders) + settings_of(source, sources.root):
        lines.append(f"{path.relative_to(sources.root)} {sources.hash(path)}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def keys_of(tree, root, version, wanted):
    """The key of each file that the tree compiles and that is wanted."""
    sources, keys = Sources(root), {}
    for entry in json.loads((tree / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["file"])
        is_ours = path.is_relative_to(root) and not path.is_relative_to(tree)
        if is_ours and path not in keys and (not wanted or path in wanted):
            keys[path] = key_of(path, entry["command"], sources, version)
    return keys


def lint(program, tree, path):
    """The findings in a file, as text: none if it is clean."""
    ended = subprocess.run([program, "-p", tree, "--quiet", path], capture_output=True, text=True, errors="replace")
    errors = [line for line in ended.stderr.splitlines() if not CHATTER.search(line)]
    text = "\n".join(filter(None, [ended.stdout.strip(), *errors]))
    if ended.returncode != 0 and not text:
        text = f"{path}: clang-tidy ended with {ended.returncode}"
    return text


def lint_all(program, tree, keys, jobs):
    """Returns how many files have findings."""
    done, bad = 0, 0
    pool = concurrent.futures.ThreadPoolExecutor(jobs)
    try:
        runs = {pool.submit(lint, program, tree, path): path for path in keys}
        for run in concurrent.futures.as_completed(runs):
            if text := run.result():
                bad += 1
                print(text, flush=True)
            else:
                (tree / "clean" / keys[runs[run]]).touch()
            done += 1
            if done % 50 == 0:
                print(f"clang-tidy: {done} of {len(keys)} files, {bad} with findings", file=sys.stderr, flush=True)
    finally:
        pool.shutdown(cancel_futures=True)
    return bad


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--tree", type=pathlib.Path, required=True)
    parser.add_argument("--clang-tidy", required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    arguments = parser.parse_args()
    root, tree = pathlib.Path.cwd().resolve(), arguments.tree.resolve()
    (tree / "clean").mkdir(exist_ok=True)
    version = subprocess.run([arguments.clang_tidy, "--version"], check=True, capture_output=True, text=True).stdout
    keys = keys_of(tree, root, version, {path.resolve() for path in arguments.files})
    dirty = {path: key for path, key in keys.items() if not (tree / "clean" / key).exists()}
    print(f"clang-tidy: {len(keys)} files, {len(keys) - len(dirty)} of them clean since an earlier run", file=sys.stderr)
    bad = lint_all(arguments.clang_tidy, tree, dirty, arguments.jobs)
    if bad:
        sys.exit(f"clang-tidy: findings in {bad} files (above)")
    if not arguments.files:
        for old in (tree / "clean").iterdir():
            if old.name not in keys.values():
                old.unlink()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
