"""The wheel's requirement on torch, for scikit-build-core: exactly the release that the extension is compiled against.

LibTorch's C++ symbols change with each release, so pip must not put another one beside this wheel. The release is that of
the torch which CMake finds (cmake/FindLibTorch.cmake): in this environment, or, in the isolated environment that pip
builds in, in the one outside of it.
"""
import importlib.util
import pathlib
import re
import sysconfig

SUPPORTED = "torch>=2.11,<2.16"  # of an sdist: no torch is known


def torch_folder():
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.submodule_search_locations:
        return pathlib.Path(spec.submodule_search_locations[0])
    return pathlib.Path(sysconfig.get_path("platlib"), "torch")


def release_in(folder):
    """"2.15.0" of the line: __version__ = '2.15.0+cpu'."""
    try:
        text = (folder / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^__version__ = ['\"]([0-9.]+)", text, re.MULTILINE)
    return found.group(1) if found else None


def dynamic_metadata(field, settings=None, project=None):
    if field != "dependencies":
        raise ValueError(f"only the field 'dependencies' is made here, not '{field}'")
    if settings:
        raise ValueError(f"no settings are expected, found {sorted(settings)}")
    release = release_in(torch_folder())
    return [f"torch=={release}" if release else SUPPORTED]
