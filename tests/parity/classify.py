"""classify.py WEIGHTS PICTURE: makes both files, and prints what examples/pretrained prints for them."""
import sys

import torch
from PIL import Image
from torchvision import models, transforms


def main(weights, picture):
    torch.manual_seed(4)
    model = models.mobilenet_v3_small(num_classes=30)
    with torch.no_grad():  # running statistics and a last layer that keep the logits far apart
        for norm in model.modules():
            if isinstance(norm, torch.nn.BatchNorm2d):
                norm.momentum = 1.0
        model(torch.randn(8, 3, 64, 64))
        model.classifier[3].weight.mul_(5)
    model.eval()
    torch.save(model.state_dict(), weights)
    pixels = (torch.rand(9, 12, 3) * 255).to(torch.uint8)
    Image.fromarray(pixels.numpy()).resize((400, 300)).save(picture)
    prepare = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor(),
                                  transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
    with torch.no_grad():
        values, classes = model(prepare(Image.open(picture)).unsqueeze(0))[0].topk(5)
    for value, number in zip(values.tolist(), classes.tolist()):
        print(f"class {number}: {value:.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
