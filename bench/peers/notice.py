"""All-reduces over Gloo until one fails: notice.py FOLDER. The other ranks report when the error has come.

The program does what bench_recovery_c10d does with "notice". The ranks in RANKS (0,1,...) are forks, because the import of
torch takes seconds of a core."""

import datetime
import json
import os
import sys
import time

import torch
import torch.distributed as dist

TIMEOUT = datetime.timedelta(seconds=10)  # of an operation: a machine that has gone may be noticed by nothing else


def report(folder: str) -> None:
    line = {"start": 0, "pid": os.getpid(), "ranks": dist.get_world_size(), "done_at": time.time()}
    with open(f"{folder}/{dist.get_rank()}", "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def run(folder: str) -> None:
    dist.init_process_group("gloo", timeout=TIMEOUT)
    first = True
    try:
        while True:
            value = torch.ones(1)
            dist.all_reduce(value)
            if value.item() != dist.get_world_size():
                sys.exit("wrong sum")
            if first:
                report(folder)
            first = False
            time.sleep(0.001)
    except RuntimeError:
        report(folder)
        os._exit(0)  # the group waits for the lost rank


def main() -> None:
    ranks = os.environ["RANKS"].split(",")
    children = []
    for rank in ranks:
        if (child := os.fork()) == 0:
            os.environ["RANK"] = rank
            run(sys.argv[1])
            os._exit(1)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


main()
