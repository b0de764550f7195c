"""Trains with the batches of all ranks in one, on one process, what ranks train with synchronised batch normalisation:
models with plain BatchNorm layers. PyTorch's own SyncBatchNorm needs a GPU.

sync_batch_norm.py STEPS OUT WORLD...: for each world size, optimizer and kind of model the parameters and buffers after
STEPS steps, as OUT.WORLD.OPTIMIZER.KIND in the safetensors format. Models, batches and names are those of
sync_and_shard_parity_test.cpp.
"""
import sys

import torch
from torch import nn

from tensor_files import write_safetensors

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}


def model(kind):
    momentum = None if kind == "cumulative" else 0.1
    norm2d = nn.BatchNorm2d(6, momentum=momentum, affine=kind != "bare")
    norm1d = nn.BatchNorm1d(5, eps=1e-3, momentum=momentum, track_running_stats=kind != "bare")
    net = nn.Sequential(nn.Conv2d(2, 6, 3), norm2d, nn.ReLU(), nn.Flatten(), nn.Linear(6 * 4 * 4, 5), norm1d, nn.Linear(5, 3))
    return net.double()


def batch_of(rank, step, world):
    # Rank 1 has nothing in every third step; the others have different numbers of samples.
    count = 0 if world > 1 and rank == 1 and step % 3 == 0 else 2 + rank
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(count, 2, 6, 6, generator=generator, dtype=torch.double)


def fill(net):
    for i, parameter in enumerate(net.parameters()):
        generator = torch.Generator().manual_seed(77 + i)
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.double) * 0.3)


def train(world, kind, make, steps):
    net = model(kind)
    fill(net)
    optimizer = make(net.parameters())
    for step in range(steps):
        batch = torch.cat([batch_of(rank, step, world) for rank in range(world)])
        optimizer.zero_grad()
        net(batch).square().sum().div(world).backward()
        optimizer.step()
    return {name: tensor.double() for name, tensor in net.state_dict().items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    steps, out = int(sys.argv[1]), sys.argv[2]
    for world in map(int, sys.argv[3:]):
        for name, make in OPTIMIZERS.items():
            for kind in ("plain", "cumulative", "bare"):
                write_safetensors(f"{out}.{world}.{name}.{kind}", train(world, kind, make, steps))
