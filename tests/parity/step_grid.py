"""Writes a grid of pictures (colour modes, odd and tiny sizes) and torchvision's results with extreme parameters, for
step_grid_parity_test.cpp.

python step_grid.py FOLDER: FOLDER/cases.json lists the cases; *.raw are height x width x channels bytes.
"""
import json
import sys
from pathlib import Path

from PIL import Image
from torchvision.transforms import functional as F

from pictures import picture, raw_file

folder = Path(sys.argv[1])
cases = []
SIZES = ((1, 1), (1, 9), (9, 1), (2, 2), (3, 3), (2, 7), (31, 1), (17, 13), (64, 48), (97, 61))


def case(op, image, expected, **arguments):
    number = len(cases)
    cases.append({"op": op, "in": raw_file(folder, f"{number}.in", image), "out": raw_file(folder, f"{number}.out", expected), **arguments})


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


for seed, (width, height) in enumerate(SIZES):
    for grey in (False, True):
        image = picture(width, height, seed)
        image = image.convert("L") if grey else image
        colours(image)
for level in (0, 128, 255):  # one colour: nothing to stretch
    colours(Image.new("RGB", (6, 5), (level, level, 255 - level)))
(folder / "cases.json").write_text(json.dumps(cases))
