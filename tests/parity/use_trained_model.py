"""use_trained_model.py MODEL STATE SCRIPT FOLDER: the program of docs/using_models.md, with 32 x 32 pictures.

MODEL is the model.safetensors of a training of resnet18, STATE what `lockstep checkpoint convert` makes of it,
SCRIPT what `lockstep checkpoint export` does. Prints a line for each picture of FOLDER: path, class, probability.
"""
import json
import struct
import sys
from pathlib import Path

import torch
from PIL import Image
from torchvision import models, transforms


def main(model_file, state, script, folder):
    with open(model_file, "rb") as file:
        facts = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))["__metadata__"]
    classes = facts["lockstep.classes"].splitlines()
    model = models.resnet18(num_classes=len(classes))
    model.load_state_dict(torch.load(state, weights_only=True))
    model.eval()
    prepare = transforms.Compose([transforms.ToTensor(), transforms.Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4])])
    paths = sorted(Path(folder).rglob("*.ppm"))
    pictures = torch.stack([prepare(Image.open(path).convert("RGB")) for path in paths])
    with torch.no_grad():
        scores = model(pictures)
    extra = {"lockstep.classes": ""}
    with torch.no_grad():
        torch.testing.assert_close(torch.jit.load(script, _extra_files=extra)(pictures), scores)
    assert extra["lockstep.classes"].decode().splitlines() == classes
    best = scores.softmax(1).max(1)
    for path, probability, number in zip(paths, best.values.tolist(), best.indices.tolist()):
        print(path, classes[number], probability)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
