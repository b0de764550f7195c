"""Trains the small CNN on Fashion-MNIST with torch.nn.parallel.DistributedDataParallel, like train.cpp with Lockstep.

mnist_training.py WORLD STEPS DATA OUT BACKEND [fused]: trains STEPS steps on WORLD processes and saves the parameters as
safetensors. With 0 steps these are the initial parameters. fused: the optimizer has fused=True.
"""
import gzip
import sys

import numpy
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from ranks import run_ranks
from tensor_files import write_safetensors

SEED = 1234


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, kernel_size=5)
        self.conv2 = nn.Conv2d(10, 20, kernel_size=5)
        self.conv2_drop = nn.Dropout2d()
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2_drop(self.conv2(x)), 2))
        x = x.view(-1, 320)
        x = F.relu(self.fc1(x))
        x = F.dropout(x, training=self.training)
        x = self.fc2(x)
        return F.log_softmax(x, dim=1)


def read_idx(path, offset):
    with gzip.open(path, "rb") as file:
        return torch.from_numpy(numpy.frombuffer(file.read(), numpy.uint8, offset=offset).copy())


def dataset(folder):
    images = read_idx(f"{folder}/train-images-idx3-ubyte.gz", 16).view(-1, 1, 28, 28)
    labels = read_idx(f"{folder}/train-labels-idx1-ubyte.gz", 8)
    return TensorDataset(images.float().div(255).sub(0.1307).div(0.3081), labels.long())


def train(rank, world, steps, folder, out, fused):
    torch.manual_seed(SEED)
    model = Net()
    if steps > 0:
        ddp = nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.5, fused=fused)
        data = dataset(folder)
        sampler = DistributedSampler(data, world, rank, shuffle=True, seed=SEED)
        torch.manual_seed(SEED + rank)
        # The loader has its own generator, so that it does not draw from the one of dropout.
        loader = DataLoader(data, batch_size=64, sampler=sampler, generator=torch.Generator())
        for _, (images, labels) in zip(range(steps), loader):
            optimizer.zero_grad()
            F.nll_loss(ddp(images), labels).backward()
            optimizer.step()
    if rank == 0:
        write_safetensors(out, model.state_dict())


if __name__ == "__main__":
    world, steps = int(sys.argv[1]), int(sys.argv[2])
    data, out, backend = sys.argv[3:6]
    if backend == "lockstep":
        import lockstep  # noqa: F401, registers the backend
    run_ranks(world, backend, train, steps, data, out, sys.argv[6:] == ["fused"])
