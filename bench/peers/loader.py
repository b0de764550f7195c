"""Peer: torchvision's ImageFolder and PyTorch's DataLoader, for the pipelines and measurements of bench/loader.cpp."""

import torch
from torch.utils.data import DataLoader
from torchvision import datasets

from loader_peer import parse_arguments, rates, report, seconds
from torchvision_ways import normalise, pipeline

FLAGS = {"--bytes": "workers pass batches of uint8, a quarter of the memory; the program makes them float and normalises"}
WAYS = ["pil", "pil-batch", "pil-turn", "pil-draft", "v2"]
arguments = parse_arguments(__doc__, ["rates", "index", "first-batch"], ways=WAYS, flags=FLAGS)
torch.set_num_threads(1)
load, transform, collate = pipeline(arguments.pipeline, arguments.way)
if arguments.bytes:
    collate = None


def open_folder() -> datasets.ImageFolder:
    return datasets.ImageFolder(arguments.folder, transform, loader=load)


def open_loader() -> DataLoader:
    workers = arguments.workers and arguments.workers + arguments.extra_threads
    return DataLoader(
        open_folder(), batch_size=32, shuffle=True, num_workers=workers, persistent_workers=workers > 0, collate_fn=collate
    )


def count_images(loader: DataLoader) -> int:
    count = 0
    for images, labels in loader:
        if arguments.bytes:
            normalise(images)
        count += len(labels)
    return count


def first_batch() -> None:
    images, _ = next(iter(open_loader()))
    if arguments.bytes:
        normalise(images)


if arguments.measure == "index":
    report(arguments.output, seconds(open_folder))
elif arguments.measure == "first-batch":
    report(arguments.output, seconds(first_batch))
else:
    loader = open_loader()
    report(arguments.output, rates(arguments.epochs, lambda: count_images(loader)))
