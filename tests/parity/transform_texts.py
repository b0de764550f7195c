"""Judges texts of transforms: transform_texts.py FILE, a JSON list. Prints JSON: for each text why torchvision refuses
it, or "", and the texts that it shows of its own transforms."""
import json
import sys
import warnings

import torch
from PIL import Image
from torchvision import transforms
from torchvision.transforms import v2

warnings.simplefilter("ignore")
PICTURE = Image.radial_gradient("L").resize((24, 24)).convert("RGB")
NAMES = {name: getattr(transforms, name) for name in dir(transforms)} | {"torch": torch, "v2": v2, "transforms": transforms}
ARGUMENTS = {
    "Resize": (8,), "CenterCrop": (8,), "RandomResizedCrop": (8,), "RandomCrop": (8,),
    "Pad": (2,), "RandomRotation": (30,), "RandomAffine": (30,),
    "GaussianBlur": (3,), "RandomPosterize": (3,), "RandomSolarize": (100,), "RandomAdjustSharpness": (2,)}
OTHERS = ["RandomHorizontalFlip", "RandomVerticalFlip", "ColorJitter", "Grayscale",
          "RandomGrayscale", "RandomInvert", "RandomAutocontrast", "RandomEqualize", "RandAugment", "TrivialAugmentWide",
          "ToTensor", "PILToTensor"]


def refusal(text: str) -> str:
    torch.manual_seed(0)
    try:
        eval(text, dict(NAMES))(PICTURE)  # pylint: disable=eval-used
    except (TypeError, ValueError, RuntimeError, LookupError) as error:
        return str(error) or type(error).__name__
    return ""


def shown() -> list[str]:
    texts = []
    for package in (transforms, v2):
        for name in [*ARGUMENTS, *OTHERS]:
            if hasattr(package, name):
                texts.append(repr(getattr(package, name)(*ARGUMENTS.get(name, ()))))
        texts.append(repr(package.Resize(8, transforms.InterpolationMode.NEAREST_EXACT)))
        texts.append(repr(package.ColorJitter(0.1, 0.2, (0.5, 1.5), 0.1)))
        floats = [package.Normalize([0.5], [0.5]), package.RandomErasing(), package.RandomErasing(value="random")]
        texts += [f"Compose([ToTensor(), {transform}])" for transform in floats]
    return texts


with open(sys.argv[1], encoding="utf-8") as file:
    asked = json.load(file)
print(json.dumps({"refusals": {text: refusal(text) for text in asked}, "shown": shown()}))
