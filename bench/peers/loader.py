"""Peer: torchvision's ImageFolder and PyTorch's DataLoader, for the pipelines and measurements of bench/loader.cpp."""

import torch
from torch.utils.data import DataLoader
from torchvision import datasets
from torchvision import transforms as T

from loader_peer import parse_arguments, rates, report, seconds

arguments = parse_arguments(__doc__, ["rates", "index", "first-batch"])
torch.set_num_threads(1)
steps = [T.RandomResizedCrop(224), T.RandomHorizontalFlip()]
if arguments.pipeline == "reference":
    steps += [T.RandomVerticalFlip(), T.RandomRotation(45), T.RandomAffine(45), T.ColorJitter()]
steps += [T.ToTensor(), T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]


def open_folder() -> datasets.ImageFolder:
    return datasets.ImageFolder(arguments.folder, T.Compose(steps))


def open_loader() -> DataLoader:
    workers = arguments.workers
    return DataLoader(open_folder(), batch_size=32, shuffle=True, num_workers=workers, persistent_workers=workers > 0)


if arguments.measure == "index":
    report(arguments.output, seconds(open_folder))
elif arguments.measure == "first-batch":
    report(arguments.output, seconds(lambda: next(iter(open_loader()))))
else:
    loader = open_loader()
    report(arguments.output, rates(arguments.epochs, lambda: sum(len(labels) for _, labels in loader)))
