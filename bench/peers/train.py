"""Peer: the job of examples/resnet/train.cpp with torchvision and PyTorch's DistributedDataParallel, on the CPU with Gloo or on
GPUs with NCCL, by torchrun.

The same pictures in the same order, the same initial weights for a seed, the same transforms (with random numbers of
torchvision's own), optimizer and batches. Rank 0 writes what each epoch took and found.
"""

import argparse
import json
import os
import random
import sys
import time

import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset, default_collate
from torchvision import datasets
from torchvision.transforms import v2
from torchvision import transforms as v1

from torchvision_ways import MEAN, STD, DraftCrop, DraftResize, Turn, decode, normalised, open_undecoded


def transforms(side: int, way: str) -> tuple[list, list]:
    """Of the training and of the test, without those that make a tensor and normalise it."""
    tv = v2 if way == "v2" else v1
    train = [tv.RandomResizedCrop(side), tv.RandomHorizontalFlip(), tv.RandomVerticalFlip(), tv.RandomRotation(15),
             tv.RandomAffine(0, translate=(0.1, 0.1)), tv.ColorJitter(0.2, 0.2, 0.2)]
    if way in ("pil-turn", "pil-draft"):
        crop = DraftCrop(side) if way == "pil-draft" else tv.RandomResizedCrop(side)
        train = [crop, Turn((15,), shift=0.1), tv.ColorJitter(0.2, 0.2, 0.2)]
    resize = DraftResize if way == "pil-draft" else tv.Resize
    return train, [resize(side * 8 // 7), tv.CenterCrop(side)]


def open_folder(path: str, steps: list, way: str) -> datasets.ImageFolder:
    if way == "v2":
        return datasets.ImageFolder(path, v2.Compose(steps), loader=decode)
    if way != "pil":
        more = {"loader": open_undecoded} if way == "pil-draft" else {}
        return datasets.ImageFolder(path, v1.Compose([*steps, v1.PILToTensor()]), **more)
    return datasets.ImageFolder(path, v1.Compose([*steps, v1.ToTensor(), v1.Normalize(MEAN, STD)]))


def accuracy(model: nn.Module, loader: DataLoader, device: torch.device) -> float:
    """Each rank has its share of the samples, each of them once."""
    model.eval()
    counts = torch.zeros(2, device=device)
    with torch.no_grad():
        for images, labels in loader:
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            counts += torch.tensor([(model(images).argmax(1) == labels).sum().item(), len(labels)], device=device)
    dist.all_reduce(counts)
    model.train()
    return (counts[0] / counts[1]).item()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True, help="has train and test")
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--side", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="of each rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--way", choices=["pil", "pil-batch", "pil-turn", "pil-draft", "v2"], default="v2")
    parser.add_argument("--implementation", choices=["plain", "fused"], default="fused", help="of the optimizer")
    parser.add_argument("--static-graph", action="store_true")
    parser.add_argument("--compile", action="store_true", help="the model, by torch.compile")
    parser.add_argument("--model", choices=["resnet18", "resnet50"], default="resnet18")
    parser.add_argument("--bf16", action="store_true", help="the forward pass in bfloat16 where that is right")
    parser.add_argument("--channels-last", action="store_true", help="the layout of pictures and of the kernels of convolutions")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--output", required=True)
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(1)
    device = torch.device("cuda", 0) if options.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    collate = default_collate if options.way == "pil" else normalised
    train_steps, test_steps = transforms(options.side, options.way)
    train = open_folder(os.path.join(options.folder, "train"), train_steps, options.way)
    test = open_folder(os.path.join(options.folder, "test"), test_steps, options.way)
    sampler = DistributedSampler(train, seed=options.seed)
    workers = {"num_workers": options.workers, "persistent_workers": options.workers > 0, "collate_fn": collate,
               "pin_memory": device.type == "cuda"}
    train_loader = DataLoader(train, options.batch, sampler=sampler, **workers)
    test_loader = DataLoader(Subset(test, range(rank, len(test), ranks)), options.batch, **workers)
    torch.manual_seed(options.seed)  # the weights of ours
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    model = getattr(torchvision.models, options.model)(num_classes=len(train.classes)).to(device, memory_format=layout)
    torch.manual_seed(options.seed * ranks + rank)  # of the transforms: each rank draws its own
    random.seed(options.seed * ranks + rank)
    # Not dynamic: an epoch has two sizes of batches, and both are compiled in the first epoch.
    trained = torch.compile(model, dynamic=False) if options.compile else model
    ddp = nn.parallel.DistributedDataParallel(trained, gradient_as_bucket_view=True, static_graph=options.static_graph)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.001, momentum=0.9, fused=options.implementation == "fused")
    loss = nn.CrossEntropyLoss()
    epochs = []
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        start = time.perf_counter()
        total = 0.0
        for images, labels in train_loader:
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.bfloat16, enabled=options.bf16):
                value = loss(ddp(images.contiguous(memory_format=layout)), labels)
            value.backward()
            optimizer.step()
            total += value.item() * len(labels)
        dist.barrier()
        seconds = time.perf_counter() - start
        epochs.append({"seconds": seconds, "pictures": sampler.num_samples * ranks, "loss": total / sampler.num_samples,
                       "accuracy": accuracy(model, test_loader, device)})
    if rank == 0:
        with open(options.output, "w", encoding="utf-8") as file:
            json.dump(epochs, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
