"""Peer: two ranks under Monarch, all-reduces over Gloo until one fails, then again: monarch_recovery.py FOLDER [--spare].

As bench/recovery_program.h has it, each rank adds a line to FOLDER/RANK when the first all-reduce of a start is done. The
rank that lives says at once that its all-reduce failed, seconds before Monarch's supervision does. Its process stays;
the other rank gets a new one, with --spare one that has loaded torch already. FOLDER/spares has a line for each spare.
"""

import argparse
import asyncio
import datetime
import json
import os
import time
from pathlib import Path

import monarch.actor
from monarch.actor import Actor, endpoint, this_host
from torch.distributed import TCPStore

RANKS = 2
ADDRESS = "127.0.0.1"
TIMEOUT = datetime.timedelta(seconds=60)
SPARE_AFTER = 0.5  # seconds of training; as long as `lockstep run --standby 0.5` waits


class Rank(Actor):
    def __init__(self, folder: str, port: int) -> None:
        import torch
        import torch.distributed

        self.torch, self.folder = torch, Path(folder)
        self.store = torch.distributed.TCPStore(ADDRESS, port, is_master=False, timeout=TIMEOUT)

    @endpoint
    def load(self) -> None:
        """Its answer says that torch is loaded. A group of this process alone loads what a group's first use loads."""
        distributed = self.torch.distributed
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        distributed.all_reduce(self.torch.ones(1))
        distributed.destroy_process_group()

    @endpoint
    def train(self, start: int, rank: int) -> None:
        """Returns when another rank is lost."""
        distributed = self.torch.distributed
        try:
            store = distributed.PrefixStore(str(start), self.store)
            distributed.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=TIMEOUT)
            self.steps(start, rank)
        except RuntimeError as error:  # what Gloo raises
            print(error, flush=True)
        if distributed.is_initialized():
            distributed.destroy_process_group()

    def steps(self, start: int, rank: int) -> None:
        first = True
        while True:
            value = self.torch.ones(1)
            self.torch.distributed.all_reduce(value)
            if value.item() != RANKS:
                raise ValueError("wrong sum")
            if first:
                self.report(start, rank)
            first = False
            time.sleep(0.001)

    def report(self, start: int, rank: int) -> None:
        line = {"start": start, "pid": os.getpid(), "ranks": RANKS, "done_at": time.time()}
        with (self.folder / str(rank)).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


class Job:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = this_host()
        # Here, as torchrun has it in its agent: no rank that starts has to wait for another one's store.
        self.store = TCPStore(ADDRESS, 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
        self.ranks: list[Rank] = []
        self.spare: Rank | None = None

    async def new_rank(self) -> Rank:
        """In a mesh of its own, so that it can be lost alone."""
        process = self.host.spawn_procs(per_host={"gpus": 1})
        rank = process.spawn("rank", Rank, str(self.folder), self.store.port)
        await rank.load.call_one()
        return rank

    async def make_spare(self) -> None:
        await asyncio.sleep(SPARE_AFTER)
        self.spare = await self.new_rank()
        with (self.folder / "spares").open("a", encoding="utf-8") as file:
            file.write("\n")

    async def train(self, start: int) -> int:
        """Until a rank is lost; which one."""
        running = {asyncio.ensure_future(answer(rank.train.call_one(start, number))): number
                   for number, rank in enumerate(self.ranks)}
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        # A rank that answers is alive; one that does not has died.
        ended, lived = running[next(iter(done))], next(iter(done)).result()
        return (RANKS - 1 - ended) if lived else ended

    async def run(self, with_spare: bool) -> None:
        self.ranks = list(await asyncio.gather(*(self.new_rank() for _ in range(RANKS))))
        start = 0
        while True:
            making = asyncio.ensure_future(self.make_spare()) if with_spare else None
            lost = await self.train(start)
            if making:
                await making
            self.ranks[lost] = self.spare if self.spare else await self.new_rank()
            self.spare = None
            start += 1


async def answer(call) -> bool:
    """Whether it came; an error of Monarch's supervision says that the process has died."""
    try:
        await call
    except Exception as error:  # ActorError and SupervisionError have no other base
        print(error, flush=True)
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--spare", action="store_true", help="keep a process ready that has loaded torch")
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    # A lost mesh would end this program otherwise.
    monarch.actor.unhandled_fault_hook = lambda failure: print(failure.report(), flush=True)
    asyncio.run(Job(arguments.folder).run(arguments.spare))


if __name__ == "__main__":
    main()
