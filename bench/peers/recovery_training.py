"""Peer: the training of bench/recovery_training.cpp under torchrun, which starts all ranks again when one dies:
recovery_training.py FOLDER. Each rank adds a line to FOLDER/RANK when the first step of a start is done, as
bench/recovery_program.h has it. A start goes on from the checkpoint, which rank 0 writes in the first step and later."""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

BATCH = 16
CHECKPOINT_EVERY = 200
HIDDEN = 2048


def mlp() -> nn.Module:
    """That of ddp_step.py, whose import loads torchvision, which would count in each restart."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10)
    )


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(2)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    path, step = folder / "checkpoint", 0
    if path.exists():
        state = torch.load(path, mmap=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    ddp = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True)
    images, labels = torch.rand(4096, 1, 28, 28), torch.randint(0, 10, (4096,))
    loss = nn.CrossEntropyLoss()
    is_first = True
    while True:
        batch = torch.randint(0, len(images), (BATCH,))
        optimizer.zero_grad()
        loss(ddp(images[batch]), labels[batch]).backward()
        optimizer.step()
        step += 1
        done_at = time.time()
        if rank == 0 and step % CHECKPOINT_EVERY == 1:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, f"{path}.new")
            os.replace(f"{path}.new", path)
        if is_first:
            line = {"pid": os.getpid(), "ranks": dist.get_world_size(), "done_at": done_at}
            with (folder / str(rank)).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        is_first = False


if __name__ == "__main__":
    main()
