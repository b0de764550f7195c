"""torchvision's models with weights of their own, for models_parity_test.cpp.

models.py FOLDER: for each model FOLDER/NAME.pt, its state dict, and FOLDER/NAME.expected.pt: the names of its
parameters and buffers, digests of its first weights for seed 5, inputs and logits, and for some models the gradients
and the state dict after one training step.
"""
import sys

import torch
from torch import nn
from torchvision import models
from torchvision.models import vision_transformer

SMALL_VIT = dict(image_size=32, patch_size=8, num_layers=12, num_heads=3, hidden_dim=192, mlp_dim=768, num_classes=10)
# The size of the pictures, whether a step is compared, and the model.
MODELS = {
    "resnet18": (64, True, lambda: models.resnet18(num_classes=10)),
    "resnet34": (64, False, lambda: models.resnet34()),
    "resnet50": (64, True, lambda: models.resnet50(num_classes=10)),
    "resnet101": (64, False, lambda: models.resnet101()),
    "mobilenet_v3_small": (64, True, lambda: models.mobilenet_v3_small(num_classes=10)),
    "vit_tiny": (32, True, lambda: vision_transformer.VisionTransformer(**SMALL_VIT)),
    "vit_b_16": (224, False, lambda: models.vit_b_16()),
}


def digest(tensor):
    """One number that says whether two tensors have the same elements in the same places, from some of them."""
    flat = tensor.detach().flatten()[::61].double()
    return float((flat * torch.cos(torch.arange(flat.numel(), dtype=torch.double))).sum())


def settle(model, generator, size):
    """Gives the model weights that are not those of the beginning, and running statistics that fit them."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
        norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.momentum = 1.0
        if norms:
            model(torch.randn(8, 3, size, size, generator=generator))
        for norm, momentum in zip(norms, momenta):
            norm.momentum = momentum


def train(model, generator, size):
    x, y = torch.randn(4, 3, size, size, generator=generator), torch.tensor([0, 3, 9, 1])
    model.train()
    torch.manual_seed(7)  # of dropout
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    optimizer.step()
    return {"x": x, "y": y, "loss": loss.item(), "gradients": gradients, "after": model.state_dict()}


def main(folder):
    for number, (name, (size, with_step, make)) in enumerate(MODELS.items()):
        torch.manual_seed(5)
        model = make()
        expected = {"parameters": [key for key, _ in model.named_parameters()],
                    "buffers": [key for key, _ in model.named_buffers()],
                    "digests": {key: digest(tensor) for key, tensor in model.named_parameters()}}
        generator = torch.Generator().manual_seed(number)
        settle(model, generator, size)
        state = model.state_dict()
        torch.save(state, f"{folder}/{name}.pt")
        model.eval()
        expected["x"] = torch.randn(1 if size > 100 else 3, 3, size, size, generator=generator)
        with torch.no_grad():
            expected["logits"] = model(expected["x"])
        if with_step:
            expected["step"] = train(model, generator, size)
        torch.save(expected, f"{folder}/{name}.expected.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1])
