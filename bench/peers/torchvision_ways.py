"""The pipelines of bench/loader.cpp with torchvision, in four ways: PIL pictures with ToTensor and Normalize for each
(pil), PIL pictures made float and normalised per batch (pil-batch), the same with all flips and rotations of a picture in
one pass (pil-turn), and uint8 tensors of decode_image with transforms.v2, also normalised per batch (v2)."""

import math
import random
import warnings
from collections.abc import Callable

import torch
from PIL import Image
from torch.utils.data import default_collate
from torchvision import transforms as v1
from torchvision.datasets.folder import default_loader
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

warnings.filterwarnings("ignore", message=".*deprecated.*")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
JITTER = (0.4, 0.4, 0.4, 0.1)
SCALE = 1 / (255 * torch.tensor(STD).view(3, 1, 1))
SHIFT = -torch.tensor(MEAN).view(3, 1, 1) / torch.tensor(STD).view(3, 1, 1)


def decode(path: str) -> torch.Tensor:
    return decode_image(path, ImageReadMode.RGB)


class Turn:
    """Both flips, rotations by up to `degrees` each, around the centre, and a shift by up to a part of each side, as one
    transform with nearest pixels."""

    def __init__(self, degrees: tuple[float, ...] = (45, 45), shift: float = 0) -> None:
        self.degrees, self.shift = degrees, shift

    def __call__(self, picture: Image.Image) -> Image.Image:
        angle = math.radians(sum(random.uniform(-most, most) for most in self.degrees))
        cos, sin = math.cos(angle), math.sin(angle)
        across, down = random.choice((1, -1)), random.choice((1, -1))
        a, b, d, e = across * cos, down * sin, -across * sin, down * cos
        x, y = picture.width / 2, picture.height / 2
        right, below = (side * (1 + 2 * random.uniform(-self.shift, self.shift)) for side in (x, y))
        matrix = (a, b, x - a * right - b * below, d, e, y - d * right - e * below)
        return picture.transform(picture.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST)


def normalise(images: torch.Tensor) -> torch.Tensor:
    return images.float().mul_(SCALE).add_(SHIFT)


def normalised(samples: list) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of float pictures from uint8 ones: a pass over the batch instead of several over each picture."""
    images, labels = default_collate(samples)
    return normalise(images), labels


def pipeline(name: str, way: str) -> tuple[Callable, Callable, Callable]:
    """What loads a file, what transforms the picture, what makes a batch."""
    tv = v2 if way == "v2" else v1
    steps = [tv.RandomResizedCrop(224), tv.RandomHorizontalFlip()]
    if name == "reference":
        steps += [tv.RandomVerticalFlip(), tv.RandomRotation(45), tv.RandomAffine(45), tv.ColorJitter(*JITTER)]
    if way == "v2":
        return decode, v2.Compose(steps), normalised
    if way == "pil-turn" and name == "reference":
        steps = [v1.RandomResizedCrop(224), Turn(), v1.ColorJitter(*JITTER)]
    if way in ("pil-batch", "pil-turn"):
        return default_loader, v1.Compose([*steps, v1.PILToTensor()]), normalised
    return default_loader, v1.Compose([*steps, v1.ToTensor(), v1.Normalize(MEAN, STD)]), default_collate
