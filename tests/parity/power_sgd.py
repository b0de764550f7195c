"""PyTorch's PowerSGD hook, whose callbacks wait for operations of the same group, over the backends `gloo` and
`lockstep`: after the same number of steps, the weights are the same. Prints "all well"."""
import os
import sys
import tempfile

import torch
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

import lockstep  # noqa: F401  (registers the backend)
from ranks import run_ranks

STEPS = 30


def train(rank, _, path):
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
        torch.save(model.module.state_dict(), path)


def weights(world, backend, folder):
    path = os.path.join(folder, f"{backend}.pt")
    run_ranks(world, backend, train, path)
    return torch.load(path)


if __name__ == "__main__":
    for world in [int(argument) for argument in sys.argv[1:]]:
        with tempfile.TemporaryDirectory() as scratch:
            ours, gloos = (weights(world, backend, scratch) for backend in ("lockstep", "gloo"))
        for name, weight in gloos.items():
            torch.testing.assert_close(ours[name], weight, rtol=1e-4, atol=1e-5)
    print("all well")
