"""strangers: a training step of the ranks under `lockstep run` while strangers connect to the job's store, against the same
training without them. The strangers are of this machine too, so their own processor time is in the figure."""

from __future__ import annotations

import itertools
import socket
import ssl
import statistics
import threading
import time
from pathlib import Path

import workloads
from harness import BenchError, Contender, Outcome, Row, Samples, Tools, interleave

WORKLOAD, STEPS = "mlp-6M", 300
ROUNDS, QUICK_ROUNDS = 6, 2
STRANGERS_IN_A_SECOND = 500  # 10,000 in a training of 20 seconds
OPEN = 300  # more than the store keeps
SHELL = 'echo "$LOCKSTEP_STORE" > "$0" && exec "$@"'  # tells where the store is
GREETING_BYTES, ALERT_BYTES = 57, 7  # all that a stranger hears


def hello_of_tls() -> bytes:
    """A whole one, without the job's key."""
    begun, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(begun, sent, server_hostname="store").do_handshake()
    except ssl.SSLWantReadError:
        pass
    return sent.read()


class Strangers:
    """A thread that connects in all ways of those who have no key, until it is stopped."""

    def __init__(self, store: Path) -> None:
        self.store, self.count, self.heard = store, 0, 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def stop(self) -> None:
        self.over.set()
        self.thread.join()

    def run(self) -> None:
        hello = hello_of_tls()
        says = itertools.cycle([b"", hello[:-1], hello, b"GET / HTTP/1.1\r\n\r\n", bytes(400)])
        held: list[socket.socket | None] = [None] * OPEN
        while not self.over.is_set() and not (self.store.exists() and self.store.read_text().endswith("\n")):
            time.sleep(0.01)
        if self.over.is_set():
            return
        host, port = self.store.read_text().split()[0].rsplit(":", 1)
        address = (host.strip("[]"), int(port))
        begin = time.monotonic()
        while not self.over.is_set():
            if self.count >= (time.monotonic() - begin) * STRANGERS_IN_A_SECOND:
                time.sleep(0.005)
                continue
            place = self.count % OPEN
            self.part(held[place])
            held[place] = self.call(address, next(says))
            self.count += 1
        for one in held:
            self.part(one)

    def call(self, address: tuple[str, int], what: bytes) -> socket.socket | None:
        try:
            one = socket.create_connection(address, timeout=10)
            one.setblocking(False)
            one.send(what)
            return one
        except OSError:  # the job has ended
            return None

    def part(self, one: socket.socket | None) -> None:
        if one is None:
            return
        try:
            self.heard = max(self.heard, len(one.recv(1 << 16)))
        except OSError:
            pass
        one.close()


def training(tools: Tools, ranks: int, with_strangers: bool) -> Contender:
    def once() -> Samples:
        store = tools.scratch / f"store{time.monotonic_ns()}"

        def command(tools: Tools, mode: str, ranks: int, *arguments: object) -> list[str]:
            return tools.lockstep_run(ranks, "sh", "-c", SHELL, store, tools.program("bench_ddp_step"), *arguments)

        strangers = Strangers(store) if with_strangers else None
        try:
            seconds = workloads.step_seconds(tools, command, "ddp", WORKLOAD, ranks, STEPS)
        finally:
            if strangers is not None:
                strangers.stop()
        if strangers is not None and (strangers.count == 0 or strangers.heard > GREETING_BYTES + ALERT_BYTES):
            raise BenchError(f"{strangers.count} strangers came, and one heard {strangers.heard} bytes")
        return {WORKLOAD: [value * 1e3 for value in seconds], "strangers": [strangers.count if strangers else 0]}

    return once


def measure(tools: Tools) -> Outcome:
    outcome = Outcome()
    for ranks in tools.ranks:
        contenders = {name: training(tools, ranks, name == "strangers") for name in ("strangers", "alone")}
        values = interleave(contenders, tools.choose_rounds(ROUNDS, QUICK_ROUNDS), outcome, f"{ranks} ranks")
        if len(values) < 2:
            continue
        came = statistics.median(values["strangers"]["strangers"])
        case = f"a step of {WORKLOAD} while {STRANGERS_IN_A_SECOND} strangers come in a second"
        outcome.rows.append(Row("strangers", case, None, ranks, values["strangers"][WORKLOAD], values["alone"][WORKLOAD],
                                "the same without them", "ms"))
        outcome.notes.append(f"{ranks} ranks: {came:.0f} strangers in a round, none of whom got in")
    return outcome
