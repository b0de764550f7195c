"""Peer: torchvision's ImageFolder and PyTorch's DataLoader, for the pipelines and measurements of bench/loader.cpp."""

import torch
from torch.utils.data import DataLoader
from torchvision import datasets

from loader_peer import parse_arguments, rates, report, seconds
from torchvision_ways import pipeline

arguments = parse_arguments(__doc__, ["rates", "index", "first-batch"], ways=["pil", "pil-batch", "v2"])
torch.set_num_threads(1)
load, transform, collate = pipeline(arguments.pipeline, arguments.way)


def open_folder() -> datasets.ImageFolder:
    return datasets.ImageFolder(arguments.folder, transform, loader=load)


def open_loader() -> DataLoader:
    workers = arguments.workers
    return DataLoader(
        open_folder(), batch_size=32, shuffle=True, num_workers=workers, persistent_workers=workers > 0, collate_fn=collate
    )


if arguments.measure == "index":
    report(arguments.output, seconds(open_folder))
elif arguments.measure == "first-batch":
    report(arguments.output, seconds(lambda: next(iter(open_loader()))))
else:
    loader = open_loader()
    report(arguments.output, rates(arguments.epochs, lambda: sum(len(labels) for _, labels in loader)))
