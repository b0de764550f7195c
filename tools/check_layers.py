#!/usr/bin/env python3
"""Checks that every #include keeps to the layers that core/CMakeLists.txt declares.

A layer is a target made by lockstep_layer() or lockstep_backend(). Its headers are src/FOLDER (private) and
include/lockstep/FOLDER (public). A file may include headers of its own layer, of the layers that its target names,
and of those that they name PUBLIC. Public headers include public headers only, of layers that are named PUBLIC.
A layer without TORCH, and a program in core/src/cli, includes no header of LibTorch, not even through a header of ours.
Examples and the Python package include public headers only. The programs in core/src/cli, and those in folders of it that
have a CMakeLists.txt, see the layers that this file links. Prints each forbidden include with its file and line; exits
with 1 if any.

usage: check_layers.py [ROOT]
"""
import dataclasses
import pathlib
import re
import sys

SUFFIXES = {".h", ".cpp", ".inl", ".c"}
# How includes of LibTorch's headers begin.
TORCH = ("torch/", "ATen/", "c10/", "caffe2/")
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]')
CALL = re.compile(r"^\s*lockstep_(layer|backend|program)\(([^)]*)\)", re.MULTILINE)
# Folders outside of the layers, which see public headers only.
USERS = {"examples/": "examples include", "python/": "the Python package includes"}
KEYWORDS = ("FOLDER", "SUBFOLDERS", "HEADERS", "PUBLIC", "PRIVATE", "LINK", "TORCH", "INTERNAL", "UNITY")


@dataclasses.dataclass
class Layer:
    name: str
    folder: str
    headers: list  # public headers outside of its folder
    public: list
    private: list
    torch: bool


def without_comments(cmake):
    return "\n".join(line.split("#", 1)[0] for line in cmake.splitlines())


def declared_layers(cmake):
    layers = {}
    for kind, arguments in CALL.findall(without_comments(cmake)):
        words = arguments.split()
        lists = {keyword: [] for keyword in KEYWORDS}
        current = None
        for word in words[1:]:
            if word in KEYWORDS:
                current = word
            elif current is not None:
                lists[current].append(word)
        named = {key: [w.removeprefix("lockstep::") for w in lists[key] if w.startswith("lockstep::")]
                 for key in ("PUBLIC", "PRIVATE", "LINK")}
        public = named["PUBLIC"]
        # A backend is a plug-in of c10d, see cmake/SiteBackends.cmake.
        private = named["PRIVATE"] + named["LINK"] + (["c10d"] if kind == "backend" else [])
        torch = kind == "backend" or "TORCH" in words
        layers[words[0]] = Layer(words[0], lists["FOLDER"][0], lists["HEADERS"], public, private, torch)
    return layers


def with_what_they_export(names, layers):
    seen, todo = set(), list(names)
    while todo:
        name = todo.pop()
        if name not in seen and name in layers:
            seen.add(name)
            todo += layers[name].public
    return seen


def program_layer(folder, cmake):
    """The sources of programs, as a layer that nothing may include."""
    linked = sorted(set(re.findall(r"\blockstep::(\w+)", without_comments(cmake))))
    return Layer(f"programs in {folder}", folder, headers=[], public=[], private=linked, torch=False)


class Tree:
    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.layers = declared_layers((self.root / "core/CMakeLists.txt").read_text())
        for programs in sorted((self.root / "core/src/cli").rglob("CMakeLists.txt")):
            layer = program_layer(programs.parent.relative_to(self.root / "src").as_posix(), programs.read_text())
            self.layers[layer.name] = layer
        self.by_folder = sorted(self.layers.values(), key=lambda layer: -len(layer.folder))
        self.includes = {}  # by path from the root: line number, include, the path of the file or None
        self.torch = {}     # by path: the header of LibTorch that the file includes, itself or through others

    def owner(self, path):
        """The layer of a file, by its path from the root, and whether the file is public; (None, False) for others."""
        for prefix, public in (("include/lockstep/", True), ("src/", False)):
            if not path.startswith(prefix):
                continue
            inner = path[len(prefix):]
            for layer in self.by_folder:
                if public and inner in layer.headers:
                    return layer, True
            for layer in self.by_folder:
                if inner.startswith(layer.folder + "/"):
                    return layer, public
        return None, path.startswith("include/")

    def resolve(self, include, holder):
        """The file that is included, by its path from the root; None when it is none of ours."""
        for folder in (holder.parent, self.root / "src", self.root / "include"):
            if (folder / include).is_file():
                return (folder / include).resolve().relative_to(self.root.resolve()).as_posix()
        return None

    def includes_of(self, path):
        if path not in self.includes:
            file = self.root / path
            lines = enumerate(file.read_text(errors="replace").splitlines(), 1)
            matches = [(number, match[1]) for number, line in lines if (match := INCLUDE.match(line))]
            self.includes[path] = [(number, include, self.resolve(include, file)) for number, include in matches]
        return self.includes[path]

    def torch_header_in(self, path):
        """A header of LibTorch that the file includes, itself or through headers of ours; None when there is none."""
        if path not in self.torch:
            self.torch[path] = None  # of a cycle
            found = (self.torch_header(include, target) for _, include, target in self.includes_of(path))
            self.torch[path] = next(filter(None, found), None)
        return self.torch[path]

    def torch_header(self, include, target):
        if target is not None:
            return self.torch_header_in(target)
        return include if include.startswith(TORCH) else None

    def torch_complaint(self, path, include, target):
        """Why the file `path` must not include what brings LibTorch, or None."""
        user, _ = self.owner(path)
        header = self.torch_header(include, target)
        if user is None or user.torch or header is None:
            return None
        through = "this is" if target is None else f"this brings {header},"
        return f"layer '{user.name}' is free of LibTorch; {through} a header of it"

    def complaint(self, path, target):
        """Why the file `path` must not include `target`, or None."""
        user, is_public = self.owner(path)
        used, target_public = self.owner(target)
        for folder, includes in USERS.items():
            if path.startswith(folder):
                return f"{includes} public headers only" if target.startswith("src/") else None
        if is_public and not target_public:
            return "a public header includes a private one"
        if user is None or used is None or user.name == used.name:
            return None
        allowed = with_what_they_export(user.public if is_public else user.public + user.private, self.layers)
        if used.name in allowed:
            return None
        wanted = "names PUBLIC" if is_public else "names"
        return f"layer '{user.name}' sees {', '.join(sorted(allowed)) or 'no other layer'}; none that it {wanted} is '{used.name}'"

    def check(self):
        complaints = []
        for top in ("include", "src", *USERS):
            for file in sorted((self.root / top).rglob("*")):
                if file.suffix in SUFFIXES:
                    complaints += self.check_file(file)
        return complaints

    def check_file(self, file):
        path = file.relative_to(self.root).as_posix()
        found = []
        for number, include, target in self.includes_of(path):
            why = (target and self.complaint(path, target)) or self.torch_complaint(path, include, target)
            if why:
                found.append(f'{path}:{number}: "{include}": {why}')
        return found


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
    complaints = Tree(root).check()
    for complaint in complaints:
        print(complaint)
    if complaints:
        print(f"{len(complaints)} forbidden includes. Name the layer in core/CMakeLists.txt if docs/architecture.md allows it; "
              "else move the code.", file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
