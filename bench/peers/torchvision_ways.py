"""The pipelines of bench/loader.cpp with torchvision, in five ways: PIL pictures with ToTensor and Normalize for each
(pil), PIL pictures made float and normalised as they go into the batch (pil-batch), the same with all flips and rotations
of a picture in one pass (pil-turn), the same from files that are decoded no larger than the crop needs (pil-draft), and
uint8 tensors of decode_image with transforms.v2, also normalised as they go into the batch (v2)."""

import math
import random
import warnings
from collections.abc import Callable, Sequence

import torch
from PIL import Image
from torch.utils.data import default_collate, get_worker_info
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


def open_undecoded(path: str) -> Image.Image:
    """Only the header is read. The file stays open until the picture is decoded."""
    return Image.open(path)


def decode_for(picture: Image.Image, width: float, height: float) -> tuple[Image.Image, float, float]:
    """The picture as RGB, decoded no smaller than this: libjpeg leaves out what a size of 1/2, 1/4 or 1/8 does not need.
    And the factors from before to its width and height."""
    before = picture.size
    picture.draft("RGB", (math.ceil(width), math.ceil(height)))
    return picture.convert("RGB"), picture.width / before[0], picture.height / before[1]


class DraftCrop(v1.RandomResizedCrop):
    """RandomResizedCrop of an undecoded picture."""

    def forward(self, picture: Image.Image) -> Image.Image:
        # get_params asks for the size alone.
        top, left, height, width = self.get_params(picture, self.scale, self.ratio)
        down, across = self.size
        found, x, y = decode_for(picture, picture.width * across / width, picture.height * down / height)
        box = (left * x, top * y, (left + width) * x, (top + height) * y)
        return found.resize((across, down), Image.Resampling.BILINEAR, box)


class DraftResize:
    """Resize of the shorter side of an undecoded picture."""

    def __init__(self, shorter: int) -> None:
        self.shorter, self.resize = shorter, v1.Resize(shorter)

    def __call__(self, picture: Image.Image) -> Image.Image:
        factor = self.shorter / min(picture.size)
        return self.resize(decode_for(picture, picture.width * factor, picture.height * factor)[0])


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


def empty_batch(pictures: int, shape: torch.Size) -> torch.Tensor:
    """In a worker in memory that it shares with the program, as default_collate has it: nothing is copied to hand it over."""
    if get_worker_info() is None:
        return torch.empty(pictures, *shape)
    storage = torch.UntypedStorage._new_shared(4 * pictures * shape.numel())
    return torch.empty(0).set_(storage, 0, (pictures, *shape))


def normalise(images: Sequence[torch.Tensor]) -> torch.Tensor:
    """A batch of float pictures from uint8 ones. Each is small enough to stay in the cache between the passes."""
    batch = empty_batch(len(images), images[0].shape)
    for place, image in zip(batch, images, strict=True):
        place.copy_(image).mul_(SCALE).add_(SHIFT)
    return batch


def normalised(samples: list) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = zip(*samples, strict=True)
    return normalise(images), torch.tensor(labels)


def pipeline(name: str, way: str) -> tuple[Callable, Callable, Callable]:
    """What loads a file, what transforms the picture, what makes a batch."""
    tv = v2 if way == "v2" else v1
    steps = [tv.RandomResizedCrop(224), tv.RandomHorizontalFlip()]
    if name == "reference":
        steps += [tv.RandomVerticalFlip(), tv.RandomRotation(45), tv.RandomAffine(45), tv.ColorJitter(*JITTER)]
    if way == "v2":
        return decode, v2.Compose(steps), normalised
    if way in ("pil-turn", "pil-draft") and name == "reference":
        steps = [v1.RandomResizedCrop(224), Turn(), v1.ColorJitter(*JITTER)]
    if way == "pil-draft":
        return open_undecoded, v1.Compose([DraftCrop(224), *steps[1:], v1.PILToTensor()]), normalised
    if way in ("pil-batch", "pil-turn"):
        return default_loader, v1.Compose([*steps, v1.PILToTensor()]), normalised
    return default_loader, v1.Compose([*steps, v1.ToTensor(), v1.Normalize(MEAN, STD)]), default_collate
