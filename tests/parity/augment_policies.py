"""Writes torchvision's tables for AutoAugment, RandAugment, TrivialAugmentWide and AugMix, drawn operations, and the
pixels of each operation and of mixtures.

python augment_policies.py FOLDER: FOLDER/tables.json has the tables, the drawn numbers and a list of cases.
"""
import json
import sys
from pathlib import Path

import torch
from torchvision import transforms as T
from torchvision.transforms import InterpolationMode, autoaugment
from torchvision.transforms import functional as F

from pictures import picture, raw_file

COUNT = 5000
OPS = ["Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast", "Sharpness",
       "Posterize", "Solarize", "AutoContrast", "Equalize", "Invert"]
POLICIES = {policy.value: T.AutoAugment(policy) for policy in T.AutoAugmentPolicy}
folder = Path(sys.argv[1])
apply_op = autoaugment._apply_op


def space(transform, bins, width, height):
    size = () if isinstance(transform, T.TrivialAugmentWide) else ((height, width),)
    found = transform._augmentation_space(bins, *size)
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


class Mixer(T.AugMix):
    """Notes its weights."""

    def _sample_dirichlet(self, params):
        found = super()._sample_dirichlet(params)
        self.drawn.append(found[0].tolist())
        return found

    def __call__(self, image):
        self.drawn = []
        return super().__call__(image)


def mixtures():
    found = []
    image = picture(61, 47, 0)
    for severity, width, depth, alpha, all_ops in ((3, 3, -1, 1.0, True), (10, 2, 2, 0.4, False), (1, 4, 0, 3.0, True)):
        transform = Mixer(severity, width, depth, alpha, all_ops)
        numbers = {"severity": severity, "width": width, "depth": depth, "alpha": alpha, "all_ops": all_ops,
                   "picture": [], "first": [], "steps": [], "op": []}
        ops = []

        def note(img, name, magnitude, **_):
            ops.append((name, magnitude))
            return img

        autoaugment._apply_op = note
        for _ in range(COUNT):
            ops.clear()
            transform(image)
            shares, weights = transform.drawn
            numbers["picture"].append(shares[0])
            numbers["first"].append(weights[0] * shares[1])
            numbers["steps"].append(sum(name != "Rotate" or magnitude != 0.0 for name, magnitude in ops))
            name, magnitude = ops[0]
            numbers["op"].append(1000.0 * OPS.index(name) + round(magnitude * 100.0) / 100.0)
        found.append(numbers)
    return found


def mixes(images):
    """Mixtures with torchvision's code: with its PIL operations, and as it is, with tensor operations."""
    found = []
    fill = [9, 80, 200]
    for number, image in enumerate(images):
        for depth in (1, 2, 3):
            for severity in (3, 10):
                ops = []

                def on_pil(tensor, name, magnitude, interpolation, fill):
                    ops.append([name, magnitude])
                    one = apply_op(F.to_pil_image(tensor[0]), name, magnitude, interpolation=interpolation, fill=fill)
                    return F.pil_to_tensor(one)[None]

                transform = Mixer(severity, 3, depth, fill=fill if image.mode == "RGB" else fill[:1])
                autoaugment._apply_op = on_pil
                torch.manual_seed(number)
                after = transform(image)
                shares, weights = (torch.tensor(drawn) for drawn in transform.drawn)
                weights = (weights * shares[1]).tolist()
                autoaugment._apply_op = apply_op
                torch.manual_seed(number)
                name = f"mix{len(found)}"
                found.append({
                    "in": raw_file(folder, f"{name}.in", image), "out": raw_file(folder, f"{name}.out", after),
                    "tensors": raw_file(folder, f"{name}.tensors", transform(image)), "weight": shares[0].item(),
                    "chains": [{"weight": weights[i], "ops": ops[i * depth : (i + 1) * depth]} for i in range(3)]})
    return found


torch.manual_seed(0)
photo = picture(61, 47, 0)
rand, trivial, mix = T.RandAugment(), T.TrivialAugmentWide(), T.AugMix()
tables = {
    "policies": {name: transform.policies for name, transform in POLICIES.items()},
    "auto_spaces": [space(POLICIES["imagenet"], 10, width, height) for width, height in ((331, 331), (224, 160), (61, 47))],
    "rand_spaces": [space(rand, bins, width, height) for bins in (2, 10, 31) for width, height in ((331, 224), (61, 47))],
    "trivial_spaces": [space(trivial, bins, 61, 47) for bins in (2, 7, 31)],
    "mix_spaces": [space(mix, 10, width, height) for width, height in ((331, 224), (61, 47))],
    "in": raw_file(folder, "in.raw", photo),
    "cases": cases(photo, {name: (values.reshape(-1).tolist(), signed)
                           for name, (values, signed) in POLICIES["imagenet"]._augmentation_space(10, (47, 61)).items()}),
    "drawn": {name: drawn(transform, photo) for name, transform in [*POLICIES.items(), ("rand", rand), ("trivial", trivial)]},
    "mixtures": mixtures(),
    "mixes": mixes([photo, photo.convert("L"), picture(5, 3, 2), picture(1, 9, 4), picture(40, 40, 5)]),
}
(folder / "tables.json").write_text(json.dumps(tables))
