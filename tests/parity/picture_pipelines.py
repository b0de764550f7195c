"""Writes the samples of torchvision's ImageFolder with PyTorch's DataLoader, for picture_pipeline_parity_test.cpp.

python picture_pipelines.py ROOT: writes the pictures of image_files.py to ROOT/pictures/a, and for each pipeline ROOT/NAME.raw,
the samples one after another; ROOT/pipelines.json lists the names, dtypes and shapes, ROOT/samples.json the files.
Random transforms have ranges with one value, a float32, so that both sides draw the same.
"""
import io
import json
import sys
from pathlib import Path

import torch
from PIL import Image
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

root = Path(sys.argv[1])
pictures = root / "pictures"
(pictures / "a").mkdir(parents=True)
sys.argv[1] = str(pictures / "a")
import image_files  # noqa: E402, F401: writes the files

# Samples of a batch have one shape: PIL turns TIFF files, and these would be as wide as the others are high.
for orientation in range(5, 9):
    (pictures / "a" / f"turned{orientation}.tif").unlink()

BILINEAR = T.InterpolationMode.BILINEAR
normalize = T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
jitter = [T.ColorJitter(brightness=(1.25, 1.25)), T.ColorJitter(contrast=(0.625, 0.625)),
          T.ColorJitter(saturation=(1.75, 1.75)), T.ColorJitter(hue=(0.125, 0.125))]
# More area than the picture has: both sides take the largest part of that ratio, in the middle.
middle = {"scale": (3.0, 3.0), "ratio": (0.75, 0.75)}
flips = [T.RandomHorizontalFlip(1.0), T.RandomVerticalFlip(1.0)]
PIPELINES = {
    "nothing": [],
    "resize": [T.Resize(40)],
    "enlarge": [T.Resize((90, 120), T.InterpolationMode.BICUBIC)],
    "center_crop": [T.CenterCrop((37, 53))],
    "center_crop_wide": [T.CenterCrop((80, 64)), T.Resize((31, 30))],
    "random_resized_crop": [T.RandomResizedCrop(32, **middle)],
    "half": [T.RandomResizedCrop(20, **middle)],
    "flips": flips,
    "rotation": [T.RandomRotation((33, 33))],
    "rotation_bilinear": [T.RandomRotation((-20, -20), BILINEAR, expand=True)],
    "affine": [T.RandomAffine((20, 20), scale=(1.25, 1.25), shear=(5, 5))],
    "jitter": jitter,
    "grey": [T.Grayscale(), T.Resize(40), *flips, *jitter],
    "grey_as_rgb": [T.Grayscale(3), *jitter[:2]],
    "random_grey": [T.RandomGrayscale(1.0)],
    "blur": [T.GaussianBlur((9, 3), (1.5, 1.5))],
    "pad": [T.Pad(4, 33, "reflect"), T.RandomCrop((75, 99))],
    "colours": [T.RandomInvert(1.0), T.RandomPosterize(5, 1.0), T.RandomSolarize(100, 1.0), T.RandomAutocontrast(1.0)],
    "equalize": [T.RandomApply([T.RandomEqualize(1.0)], 1.0), T.RandomAdjustSharpness(3.0, 1.0)],
    "lists": [T.RandomOrder([T.RandomChoice(flips[:1])]), T.RandomApply(flips, 0.0), T.Resize(40)],
    "normalize": [normalize],
    "reference": [T.RandomResizedCrop(32, **middle), *flips, T.RandomRotation((45, 45)), T.RandomAffine((45, 45)), *jitter,
                  normalize],
}


def packed(image):
    """The picture that `lockstep pack --resize 40 --quality 98` stores."""
    content = io.BytesIO()
    T.Resize(40)(image).save(content, "JPEG", quality=98, optimize=True)
    return Image.open(content).convert("RGB")


def tensors(steps):
    """The steps, with ToTensor at its place."""
    on_floats = [step for step in steps if step is normalize]
    return [step for step in steps if step is not normalize] + [T.ToTensor(), *on_floats]


composed = {name: tensors(steps) for name, steps in PIPELINES.items()}
composed["bytes"] = [T.PILToTensor()]
composed["packed"] = [packed, T.PILToTensor()]
composed["grey_bytes"] = [T.Grayscale(), T.Resize(40), T.PILToTensor()]
described = {}
for name, steps in composed.items():
    dataset = ImageFolder(str(pictures), T.Compose(steps))
    samples = torch.cat([batch for batch, _ in torch.utils.data.DataLoader(dataset, batch_size=16)])
    (root / f"{name}.raw").write_bytes(samples.contiguous().numpy().tobytes())
    described[name] = {"float": samples.dtype == torch.float32, "shape": list(samples.shape)}
(root / "pipelines.json").write_text(json.dumps(described))
(root / "samples.json").write_text(json.dumps([Path(path).name for path, _ in dataset.samples]))
