"""Peer: torchvision's transforms of pictures in memory, for the pipelines of bench/transforms.cpp, on one thread: from PIL
pictures (pil) or uint8 tensors (v2) to normalised float samples."""

import argparse
import json
import time
from pathlib import Path

import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2

from torchvision_ways import decode, normalise


def pipelines(tv) -> dict:
    """`tv`: the module. What v1 lacks comes from v2."""
    nearest = InterpolationMode.NEAREST
    mixed = [tv.RandomPosterize(4, 1.0), tv.RandomInvert(1.0)]
    flips = [tv.RandomHorizontalFlip(1.0), tv.RandomVerticalFlip(1.0)]
    return {
        "invert": tv.RandomInvert(1.0),
        "posterize": tv.RandomPosterize(4, 1.0),
        "solarize": tv.RandomSolarize(128, 1.0),
        "sharpness": tv.RandomAdjustSharpness(2.0, 1.0),
        "autocontrast": tv.RandomAutocontrast(1.0),
        "equalize": tv.RandomEqualize(1.0),
        "trivial-augment": tv.TrivialAugmentWide(),
        "lists": tv.RandomOrder([tv.RandomApply(mixed, 0.5), tv.RandomChoice(flips)]),
    }


def sample(found) -> torch.Tensor:
    """One pass for the type and one for the scale: faster than ToTensor and Normalize."""
    if isinstance(found, tuple):
        return normalise(torch.stack([part if torch.is_tensor(part) else v1.functional.pil_to_tensor(part) for part in found]))
    return normalise([found if torch.is_tensor(found) else v1.functional.pil_to_tensor(found)])


def rate(transform, pictures: list) -> float:
    start = time.perf_counter()
    for picture in pictures:
        sample(transform(picture))
    return len(pictures) / (time.perf_counter() - start)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--way", choices=["pil", "v2"], default="v2")
parser.add_argument("--count", type=int, default=64)
parser.add_argument("--seconds", type=float, default=0.3)
parser.add_argument("--only", nargs="*", default=[])
parser.add_argument("--output", type=Path, required=True)
arguments = parser.parse_args()
torch.set_num_threads(1)
paths = sorted(path for path in arguments.folder.rglob("*") if path.is_file())[: arguments.count]
if arguments.way == "pil":
    pictures = [Image.open(path).convert("RGB") for path in paths]
else:
    pictures = [decode(str(path)) for path in paths]
values: dict[str, list[float]] = {}
for name, transform in pipelines(v1 if arguments.way == "pil" else v2).items():
    if arguments.only and name not in arguments.only:
        continue
    rate(transform, pictures[:4])  # warm-up
    end = time.perf_counter() + arguments.seconds
    values[name] = [rate(transform, pictures)]
    while time.perf_counter() < end:
        values[name].append(rate(transform, pictures))
arguments.output.write_text(json.dumps({"values": values}), encoding="utf-8")
