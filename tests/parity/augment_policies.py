"""Writes torchvision's strengths for RandAugment and TrivialAugmentWide, drawn operations, and the pixels of each operation.

python augment_policies.py FOLDER: FOLDER/tables.json has the strengths, the drawn numbers and a list of cases.
"""
import json
import sys
from pathlib import Path

import torch
from torchvision import transforms as T
from torchvision.transforms import InterpolationMode, autoaugment

from pictures import picture, raw_file

COUNT = 5000
folder = Path(sys.argv[1])
apply_op = autoaugment._apply_op
OPS = list(T.TrivialAugmentWide()._augmentation_space(31))


def spaces(transform, bins, width, height):
    found = transform._augmentation_space(bins, *([] if isinstance(transform, T.TrivialAugmentWide) else [(height, width)]))
    return [(values.reshape(-1).tolist(), signed) for values, signed in map(found.get, OPS)]


def strengths():
    return [{"transform": type(transform).__name__, "bins": bins, "width": width, "height": height,
             "ops": [{"signed": signed, "magnitudes": values} for values, signed in spaces(transform, bins, width, height)]}
            for transform, size in ((T.RandAugment(), (331, 224)), (T.RandAugment(), (61, 47)), (T.TrivialAugmentWide(), (61, 47)))
            for bins in (2, 10, 31) for width, height in (size,)]


def drawn(transform, image):
    """For each of many pictures, one number for the drawn operations and their signs."""
    codes, code, place = [], 0, 1

    def note(img, name, magnitude, **_):
        nonlocal code, place
        code += (2 * OPS.index(name) + (magnitude < 0) + 1) * place
        place *= 32
        return img

    autoaugment._apply_op = note
    for _ in range(COUNT):
        code, place = 0, 1
        transform(image)
        codes.append(code)
    return codes


def cases(images):
    found = []
    for number, image in enumerate(images):
        before = raw_file(folder, f"in{number}.raw", image)
        fill = [9, 80, 200] if image.mode == "RGB" else [9]
        for place, (values, signed) in enumerate(spaces(T.TrivialAugmentWide(), 31, *image.size)):
            for value in {values[index] for index in (0, len(values) // 2, len(values) - 1)}:
                for magnitude in {value, -value} if signed else {value}:
                    for mode in (InterpolationMode.NEAREST, InterpolationMode.BILINEAR):
                        after = apply_op(image, OPS[place], magnitude, interpolation=mode, fill=fill)
                        found.append({"op": place, "magnitude": magnitude, "filter": mode.value, "in": before,
                                      "out": raw_file(folder, f"{len(found)}.raw", after)})
    return found


torch.manual_seed(0)
photo = picture(61, 47, 0)
tables = {
    "spaces": strengths(),
    "cases": cases([photo, photo.convert("L"), picture(5, 3, 2), picture(1, 9, 4)]),
    "drawn": {type(transform).__name__: drawn(transform, photo) for transform in (T.RandAugment(), T.TrivialAugmentWide())},
}
(folder / "tables.json").write_text(json.dumps(tables))
