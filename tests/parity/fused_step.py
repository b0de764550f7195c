"""Steps of PyTorch's optimizers with fused=True, for fused_step_parity_test.cpp, which has the same cases.

fused_step.py OUT: for each case and dtype the parameters after STEPS steps and the state of the optimizer
"""
import sys

import torch

STEPS = 10
# The third parameter has no gradient, the last one has its elements in another order.
SIZES = [(1,), (7,), (33,), (17, 31), (), (4099,), (4, 3, 5, 5)]
UNUSED, CHANNELS_LAST = 2, 6

SGD, ADAM, ADAMW, ADAGRAD = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad
CASES = {
    "sgd": (SGD, {"lr": 0.1}),
    "sgd_momentum": (SGD, {"lr": 0.1, "momentum": 0.9}),
    "sgd_dampening": (SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    "sgd_nesterov": (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "adam": (ADAM, {"lr": 0.01}),
    "adam_decay": (ADAM, {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}),
    "adam_amsgrad": (ADAM, {"lr": 0.01, "amsgrad": True}),
    "adamw": (ADAMW, {"lr": 0.01}),
    "adamw_amsgrad": (ADAMW, {"lr": 0.01, "weight_decay": 0.3, "amsgrad": True}),
    "adagrad": (ADAGRAD, {"lr": 0.1}),
    "adagrad_decay": (ADAGRAD, {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5}),
}


def random(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def run(kind, options, dtype):
    parameters = [torch.nn.Parameter(random(shape, 7 + i).to(dtype)) for i, shape in enumerate(SIZES)]
    parameters[CHANNELS_LAST].data = parameters[CHANNELS_LAST].data.contiguous(memory_format=torch.channels_last)
    middle = len(parameters) // 2
    groups = [{"params": parameters[:middle]}, {"params": parameters[middle:], "lr": options["lr"] / 3}]
    optimizer = kind(groups, fused=True, **options)
    for step in range(STEPS):
        for i, parameter in enumerate(parameters):
            if i != UNUSED:
                parameter.grad = torch.empty_like(parameter).copy_(random(parameter.shape, 1000 * (step + 1) + i)).detach()
        optimizer.step()
    return {"parameters": [parameter.detach() for parameter in parameters], "optimizer": optimizer.state_dict()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.save({f"{case} {name}": run(*CASES[case], dtype) for case in CASES
                for name, dtype in (("float", torch.float), ("double", torch.double))}, sys.argv[1])
