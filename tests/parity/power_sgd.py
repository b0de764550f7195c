"""PyTorch's PowerSGD hook, whose callbacks wait for operations of the same group, over the backends `gloo` and
`lockstep`: after the same number of steps, the weights are the same. Prints "all well"."""
import datetime
import multiprocessing
import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

import lockstep  # noqa: F401  (registers the backend)

STEPS = 30


def train(backend, rank, world, folder):
    torch.set_num_threads(1)
    store = f"file://{folder}/{backend}"
    minute = datetime.timedelta(seconds=60)
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=world, timeout=minute)
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300))
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(100 + rank)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(20, 300)).pow(2).mean().backward()
        optimizer.step()
    if rank == 0:
        torch.save(model.module.state_dict(), f"{folder}/{backend}.pt")
    dist.destroy_process_group()


def run(world, backend, folder):
    # Forked processes: torch is imported only once.
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=train, args=(backend, rank, world, folder)) for rank in range(world)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
        if process.exitcode != 0:
            raise AssertionError(f"{backend}, {world} ranks: a rank ended with {process.exitcode}")
    return torch.load(os.path.join(folder, f"{backend}.pt"))


if __name__ == "__main__":
    for world in [int(argument) for argument in sys.argv[1:]]:
        with tempfile.TemporaryDirectory() as scratch:
            ours, gloos = (run(world, backend, scratch) for backend in ("lockstep", "gloo"))
        for name, weight in gloos.items():
            torch.testing.assert_close(ours[name], weight, rtol=1e-4, atol=1e-5)
    print("all well")
