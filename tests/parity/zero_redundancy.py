"""PyTorch's ZeroRedundancyOptimizer under its DistributedDataParallel, over Gloo.

zero_redundancy.py STEPS OUT WORLD...: for each world size and optimizer the owner of each parameter ("owner.NAME") and
the parameters after STEPS steps, as OUT.WORLD.OPTIMIZER in the safetensors format. Model and batches are those of
sync_and_shard_parity_test.cpp.
"""
import sys

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from ranks import run_ranks
from sync_batch_norm import fill
from tensor_files import write_safetensors

OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
    "adam": (torch.optim.Adam, {"lr": 0.01, "foreach": False}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "foreach": False}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.01, "foreach": False}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.05, "foreach": False}),
}


def model():
    return nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 7), nn.Linear(7, 3)).double()


def add_missing_states(optimizer):
    """PyTorch 2.11's Adagrad makes states in its constructor alone, so parameters of a later group have none."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if "sum" not in optimizer.state[parameter]:
                optimizer.state[parameter] = {"step": torch.tensor(0.0), "sum": torch.zeros_like(parameter)}


def train(rank, world, steps, out):
    for name, (kind, options) in OPTIMIZERS.items():
        net = model()
        fill(net)
        ddp = nn.parallel.DistributedDataParallel(net)
        parameters = list(ddp.parameters())
        later = parameters.pop()  # in a group of its own, which comes later
        optimizer = ZeroRedundancyOptimizer(parameters, optimizer_class=kind, **options)
        optimizer.add_param_group({"params": [later], "lr": 0.02})
        if name == "adagrad":
            add_missing_states(optimizer.optim)
        for step in range(steps):
            generator = torch.Generator().manual_seed(1000 * step + rank)
            x = torch.randn(4, 12, generator=generator, dtype=torch.double)
            optimizer.zero_grad()
            ddp(x).square().mean().backward()
            optimizer.step()
        if rank == 0:
            state = dict(net.state_dict())
            for key, parameter in net.named_parameters():
                state[f"owner.{key}"] = torch.tensor([float(optimizer._param_to_rank[parameter])])
            write_safetensors(f"{out}.{world}.{name}", state)


if __name__ == "__main__":
    steps, out = int(sys.argv[1]), sys.argv[2]
    for world in map(int, sys.argv[3:]):
        run_ranks(world, "gloo", train, steps, out)
