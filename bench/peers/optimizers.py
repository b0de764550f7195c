"""Peer: time of an optimizer's step in one thread. Same parameters, gradients and options as bench/optimizers.cpp, and the
peer's own setting: which implementation."""

import argparse
import json
import sys
import time

import torch

from ddp_step import WARM_UP, WORKLOADS

OPTIMIZERS = {
    "sgd-momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "sgd-momentum-decay": (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 1e-4}),
    "adamw": (torch.optim.AdamW, {}),
}
WAYS = {"plain": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", choices=WORKLOADS, required=True)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, required=True)
    parser.add_argument("--implementation", choices=WAYS, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--output", required=True)
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    parameters = list(WORKLOADS[options.workload][0]().parameters())
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    kind, settings = OPTIMIZERS[options.optimizer]
    optimizer = kind(parameters, lr=1e-3, **settings, **WAYS[options.implementation])
    seconds = []
    for step in range(-WARM_UP, options.steps):
        start = time.perf_counter()
        optimizer.step()
        if step >= 0:
            seconds.append(time.perf_counter() - start)
    with open(options.output, "w", encoding="utf-8") as file:
        json.dump({"seconds": seconds}, file)


if __name__ == "__main__":
    sys.exit(main())
