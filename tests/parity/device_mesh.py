"""Prints what torch's init_device_mesh gives each rank of a world: coordinates, and the ranks of groups and slices.

usage: device_mesh.py WORLD SHAPE...    (a shape: 2x3)

One process is every rank in turn: torch's fake backend makes groups without communication.
"""
import sys
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

NAMES = ("dp", "pp", "tp")


def text(values):
    return ",".join(str(value) for value in values)


def describe(mesh, name):
    group = mesh.get_group(name)
    return f"{name} {mesh.get_local_rank(name)} of {mesh.size(mesh.mesh_dim_names.index(name))}: {text(dist.get_process_group_ranks(group))}"


def lines(rank, shape):
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=NAMES[: len(shape)])
    yield f"rank {rank} at {text(mesh.get_coordinate())} of {text(mesh.shape)}"
    for name in mesh.mesh_dim_names:
        yield describe(mesh, name)
        yield f"slice {text(mesh[name].mesh.flatten().tolist())} at {text(mesh[name].get_coordinate())}"
    if len(shape) < 3:
        return
    for pair in (("dp", "pp"), ("dp", "tp"), ("pp", "tp")):
        part = mesh[pair]
        yield f"slice {text(part.mesh.flatten().tolist())} at {text(part.get_coordinate())} of {text(part.shape)}"
        flat = part._flatten()
        yield describe(flat, "_".join(pair))


def main():
    warnings.simplefilter("ignore")
    world = int(sys.argv[1])
    shapes = [tuple(int(size) for size in argument.split("x")) for argument in sys.argv[2:]]
    for rank in range(world):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
        for shape in shapes:
            print("\n".join(lines(rank, shape)))
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
