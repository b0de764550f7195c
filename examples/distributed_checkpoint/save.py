"""Saves a model whose weights are spread over the ranks, each of which writes its part.

torchrun --nproc-per-node 2 save.py FOLDER
"""
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
    output = model(torch.ones(1, 10)).item()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    sharded = {name: distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in model.state_dict().items()}
    dcp.save({"model": sharded, "step": 100}, checkpoint_id=sys.argv[1])
    if dist.get_rank() == 0:
        print(f"Python: the output for ones is {output:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
