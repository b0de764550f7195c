"""Prints parameters that torchvision's transforms draw: per distribution a line with its name and 10,000 numbers."""
import torch
from torchvision import transforms as T
from torchvision.transforms import functional as F

COUNT = 10000
torch.manual_seed(0)
numbers = {}


def add(name, value):
    numbers.setdefault(name, []).append(value)


for shape, label in (((3, 375, 500), "wide"), ((3, 200, 60), "tall")):
    image = torch.empty(shape)
    for _ in range(COUNT):
        top, left, height, width = T.RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3])
        for name, value in (("top", top), ("left", left), ("height", height), ("width", width)):
            add(f"crop_{label}_{name}", value)
image = torch.empty(3, 64, 48)
for _ in range(COUNT):
    top, left, height, width, _ = T.RandomErasing.get_params(image, (0.02, 0.33), (0.3, 3.3), [0.0])
    for name, value in (("top", top), ("left", left), ("height", height), ("width", width)):
        add(f"erase_{name}", value)
    order, *factors = T.ColorJitter.get_params([0.6, 1.4], [0.5, 1.5], [0.0, 2.0], [-0.1, 0.1])
    for name, value in zip(("brightness", "contrast", "saturation", "hue"), factors):
        add(f"jitter_{name}", value)
    add("rotation_angle", T.RandomRotation.get_params([-10.0, 30.0]))
    top, left, _, _ = T.RandomCrop.get_params(image, (20, 17))
    add("fixed_crop_top", top)
    add("fixed_crop_left", left)
    add("blur_sigma", T.GaussianBlur.get_params(0.1, 2.0))
    chosen = T.RandomAffine.get_params([-20.0, 40.0], [0.1, 0.3], [0.7, 1.2], [-5.0, 15.0, -8.0, 3.0], [48, 64])
    for place, value in enumerate(F._get_inverse_affine_matrix([24.0, 32.0], *chosen)):
        add(f"affine_{place}", value)
    add("jitter_order", sum(int(which) * 4 ** place for place, which in enumerate(order)))
for name, values in numbers.items():
    print(name, *values)
