"""Peer: images a second of torchvision's ImageFolder and PyTorch's DataLoader, for the pipelines of bench/loader.cpp."""

import argparse
import json
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from torchvision import datasets
from torchvision import transforms as T

parser = argparse.ArgumentParser()
parser.add_argument("--folder", required=True)
parser.add_argument("--pipeline", choices=["reference", "crop-flip"], required=True)
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--output", type=Path, required=True)
arguments = parser.parse_args()

torch.set_num_threads(1)
steps = [T.RandomResizedCrop(224), T.RandomHorizontalFlip()]
if arguments.pipeline == "reference":
    steps += [T.RandomVerticalFlip(), T.RandomRotation(45), T.RandomAffine(45), T.ColorJitter()]
steps += [T.ToTensor(), T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
dataset = datasets.ImageFolder(arguments.folder, T.Compose(steps))
loader = DataLoader(
    dataset, batch_size=32, shuffle=True, num_workers=arguments.workers, persistent_workers=arguments.workers > 0
)


def epoch_rate() -> float:
    start = time.perf_counter()
    count = sum(len(labels) for _, labels in loader)
    return count / (time.perf_counter() - start)


epoch_rate()  # warm-up: workers started, files cached
rates = [epoch_rate() for _ in range(arguments.epochs)]
arguments.output.write_text(json.dumps({"images_per_second": rates}), encoding="utf-8")
