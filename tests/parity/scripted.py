"""The judge of scripted models: makes them, trains them with PyTorch's DistributedDataParallel over Gloo, and reads what
C++ has saved of them.

scripted.py make FOLDER: the exported models, FOLDER/KIND.pt
scripted.py train FOLDER STEPS WORLD...: FOLDER/python.KIND.WORLD.pt, the state dict after STEPS steps
scripted.py check FOLDER WORLD...: compares FOLDER/state.KIND.WORLD.pt and FOLDER/module.KIND.WORLD.pt of C++ with them

Batches and kinds are those of scripted_parity_test.cpp.
"""
import sys
import warnings
from typing import Dict, Tuple

import torch
from torch import nn

from ranks import run_ranks

PLAIN = ["traced", "exported", "replaced"]  # without branches: forward(x) returns the scores
REPLACED_AT = 3  # between steps, in kind "replaced"
KINDS = ["forward", "static", "accumulate", "frozen_statistics", *PLAIN]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(8, 8, bias=False)
        self.norm = nn.BatchNorm1d(8)
        self.decode = nn.Linear(8, 8, bias=False)
        self.decode.weight = self.encode.weight
        self.head = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 3))
        self.extra = nn.Linear(3, 3)
        self.register_buffer("calls", torch.zeros(1, dtype=torch.double))

    @torch.jit.export
    def predict(self, x):
        return self.head(self.decode(self.norm(self.encode(x))))

    @torch.jit.export
    def training_step(self, x, target, with_extra: bool) -> Tuple[torch.Tensor, Dict[str, torch.Tensor]]:
        self.calls += 1
        scores = self.predict(x)
        if with_extra:
            scores = scores + self.extra(scores)
        return (scores - target).square().mean(), {"scores": scores}

    def forward(self, x, target, with_extra: bool) -> Tuple[torch.Tensor, Dict[str, torch.Tensor]]:
        return self.training_step(x, target, with_extra)


class Replacing(nn.Module):
    """Puts another tensor in the place of its buffer in each forward pass."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)
        self.register_buffer("mean", torch.zeros(8, dtype=torch.double))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.head(x - self.mean)


def random(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def make(kind):
    net = Net().double()
    if kind == "replaced":
        net = Replacing().double()
    elif kind in PLAIN:
        net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).double()
    with torch.no_grad():
        for i, parameter in enumerate(net.parameters()):
            parameter.copy_(random(parameter.shape, 77 + i) * 0.4)
    example = (random((4, 8), 1),)
    if kind == "exported":
        net = torch.export.export(net.train(), example).module()
    if kind in ("traced", "exported"):
        return torch.jit.trace(net, example, check_trace=False)
    if kind == "frozen_statistics":
        net.norm.eval()
    return torch.jit.script(net)


def train(rank, world, folder, steps):
    for kind in KINDS:
        net = torch.jit.load(f"{folder}/{kind}.pt")
        ddp = nn.parallel.DistributedDataParallel(net, find_unused_parameters=kind not in ("static", *PLAIN), static_graph=kind == "static")
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
        for step in range(steps):
            if kind == "replaced" and step == REPLACED_AT:
                net.mean = torch.full((8,), 1.0 + rank, dtype=torch.double)
            optimizer.zero_grad()
            parts = 2 if kind == "accumulate" else 1
            for part in range(parts):
                x, target = random((4, 8), 1000 * step + 10 * rank + part), random((4, 3), 5000 + 1000 * step + 10 * rank + part)
                ddp.require_backward_grad_sync = part + 1 == parts
                if kind in PLAIN:
                    loss = (ddp(x) - target).square().mean()
                else:
                    loss = ddp(x, target, kind == "static" or (step + rank) % 3 == 0)[0]
                loss.backward()
            optimizer.step()
        if rank == 0:
            torch.save(dict(net.state_dict()), f"{folder}/python.{kind}.{world}.pt")


def check(folder, world):
    for kind in KINDS:
        expected = torch.load(f"{folder}/python.{kind}.{world}.pt")
        loaded = torch.jit.load(f"{folder}/{kind}.pt")
        loaded.load_state_dict(torch.load(f"{folder}/state.{kind}.{world}.pt", weights_only=True))
        saved = torch.jit.load(f"{folder}/module.{kind}.{world}.pt")
        for name, value in expected.items():
            for what, found in (("state dict", loaded.state_dict()), ("module", saved.state_dict())):
                torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-12, msg=f"{kind}, {world} ranks: {name} of the {what}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # torch.jit is deprecated
    torch.set_num_threads(1)
    command, folder = sys.argv[1:3]
    if command == "make":
        for kind in KINDS:
            torch.jit.save(make(kind), f"{folder}/{kind}.pt")
        net = make("forward").eval()
        torch.jit.save(torch.jit.freeze(net), f"{folder}/frozen.pt")
        torch.jit.save(torch.jit.optimize_for_inference(make("traced").eval()), f"{folder}/optimised.pt")
    elif command == "train":
        for world in map(int, sys.argv[4:]):
            run_ranks(world, "gloo", train, folder, int(sys.argv[3]))
    else:
        for world in map(int, sys.argv[3:]):
            check(folder, world)
