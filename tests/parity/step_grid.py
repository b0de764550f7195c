"""Writes a grid of pictures (colour modes, odd and tiny sizes) and torchvision's results with extreme parameters, for
step_grid_parity_test.cpp.

python step_grid.py FOLDER: FOLDER/cases.json lists the cases; *.raw are height x width x channels bytes, crops below one
another; displacements and noises are float32.
"""
import json
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision import transforms as T
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

from pictures import picture, raw_file

folder = Path(sys.argv[1])
cases = []
MODES = {"nearest": InterpolationMode.NEAREST, "bilinear": InterpolationMode.BILINEAR, "bicubic": InterpolationMode.BICUBIC}
SIZES = ((1, 1), (1, 9), (9, 1), (2, 2), (3, 3), (2, 7), (31, 1), (17, 13), (64, 48), (97, 61))


def case(op, image, expected, **arguments):
    number = len(cases)
    cases.append({"op": op, "in": raw_file(folder, f"{number}.in", image), "out": raw_file(folder, f"{number}.out", expected), **arguments})


def stacked(crops):
    return np.concatenate([np.asarray(crop) for crop in crops])


def float_file(tensor):
    name = f"{len(cases)}.floats"
    (folder / name).write_bytes(tensor.contiguous().numpy().tobytes())
    return name


def perspectives(image, fill):
    """Random corners, and large distortions. torchvision fails on corners that are on one line, as those of a row are."""
    if min(image.size) < 2:
        return
    for scale in (0.1, 0.5, 0.9):
        start, end = T.RandomPerspective.get_params(*image.size, scale)
        matrix = F._get_perspective_coeffs(start, end)
        for name, mode in MODES.items():
            after = F.perspective(image, start, end, mode, fill)
            case("perspective", image, after, corners=end, matrix=matrix, filter=name, fill=fill)


def elastics(image, fill):
    for name in ("nearest", "bilinear"):
        for alpha in (0.0, 30.0, 1000.0):
            displacement = T.ElasticTransform.get_params([alpha, alpha / 2], [0.0, 0.0], [image.height, image.width])
            after = F.elastic_transform(image, displacement, MODES[name], [float(value) for value in fill])
            case("elastic", image, after, displacement=float_file(displacement.permute(3, 0, 1, 2)), filter=name, fill=fill)


def crops(image):
    for height, width in {(1, 1), (image.height, image.width), ((image.height + 1) // 2, (2 * image.width + 2) // 3)}:
        case("five_crop", image, stacked(F.five_crop(image, [height, width])), size=[height, width])
        for vertical in (False, True):
            case("ten_crop", image, stacked(F.ten_crop(image, [height, width], vertical)), size=[height, width], vertical=vertical)


def colours(image):
    case("posterize", image, F.to_pil_image(F.posterize(F.pil_to_tensor(image), 0)), bits=0)  # PIL refuses 0
    for bits in range(1, 9):
        case("posterize", image, F.posterize(image, bits), bits=bits)
    for threshold in (-3.5, 0.0, 0.5, 128.0, 254.9, 255.0):
        case("solarize", image, F.solarize(image, threshold), threshold=threshold)
    for factor in (0.0, 0.3, 1.0, 1.001, 2.0, 60.0):
        case("sharpness", image, F.adjust_sharpness(image, factor), factor=factor)
    case("autocontrast", image, F.autocontrast(image))
    case("equalize", image, F.equalize(image))
    case("invert", image, F.invert(image))


def noises():
    """Noise and the displacement that get_params makes of it."""
    for width, height, sigma, alpha in ((64, 48, (5.0, 5.0), (50.0, 50.0)), (97, 61, (3.0, 1.3), (34.0, -80.0)),
                                        (33, 41, (0.1, 0.2), (1.0, 2.0)), (9, 7, (0.0, 0.0), (50.0, 3.0))):
        noise = torch.rand(2, height, width)
        kept = iter(noise)
        draw, torch.rand = torch.rand, lambda size: next(kept).view(size)
        displacement = T.ElasticTransform.get_params(list(alpha), list(sigma), [height, width])
        torch.rand = draw
        blank = Image.new("L", (width, height))
        case("noise", blank, blank, noise=float_file(torch.cat([noise * 2 - 1, displacement[0].permute(2, 0, 1)])),
             sigma=sigma, alpha=alpha)


torch.manual_seed(0)
for seed, (width, height) in enumerate(SIZES):
    for grey in (False, True):
        image = picture(width, height, seed)
        image = image.convert("L") if grey else image
        fill = [7] if grey else [7, 80, 200]
        perspectives(image, fill)
        elastics(image, fill)
        crops(image)
        colours(image)
for level in (0, 128, 255):  # one colour: nothing to stretch
    colours(Image.new("RGB", (6, 5), (level, level, 255 - level)))
noises()
(folder / "cases.json").write_text(json.dumps(cases))
