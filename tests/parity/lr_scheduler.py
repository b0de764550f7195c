"""PyTorch's schedulers over 100 steps, for lr_scheduler_parity_test.cpp, which has the same cases.

lr_scheduler.py write OUT    OUT: for each case the rates and momenta of all groups after each step, and the states of
                             scheduler and optimizer after STOP steps; "together": rates and momenta of several schedules
lr_scheduler.py go_on IN     goes on from the states that C++ has saved in IN, and compares with an uninterrupted run
"""
import copy
import sys
import warnings

import torch
from torch.optim import lr_scheduler as lrs

STEPS, STOP = 100, 37
RATES = [0.1, 0.03, 1e-4]


def sequence(optimizer, *parts, milestones):
    return lrs.SequentialLR(optimizer, [part(optimizer) for part in parts], milestones)


def warmup_cosine(o):
    return sequence(o, lambda o: lrs.LinearLR(o, 0.1, 1.0, 10), lambda o: lrs.CosineAnnealingLR(o, 90), milestones=[10])


def nested(o):
    inner = sequence(o, lambda o: lrs.ConstantLR(o, 0.5, 5), lambda o: lrs.ExponentialLR(o, 0.9), milestones=[8])
    return lrs.SequentialLR(o, [inner, lrs.CosineAnnealingLR(o, 40, 1e-5)], [30])


# The optimizer and the scheduler.
CASES = {
    "step": ("sgd", lambda o: lrs.StepLR(o, 7, 0.7)),
    "multi_step": ("sgd", lambda o: lrs.MultiStepLR(o, [10, 40, 40, 77], 0.3)),
    "constant": ("sgd", lambda o: lrs.ConstantLR(o, 0.4, 12)),
    "linear": ("sgd", lambda o: lrs.LinearLR(o, 0.05, 0.9, 60)),
    "exponential": ("sgd", lambda o: lrs.ExponentialLR(o, 0.97)),
    "polynomial": ("sgd", lambda o: lrs.PolynomialLR(o, 60, 1.7)),
    "cosine": ("sgd", lambda o: lrs.CosineAnnealingLR(o, 30, 1e-3)),
    "lambda": ("sgd", lambda o: lrs.LambdaLR(o, lambda epoch: 1 / (1 + epoch))),
    "one_cycle": ("sgd", lambda o: lrs.OneCycleLR(o, [0.4, 0.2, 0.1], total_steps=100)),
    "one_cycle_linear": ("adam", lambda o: lrs.OneCycleLR(o, 0.4, total_steps=120, pct_start=0.21, base_momentum=0.8,
                                                          anneal_strategy="linear", three_phase=True)),
    "one_cycle_rates": ("adamw", lambda o: lrs.OneCycleLR(o, 0.4, total_steps=100, cycle_momentum=False, div_factor=3.0,
                                                          final_div_factor=77.0)),
    "one_cycle_rmsprop": ("rmsprop", lambda o: lrs.OneCycleLR(o, 0.01, total_steps=101, max_momentum=[0.9, 0.8, 0.7])),
    "warmup_cosine": ("sgd", warmup_cosine),
    "three": ("adam", lambda o: sequence(o, lambda o: lrs.ConstantLR(o, 0.2, 5), lambda o: lrs.ExponentialLR(o, 0.9),
                                         lambda o: lrs.StepLR(o, 10, 0.5), milestones=[15, 50])),
    "others": ("sgd", lambda o: sequence(o, lambda o: lrs.StepLR(o, 6, 0.4),
                                         lambda o: lrs.MultiStepLR(o, [0, 20], 0.1), lambda o: lrs.PolynomialLR(o, 40, 2.0),
                                         lambda o: lrs.LinearLR(o), milestones=[20, 60, 90])),
    "warmup_one_cycle": ("sgd", lambda o: sequence(o, lambda o: lrs.LinearLR(o, 0.1, total_iters=15),
                                                   lambda o: lrs.OneCycleLR(o, 0.2, total_steps=90), milestones=[15])),
    "lambda_later": ("sgd", lambda o: sequence(o, lambda o: lrs.ConstantLR(o, 0.1, 20),
                                               lambda o: lrs.LambdaLR(o, lambda e: 2.0 / (2 + e)), milestones=[50])),
    "nested": ("sgd", nested),
}


def together(o):
    return lrs.ChainedScheduler([lrs.ConstantLR(o, 0.1, 20), lrs.ExponentialLR(o, 0.98), lrs.CosineAnnealingLR(o, 50)])


def make(kind, scheduler):
    tensors = [torch.nn.Parameter(torch.zeros(1)) for _ in RATES]
    groups = [{"params": [tensor], "lr": rate} for tensor, rate in zip(tensors, RATES)]
    optimizer = {"sgd": lambda: torch.optim.SGD(groups, momentum=0.5), "adam": lambda: torch.optim.Adam(groups),
                 "adamw": lambda: torch.optim.AdamW(groups), "rmsprop": lambda: torch.optim.RMSprop(groups)}[kind]()
    return optimizer, scheduler(optimizer)


def step(optimizer, scheduler):
    optimizer.step()
    scheduler.step()


def rates_and_momenta(optimizer):
    groups = optimizer.param_groups
    return [group["lr"] for group in groups] + [group["betas"][0] if "betas" in group else group["momentum"]
                                                for group in groups]


def run(kind, schedule):
    optimizer, scheduler = make(kind, schedule)
    rows, states = [rates_and_momenta(optimizer)], None
    for number in range(1, STEPS + 1):
        step(optimizer, scheduler)
        rows.append(rates_and_momenta(optimizer))
        if number == STOP:
            states = copy.deepcopy((scheduler.state_dict(), optimizer.state_dict()))
    return rows, states


def write(path):
    result = {}
    for case in CASES:
        rows, (scheduler, optimizer) = run(*CASES[case])
        result[case] = {"rows": torch.tensor(rows, dtype=torch.double), "scheduler": scheduler, "optimizer": optimizer}
    result["together"] = torch.tensor(run("sgd", together)[0], dtype=torch.double)
    torch.save(result, path)


def go_on(path):
    saved = torch.load(path, weights_only=True)
    assert list(saved) == list(CASES), list(saved)
    for case, states in saved.items():
        optimizer, scheduler = make(*CASES[case])
        optimizer.load_state_dict(states["optimizer"])
        scheduler.load_state_dict(states["scheduler"])
        rows, _ = run(*CASES[case])
        for number in range(STOP + 1, STEPS + 1):
            step(optimizer, scheduler)
            assert rates_and_momenta(optimizer) == rows[number], (case, number, rates_and_momenta(optimizer), rows[number])
    print("all well")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    {"write": write, "go_on": go_on}[sys.argv[1]](sys.argv[2])
