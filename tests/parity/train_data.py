"""train_data.py PICTURE: what PyTorch and torchvision give for the data of `lockstep train`, one line each.

The indices that data.validation_share takes; the losses of data.class_balance: weights, with label smoothing, for
labels and for mixed labels; the order of data.class_balance: sampling; numbers of PICTURE after the transforms of
torchvision's reference evaluation.
"""
import sys

import torch
from PIL import Image
from torch.nn.functional import cross_entropy
from torch.utils.data import WeightedRandomSampler, random_split
from torchvision import transforms


def main(picture):
    labels = torch.tensor([0] * 10 + [1] * 7)
    taken = []
    for number in (0, 1):
        indices = (labels == number).nonzero().flatten().tolist()
        count = round(0.3 * len(indices))
        part, _ = random_split(indices, [count, len(indices) - count], torch.Generator().manual_seed(3 + number))
        taken += list(part)
    print(*sorted(taken))
    counts = labels.bincount().double()
    weights = (len(labels) / (2 * counts)).float()
    scores = torch.arange(8.0).reshape(4, 2).sin()
    target = torch.tensor([0, 1, 1, 0])
    print(cross_entropy(scores, target, weight=weights, label_smoothing=0.1).item())
    mixed = torch.nn.functional.one_hot(target, 2).float() * 0.7 + 0.15
    print(cross_entropy(scores, mixed, weight=weights, label_smoothing=0.1).item())
    sampler = WeightedRandomSampler((1 / counts)[labels], len(labels), generator=torch.Generator().manual_seed(5))
    print(*sampler)
    prepare = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor(),
                                  transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
    sample = prepare(Image.open(picture).convert("RGB"))
    print(sample.mean().item(), sample[0, 0, 0].item(), sample[2, 223, 100].item())


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
