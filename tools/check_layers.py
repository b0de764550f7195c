#!/usr/bin/env python3
"""Checks that every #include keeps to the layers that the CMakeLists.txt of core, vision and studio declare.

A layer is a target made by lockstep_layer() or lockstep_backend() in COMPONENT/CMakeLists.txt. Its headers are
COMPONENT/include/lockstep/LAYER (public), COMPONENT/internal/LAYER (for other layers) and COMPONENT/src/LAYER (private). A file
may include all headers of its own layer; of the layers that its target names, and of those that these name PUBLIC, the public
and internal ones. Public headers include public headers only, of layers that are named PUBLIC; internal ones include no private
ones. A component sees itself and those before it. A layer without TORCH, and a program in COMPONENT/src/cli, includes no header
of LibTorch, not even through a header of ours. Examples and the Python package include public headers only. The programs in
COMPONENT/src/cli see the layers that its CMakeLists.txt links. Prints each forbidden include with its file and line; exits with 1
if any.

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
# Lowest first.
COMPONENTS = ("core", "vision", "studio")
KEYWORDS = ("SUBFOLDERS", "HEADERS", "PUBLIC", "PRIVATE", "LINK", "TORCH", "INTERNAL", "UNITY")


@dataclasses.dataclass
class Layer:
    name: str
    component: str
    folder: str
    headers: list  # public headers outside of its folder
    public: list
    private: list
    torch: bool


def without_comments(cmake):
    return "\n".join(line.split("#", 1)[0] for line in cmake.splitlines())


def declared_layers(component, cmake):
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
        layers[words[0]] = Layer(words[0], component, words[0], lists["HEADERS"], public, private, torch)
    return layers


def with_what_they_export(names, layers):
    seen, todo = set(), list(names)
    while todo:
        name = todo.pop()
        if name not in seen and name in layers:
            seen.add(name)
            todo += layers[name].public
    return seen


def program_layer(component, cmake):
    """The sources of programs, as a layer of which others may include internal headers alone."""
    linked = sorted(set(re.findall(r"\blockstep::(\w+)", without_comments(cmake))))
    return Layer(f"programs in {component}/src/cli", component, "cli", headers=[], public=[], private=linked, torch=False)


class Tree:
    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.layers = {}
        programs = []
        for component in COMPONENTS:
            self.layers |= declared_layers(component, self.text(component, "CMakeLists.txt"))
            layer = program_layer(component, self.text(component, "src/cli/CMakeLists.txt"))
            layer.private += programs  # the launcher's parsing, for lockstep-config
            programs.append(layer.name)
            self.layers[layer.name] = layer
        self.by_folder = sorted(self.layers.values(), key=lambda layer: -len(layer.folder))
        self.includes = {}  # by path from the root: line number, include, the path of the file or None
        self.torch = {}     # by path: the header of LibTorch that the file includes, itself or through others

    def text(self, component, path):
        file = self.root / component / path
        return file.read_text() if file.exists() else ""

    def owner(self, path):
        """The layer of a file, by its path from the root, and how far it is seen: public, internal or private."""
        component, _, rest = path.partition("/")
        for prefix, seen in (("include/lockstep/", "public"), ("internal/", "internal"), ("src/", "private")):
            if component not in COMPONENTS or not rest.startswith(prefix):
                continue
            inner = rest[len(prefix):]
            for layer in self.by_folder:
                if seen == "public" and inner in layer.headers:
                    return layer, seen
            for layer in self.by_folder:
                if layer.component == component and inner.startswith(layer.folder + "/"):
                    return layer, seen
            return None, seen
        return None, None

    def resolve(self, include, holder):
        """The file that is included, by its path from the root; None when it is none of ours."""
        folders = [holder.parent] + [self.root / component / kind for component in COMPONENTS for kind in ("src", "internal", "include")]
        for folder in folders:
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
        user, user_seen = self.owner(path)
        used, seen = self.owner(target)
        for folder, includes in USERS.items():
            if path.startswith(folder):
                return f"{includes} public headers only" if seen in ("internal", "private") else None
        if user_seen == "public" and seen != "public":
            return "a public header includes one that is not"
        if user_seen == "internal" and seen == "private":
            return "a header for other layers includes one that is private"
        if user is None or used is None or user.name == used.name:
            return None
        if seen == "private":
            return f"this header is private to layer '{used.name}'; what other layers need is in {used.component}/internal/{used.folder}"
        allowed = with_what_they_export(user.public if user_seen == "public" else user.public + user.private, self.layers)
        if used.name in allowed:
            return None
        wanted = "names PUBLIC" if user_seen == "public" else "names"
        return f"layer '{user.name}' sees {', '.join(sorted(allowed)) or 'no other layer'}; none that it {wanted} is '{used.name}'"

    def check(self):
        complaints = []
        tops = [f"{component}/{kind}" for component in COMPONENTS for kind in ("include", "internal", "src")]
        for top in (*tops, *USERS):
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
        print(f"{len(complaints)} forbidden includes. Name the layer in its CMakeLists.txt if docs/architecture.md allows it; "
              "else move the code.", file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
