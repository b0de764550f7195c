"""PyTorch's ZeroRedundancyOptimizer under its DistributedDataParallel, over Gloo.

zero_redundancy.py STEPS OUT WORLD...: for each world size and optimizer the owner of each parameter ("owner.NAME") and
the parameters after STEPS steps, as OUT.WORLD.OPTIMIZER in the safetensors format. Model and batches are those of
sync_and_shard_parity_test.cpp.
"""
import multiprocessing
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from sync_batch_norm import fill, save

OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
    "adam": (torch.optim.Adam, {"lr": 0.01, "foreach": False}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "foreach": False}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.01, "foreach": False}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.05, "foreach": False}),
}


def model():
    return nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 7), nn.Linear(7, 3)).double()


def train(rank, world, steps, out, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store{world}", rank=rank, world_size=world)
    for name, (kind, options) in OPTIMIZERS.items():
        net = model()
        fill(net)
        ddp = nn.parallel.DistributedDataParallel(net)
        parameters = list(ddp.parameters())
        later = parameters.pop()  # in a group of its own, which comes later
        optimizer = ZeroRedundancyOptimizer(parameters, optimizer_class=kind, **options)
        optimizer.add_param_group({"params": [later], "lr": 0.02})
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
            save(state, f"{out}.{world}.{name}")
    dist.destroy_process_group()


if __name__ == "__main__":
    steps, out = int(sys.argv[1]), sys.argv[2]
    context = multiprocessing.get_context("fork")  # torch is imported only once
    for world in map(int, sys.argv[3:]):
        with tempfile.TemporaryDirectory() as folder:
            ranks = [context.Process(target=train, args=(rank, world, steps, out, folder)) for rank in range(world)]
            for process in ranks:
                process.start()
            for process in ranks:
                process.join()
                if process.exitcode != 0:
                    sys.exit(f"{world} ranks: a rank ended with {process.exitcode}")
