"""Trains a small model with torch.nn.parallel.DistributedDataParallel over Gloo, once for each case.

ddp_options.py CASES OUT WORLD...: CASES is a file with a case on each line, "key=value ..." with the keys that `Case`
names. OUT/WORLD.safetensors gets the parameters of all cases as "CASE_NUMBER/PARAMETER".
"""
import contextlib
import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ranks import run_ranks
from tensor_files import write_safetensors

STEPS, FEW_STEPS = 100, 40
INPUTS, OUTPUTS, BATCH = 48, 16, 4
LOCAL_WARMUP = 10


@dataclass
class Case:
    hook: str = "none"
    accumulate: int = 1
    join: str = "no"  # or "initial", "active": what gradients are divided by
    static: int = 0
    bucket: float = 25.0
    ignore: int = 0
    clip: float = 0.0
    ema: int = 0
    local: int = 0  # local SGD: the period of averages
    precision: str = "float"  # or "autocast", "masters"
    weighted: int = 0  # batches of different sizes, each sample with the same weight

    @staticmethod
    def parse(line):
        case = Case()
        for item in line.split():
            key, value = item.split("=")
            setattr(case, key, type(getattr(case, key))(value))
        return case


# PyTorch 2.15's batched hook calls this with a matrix, and its own check then wants three dimensions.
orthogonalize = powerSGD_hook._orthogonalize
powerSGD_hook._orthogonalize = lambda m, epsilon=0: orthogonalize(m if m.dim() == 3 else m.unsqueeze(0), epsilon)


class Feedback:
    """Our error feedback for compression, written out."""

    def __init__(self, dtype):
        self.dtype, self.errors = dtype, {}

    def __call__(self, _, bucket):
        # By parameter: after its first pass the wrapper builds other buckets.
        buffer = bucket.buffer()
        both = list(zip(bucket.parameters(), bucket.gradients()))
        for parameter, gradient in both:
            gradient.add_(self.errors.get(parameter, 0))
        compressed = buffer.to(self.dtype)
        at = 0
        for parameter, gradient in both:
            self.errors[parameter] = gradient - compressed[at : at + gradient.numel()].view_as(gradient)
            at += gradient.numel()
        compressed.div_(dist.get_world_size())
        dist.all_reduce(compressed)
        future = torch.futures.Future()
        future.set_result(buffer.copy_(compressed))
        return future


def power_sgd(hook=powerSGD_hook.powerSGD_hook, **options):
    state = powerSGD_hook.PowerSGDState(None, **{"start_powerSGD_iter": 2, "random_seed": 3, **options})

    def in_order(state, bucket):
        # Without waiting, buckets would start their second message in an order that differs between ranks.
        future = hook(state, bucket)
        future.wait()
        return future

    return state, in_order


def keep(_, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def hook_of(name):
    # DDP refuses functions that are called bf16_compress_hook without CUDA.
    hooks = {
        "noop": lambda: (None, keep),
        "bf16": lambda: (None, lambda state, bucket: default_hooks.bf16_compress_hook(state, bucket)),
        "fp16": lambda: (None, lambda state, bucket: default_hooks.fp16_compress_hook(state, bucket)),
        "bf16_feedback": lambda: (None, Feedback(torch.bfloat16)),
        "wrapped": lambda: (None, default_hooks.fp16_compress_wrapper(lambda _, b: default_hooks.allreduce_hook(None, b))),
        "power1": lambda: power_sgd(),
        "power2_cold": lambda: power_sgd(
            matrix_approximation_rank=2, use_error_feedback=False, warm_start=False, orthogonalization_epsilon=1e-8),
        "power3_shapes": lambda: power_sgd(
            matrix_approximation_rank=3, min_compression_rate=1, batch_tensors_with_same_shape=True),
        "batched": lambda: power_sgd(hook=powerSGD_hook.batched_powerSGD_hook, matrix_approximation_rank=2),
    }
    state, hook = hooks[name]()
    if isinstance(hook, Feedback):
        feedback = hook

        def hook(state, bucket):
            return feedback(state, bucket)

    return state, hook


def make_model(dtype):
    torch.manual_seed(1234)
    model = nn.Sequential(
        nn.Linear(INPUTS, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, OUTPUTS))
    return model.to(dtype)


def batch(case, rank, step, part, dtype):
    generator = torch.Generator().manual_seed(10000 * rank + 10 * step + part)
    size = BATCH + (rank if case.weighted else 0)
    both = torch.randn(size, INPUTS + OUTPUTS, generator=generator).to(dtype)
    return both[:, :INPUTS], both[:, INPUTS:]


def loss_of(case, ddp, x, y):
    if case.precision == "masters":
        x = x.to(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16, enabled=case.precision == "autocast"):
        output = ddp(x)
    errors = (output.to(y.dtype) - y).square()
    if not case.weighted:
        return errors.mean()
    total = torch.tensor([len(x)])
    dist.all_reduce(total)
    return errors.mean(1).sum() * (dist.get_world_size() / total.item())


class Masters:
    """Float copies of the parameters, on which the optimizer works."""

    def __init__(self, model):
        self.parameters = [(p, p.detach().float().requires_grad_()) for p in model.parameters()]

    def before_step(self):
        for parameter, master in self.parameters:
            master.grad = parameter.grad.float()

    def after_step(self):
        with torch.no_grad():
            for parameter, master in self.parameters:
                parameter.copy_(master)


def wrap(case, model):
    if case.ignore:
        nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["2.weight"])
    # PyTorch fails if a static graph begins with a pass that sends nothing; results are the same without the promise.
    static = bool(case.static) and case.accumulate == 1
    ddp = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=case.bucket, static_graph=static)
    if case.hook != "none":
        ddp.register_comm_hook(*hook_of(case.hook))
    if case.local:
        state = post_localSGD_hook.PostLocalSGDState(None, None, LOCAL_WARMUP, post_local_gradient_allreduce=False)
        ddp.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    return ddp


def train(case, rank, dtype):
    """Returns the trained tensors by name."""
    model = make_model(torch.bfloat16 if case.precision == "masters" else dtype)
    ddp = wrap(case, model)
    masters = Masters(model) if case.precision == "masters" else None
    trained = [master for _, master in masters.parameters] if masters else list(model.parameters())
    optimizer = torch.optim.SGD(trained, lr=0.05, momentum=0.5)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)) if case.ema else None
    averager = PeriodicModelAverager(case.local, LOCAL_WARMUP) if case.local else None

    def step(number):
        model.zero_grad()
        for part in range(case.accumulate):
            last = part + 1 == case.accumulate
            with contextlib.nullcontext() if last else ddp.no_sync():
                (loss_of(case, ddp, *batch(case, rank, number, part, dtype)) / case.accumulate).backward()
        if masters:
            masters.before_step()
        if case.clip:
            torch.nn.utils.clip_grad_norm_(trained, case.clip)
        optimizer.step()
        if masters:
            masters.after_step()
        if averager:
            averager.average_parameters(model.parameters())
        if ema:
            ema.update_parameters(model)

    uneven = case.join != "no"
    steps = FEW_STEPS if case.hook == "power3_shapes" and dist.get_world_size() > 2 else STEPS
    joined = ddp.join(divide_by_initial_world_size=case.join == "initial") if uneven else contextlib.nullcontext()
    with joined:
        for number in range(steps - (7 * rank if uneven else 0)):
            step(number)
    names = [name for name, _ in model.named_parameters()]
    return dict(zip(names, list(ema.module.parameters()) if ema else trained))


def train_cases(rank, world, cases, path):
    tensors = {}
    for number, case in enumerate(cases):
        for name, parameter in train(case, rank, torch.float32 if world <= 2 else torch.float64).items():
            tensors[f"{number}/{name}"] = parameter
    if rank == 0:
        write_safetensors(path, tensors)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        all_cases = [Case.parse(line) for line in file]
    for size in sys.argv[3:]:
        run_ranks(int(size), "gloo", train_cases, all_cases, f"{sys.argv[2]}/{size}.safetensors")
