"""Monarch, a peer of the launcher: its programs in bench/peers/, started as its users start them, by Python."""

from __future__ import annotations

from importlib import metadata

from harness import HERE, BenchError, Tools
from loader import peer_packages, peer_python
from peer_programs import Command
from peer_ways import Way

PACKAGE = "torchmonarch"


def monarch_name(tools: Tools) -> str:
    """As the tables have it, with its version."""
    for package in metadata.distributions(name=PACKAGE, path=[str(peer_packages(tools))]):
        return f"{PACKAGE} {package.version}"
    raise BenchError(f"{PACKAGE} is not among the peers: ./dev bench installs it")


def monarch_launch(tools: Tools, way: Way, *arguments: object) -> Command:
    """In the peers' own virtual environment: its programs here need no torch, which is one import less."""
    command = [peer_python(tools), HERE / "peers" / "monarch_launch.py", *arguments, *way.options]
    return [str(part) for part in command], dict(way.environment)


def monarch_recovery(tools: Tools, way: Way) -> Command:
    """With PyTorch's virtual environment, to which Monarch is added."""
    command = [tools.python, HERE / "peers" / "monarch_recovery.py", *way.options]
    return [str(part) for part in command], {"PYTHONPATH": str(peer_packages(tools)), **way.environment}
