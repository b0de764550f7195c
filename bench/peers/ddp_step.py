"""Peer: step time of training on PyTorch, alone or under DistributedDataParallel (then by torchrun), on Gloo, NCCL or
Lockstep's Python package.

Same models, optimizer, batches, order of measurements and options as bench/ddp_step.cpp, and the peer's own settings.
"""

import argparse
import json
import os
import sys
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import functional as F

WARM_UP = 3
GRAPH_WARM_UP = 11


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, 5)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.drop = nn.Dropout2d()
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.drop(self.conv2(x)), 2))
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def mlp() -> nn.Module:
    hidden = 2048
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10)
    )


def resnet18() -> nn.Module:
    return torchvision.models.resnet18(num_classes=10)


# name: (model, shape of one image, batch)
WORKLOADS = {
    "cnn-28": (Cnn, (1, 28, 28), 64),
    "mlp-6M": (mlp, (1, 28, 28), 32),
    "resnet18-32": (resnet18, (3, 32, 32), 16),
    "resnet18-224": (resnet18, (3, 224, 224), 8),
    "resnet50-224": (torchvision.models.resnet50, (3, 224, 224), 64),
}


def make_optimizer(name: str, implementation: str, parameters) -> torch.optim.Optimizer:
    way = {"plain": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}[implementation]
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, **way)
    if name == "adam":
        return torch.optim.Adam(parameters, lr=1e-3, **way)
    # Its faster mode: one broadcast for each rank instead of each parameter.
    return ZeroRedundancyOptimizer(
        parameters, optimizer_class=torch.optim.Adam, parameters_as_bucket_view=True, lr=1e-3, **way
    )


def adam_state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Of this rank."""
    inner = getattr(optimizer, "optim", optimizer)
    return sum(
        tensor.nbytes for state in inner.state.values() for name, tensor in state.items() if name.startswith("exp_avg")
    )


def recorded(step, beside: torch.cuda.Stream):
    """The step as a CUDA graph, as PyTorch's notes on CUDA graphs do it: DDP needs eleven steps before."""
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(GRAPH_WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=beside, capture_error_mode="thread_local"):
        step()
    return graph.replay


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=["alone", "ddp"], required=True)
    parser.add_argument("--workload", choices=WORKLOADS, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--optimizer", choices=["sgd", "adam", "sharded-adam"], default="sgd")
    parser.add_argument("--output", required=True, help="the rank's number is appended")
    parser.add_argument("--hold", default="", help="wait afterwards until this file exists")
    parser.add_argument("--keep-gradients", action="store_true", help="set gradients to zero instead of freeing them")
    parser.add_argument("--backend", choices=["gloo", "nccl", "lockstep"], default="gloo")
    parser.add_argument("--implementation", choices=["plain", "foreach", "fused"], default="plain", help="of the optimizer")
    parser.add_argument("--static-graph", action="store_true")
    parser.add_argument("--compile", action="store_true", help="the model, by torch.compile")
    parser.add_argument("--channels-last", action="store_true", help="the layout of pictures and of the kernels of convolutions")
    parser.add_argument("--bucket-mb", type=float, help="DDP's bucket_cap_mb")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--autocast", action="store_true", help="the forward pass in bfloat16 where that is right")
    parser.add_argument("--together", type=int, default=1, help="time so many steps as one, and divide")
    parser.add_argument("--graph", action="store_true", help="on a GPU: the step as a CUDA graph")
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda", 0) if options.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    ddp = options.mode == "ddp"
    if ddp:
        if options.backend == "lockstep":
            import lockstep  # noqa: F401, registers the backend
        dist.init_process_group(options.backend)
    rank = dist.get_rank() if ddp else 0
    make, shape, batch = WORKLOADS[options.workload]
    layout = {"memory_format": torch.channels_last} if options.channels_last else {}
    model = make().to(device, **layout)
    gradient_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    if options.compile:
        model = torch.compile(model)
    beside = torch.cuda.Stream() if options.graph else None
    if ddp:
        # Its accumulators of gradients must be of the stream on which the step is recorded.
        with torch.cuda.stream(beside) if options.graph else nullcontext():
            model = nn.parallel.DistributedDataParallel(
                model, gradient_as_bucket_view=True, static_graph=options.static_graph, bucket_cap_mb=options.bucket_mb
            )
    optimizer = make_optimizer(options.optimizer, options.implementation, model.parameters())
    images, labels = torch.randn(batch, *shape).to(device, **layout), torch.randint(0, 10, (batch,)).to(device)
    loss = nn.CrossEntropyLoss()

    def take_step() -> None:
        optimizer.zero_grad(set_to_none=not options.keep_gradients)
        with torch.autocast(device.type, torch.bfloat16, enabled=options.autocast):
            scores = model(images)
        loss(scores.float() if options.autocast else scores, labels).backward()
        optimizer.step()

    run_step = recorded(take_step, beside) if options.graph else take_step
    seconds = []
    for step in range(-WARM_UP, options.steps):
        if ddp:
            dist.barrier()
        start = time.perf_counter()
        for _ in range(options.together):
            run_step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if step >= 0:
            seconds.append((time.perf_counter() - start) / options.together)
    report = {
        "pid": os.getpid(),
        "seconds": seconds,
        "gradient_bytes": gradient_bytes,
        "state_bytes": adam_state_bytes(optimizer),
    }
    with open(f"{options.output}.part{rank}", "w", encoding="utf-8") as file:
        json.dump(report, file)
    os.rename(f"{options.output}.part{rank}", f"{options.output}.{rank}")
    while options.hold and not os.path.exists(options.hold):
        time.sleep(0.02)
    if ddp:
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
