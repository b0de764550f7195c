"""Writes torchvision's tables for AutoAugment and RandAugment, drawn operations, and the pixels of each operation.

python augment_policies.py FOLDER: FOLDER/tables.json has the tables, the drawn numbers and a list of cases.
"""
import json
import sys
from pathlib import Path

import torch
from torchvision import transforms as T
from torchvision.transforms import InterpolationMode, autoaugment

from pictures import picture, raw_file

COUNT = 5000
OPS = ["Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast", "Sharpness",
       "Posterize", "Solarize", "AutoContrast", "Equalize", "Invert"]
POLICIES = {policy.value: T.AutoAugment(policy) for policy in T.AutoAugmentPolicy}
folder = Path(sys.argv[1])
apply_op = autoaugment._apply_op


def space(transform, bins, width, height):
    found = transform._augmentation_space(bins, (height, width))
    return {"bins": bins, "width": width, "height": height,
            "ops": {name: {"signed": signed, "magnitudes": values.reshape(-1).tolist()}
                    for name, (values, signed) in found.items()}}


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


def cases(image, spaces):
    found = []
    for name in OPS:
        values, signed = spaces.get(name, ([0.0], False))
        for value in {float(values[index]) for index in (0, len(values) // 2, len(values) - 1)}:
            for magnitude in {value, -value} if signed else {value}:
                for filter_name, mode in (("nearest", InterpolationMode.NEAREST), ("bilinear", InterpolationMode.BILINEAR)):
                    after = apply_op(image, name, magnitude, interpolation=mode, fill=[9, 80, 200])
                    found.append({"op": name, "magnitude": magnitude, "filter": filter_name,
                                  "out": raw_file(folder, f"{len(found)}.raw", after)})
    return found


torch.manual_seed(0)
photo = picture(61, 47, 0)
rand = T.RandAugment()
tables = {
    "policies": {name: transform.policies for name, transform in POLICIES.items()},
    "auto_spaces": [space(POLICIES["imagenet"], 10, width, height) for width, height in ((331, 331), (224, 160), (61, 47))],
    "rand_spaces": [space(rand, bins, width, height) for bins in (2, 10, 31) for width, height in ((331, 224), (61, 47))],
    "in": raw_file(folder, "in.raw", photo),
    "cases": cases(photo, {name: (values.reshape(-1).tolist(), signed)
                           for name, (values, signed) in POLICIES["imagenet"]._augmentation_space(10, (47, 61)).items()}),
    "drawn": {name: drawn(transform, photo) for name, transform in [*POLICIES.items(), ("rand", rand)]},
}
(folder / "tables.json").write_text(json.dumps(tables))
