"""Writes pictures, and torchvision's results for them with given parameters, for step_parity_test.cpp.

python image_steps.py FOLDER: FOLDER/cases.json lists the cases; *.raw are height x width x channels bytes.
"""
import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

from pictures import picture, raw_file

folder = Path(sys.argv[1])
cases = []
MODES = {"nearest": InterpolationMode.NEAREST, "bilinear": InterpolationMode.BILINEAR, "bicubic": InterpolationMode.BICUBIC,
         "box": InterpolationMode.BOX, "hamming": InterpolationMode.HAMMING, "lanczos": InterpolationMode.LANCZOS}


def case(op, image, expected, **arguments):
    number = len(cases)
    cases.append({"op": op, "in": raw_file(folder, f"{number}.in", image), "out": raw_file(folder, f"{number}.out", expected), **arguments})


photo, tall, tiny = picture(173, 131, 0), picture(61, 210, 1), picture(5, 3, 2)
grey = photo.convert("L")

for image in (photo, tall, tiny):
    for size in ((64, 64), (224, 224), (131, 40), (7, 300), (1, 1), (image.height, 50), (50, image.width)):
        for name, mode in MODES.items():
            case("resize", image, F.resize(image, list(size), mode), size=size, filter=name)
for top, left, height, width in ((0, 0, 131, 173), (10, 20, 90, 100), (50, 3, 17, 160), (130, 172, 1, 1)):
    for name in ("bilinear", "bicubic"):
        case("resized_crop", photo, F.resized_crop(photo, top, left, height, width, [56, 48], MODES[name]),
             box=[left, top, width, height], size=[56, 48], filter=name)

for image in (photo, tall, tiny):
    for angle in (0.0, 0.3, 10.0, 45.0, 90.0, 133.7, 180.0, 270.0, -44.99, 359.0):
        for name in ("nearest", "bilinear", "bicubic"):
            for expand in (False, True):
                case("rotate", image, F.rotate(image, angle, MODES[name], expand, fill=[7, 80, 200]), angle=angle,
                     filter=name, expand=expand, fill=[7, 80, 200])
case("rotate", photo, F.rotate(photo, 33.0, center=[20, 100]), angle=33.0, filter="nearest", expand=False, fill=[0, 0, 0],
     center=[20, 100])
for angle, translate, scale, shear, center in ((0.0, (0, 0), 1.0, (0, 0), None), (20.0, (5, -9), 1.3, (3.0, 0), None),
                                               (-45.0, (0, 0), 1.0, (0, 0), None), (3.0, (40, 70), 0.6, (-20.0, 12.0), [10, 20]),
                                               (0.0, (13, 0), 1.0, (0, 0), None), (0.0, (0, 0), 2.5, (0, 0), None),
                                               (0.0, (0, 0), 1.0, (16.7, 0.0), [0, 0])):
    for image in (photo, tiny):
        for name in ("nearest", "bilinear", "bicubic"):
            expected = F.affine(image, angle, list(translate), scale, list(shear), MODES[name], [9, 8, 7], center)
            case("affine", image, expected, angle=angle, translate=translate, scale=scale, shear=shear, filter=name,
                 fill=[9, 8, 7], center=center)

for factor in (0.0, 0.37, 0.6, 1.0, 1.4, 2.3):
    case("brightness", photo, F.adjust_brightness(photo, factor), factor=factor)
    case("contrast", photo, F.adjust_contrast(photo, factor), factor=factor)
    case("saturation", photo, F.adjust_saturation(photo, factor), factor=factor)
    case("sharpness", photo, F.adjust_sharpness(photo, factor), factor=factor)
    case("contrast", grey, F.adjust_contrast(grey, factor), factor=factor)
    case("sharpness", tiny, F.adjust_sharpness(tiny, factor), factor=factor)
for factor in (-0.5, -0.31, -0.1, 0.0, 0.07, 0.25, 0.5):
    case("hue", photo, F.adjust_hue(photo, factor), factor=factor)
# Every combination of a coarse grid of colours.
grid = np.stack(np.meshgrid(*[np.arange(0, 256, 5)] * 3), axis=-1).reshape(52 * 4, -1, 3).astype(np.uint8)
case("hue", Image.fromarray(grid), F.adjust_hue(Image.fromarray(grid), 0.1), factor=0.1)
for channels in (1, 3):
    case("grey", photo, F.to_grayscale(photo, channels), channels=channels)
for bits in (1, 4, 7, 8):
    case("posterize", photo, F.posterize(photo, bits), bits=bits)
for threshold in (0.0, 51.0, 127.5, 255.0):
    case("solarize", photo, F.solarize(photo, threshold), threshold=threshold)
for image in (photo, tiny, Image.new("RGB", (20, 10), (5, 5, 5)), grey, F.adjust_contrast(photo, 0.3)):
    case("autocontrast", image, F.autocontrast(image))
    case("equalize", image, F.equalize(image))
    case("invert", image, F.invert(image))
for image, padding in ((photo, (3, 3, 3, 3)), (photo, (5, 0, 2, 11)), (photo, (0, 1, 60, 0)), (photo, (-3, 9, 12, -100)),
                       (tiny, (11, 8, 0, 7)), (tiny, (-2, -1, -2, -1)), (tiny, (-4, 6, 3, -2))):
    for mode in ("constant", "edge", "reflect", "symmetric"):
        case("pad", image, F.pad(image, list(padding), 33, mode), padding=padding, mode=mode)
for padding in ((-5, 0, 6, 0), (2, 9, 2, -9), (-40, -40, 50, 50)):  # nothing of the picture is left
    case("pad", tiny, F.pad(tiny, list(padding), 33), padding=padding, mode="constant")
for size, sigma in (((3, 3), 0.5), ((5, 9), 1.7), ((23, 7), 3.0)):
    case("blur", photo, F.gaussian_blur(photo, [size[1], size[0]], sigma), size=size, sigma=sigma)

(folder / "cases.json").write_text(json.dumps(cases))
