"""Trains a small model with torch.nn.parallel.DistributedDataParallel over Gloo, once for each case.

ddp_options.py CASES OUT WORLD: CASES is a file with a case on each line, "key=value ..." with the keys that `Case`
names. OUT/pythons-RANK, for the first and the last rank, get the parameters (and running statistics) of all cases as
"CASE_NUMBER/NAME".
"""
import contextlib
import os
import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from ranks import run_ranks
from tensor_files import write_safetensors

STEPS, MANY_STEPS = 40, 100
IS_WHOLE_GRID = "LOCKSTEP_TEST_GRID" in os.environ
INPUTS, WIDTH, OUTPUTS, BATCH = 48, 32, 16, 4
WORDS = 20


@dataclass
class Case:
    world: int = 1
    hook: str = "none"  # or those of `hook_of`
    accumulate: int = 1
    join: str = "no"  # or "initial", "active": what gradients are divided by; or "throws" (on early termination)
    static: int = 0
    bucket: float = 25.0
    view: int = 1
    ignore: int = 0
    clip: float = 0.0
    ema: int = 0
    precision: str = "float"  # or "autocast", "scaled" (autocast in half, with loss scaling), "masters"
    weighted: int = 0  # batches of different sizes, each sample with the same weight
    norm: str = "none"  # or "plain", "sync": batch normalisation
    unused: str = "no"  # or "always", "ranks": who leaves out the layer `extra`
    optimizer: str = "sgd"  # or "adam", "zero_sgd", "zero_adam"
    group: str = "world"  # or "pairs": ranks 0 and 1, 2 and 3
    buffers: int = 1  # broadcast_buffers
    init_sync: int = 1
    sparse: int = 0  # a layer whose gradient is sparse
    device_ids: int = 0  # ours alone: the wrapper takes none on the CPU
    checkpoint: str = "no"  # or "whole", "segments", "shared", "nested", "plain": activation checkpointing

    @staticmethod
    def parse(line):
        case = Case()
        for item in line.split():
            key, value = item.split("=")
            setattr(case, key, type(getattr(case, key))(value))
        return case

    # These three are in ddp_options_parity_test.cpp too.
    @property
    def steps_when_finished(self):
        return self.join in ("initial", "active") and self.optimizer.startswith("zero")

    @property
    def dtype(self):
        if self.precision != "float":
            return torch.float32
        differs = self.world > 2 or self.norm != "none" or self.optimizer.endswith("adam") or self.clip or self.sparse
        differs = differs or self.checkpoint == "shared"
        return torch.float64 if differs else torch.float32

    @property
    def steps(self):
        has_low_rank = self.hook.startswith("power")
        # Of three columns the last is almost nothing after 40 steps, and what there is of it comes from last digits: PyTorch
        # with a start that differs by 4e-16 ends 7e-7 away after 100 steps (1e-14 after 40), 1000 times more each 20 steps.
        three_columns = self.hook == "power3_shapes" and (self.world > 2 or self.dtype == torch.float64)
        magnifies = three_columns or (has_low_rank and self.optimizer.endswith("adam"))
        return MANY_STEPS if IS_WHOLE_GRID and not magnifies else STEPS

    # Results are the same without the promise. PyTorch fails if a static graph begins with a pass that sends nothing.
    # With it and find_unused_parameters, ranks that have finished in a join would send more than the others.
    @property
    def is_static(self):
        return self.accumulate == 1 and self.unused != "ranks" and (bool(self.static) or self.checkpoint == "shared")

    # Results are the same without backward passes inside the backward pass. With them PyTorch does not see which
    # parameters are unused, and needs the promise if segments share one.
    @property
    def is_reentrant(self):
        return self.checkpoint != "plain" and (self.is_static or self.unused == "no" and self.checkpoint != "shared")


class Feedback:
    """Our error feedback for compression, written out."""

    def __init__(self, dtype, group):
        self.dtype, self.group, self.errors = dtype, group, {}

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
        compressed.div_(dist.get_world_size(self.group))
        dist.all_reduce(compressed, group=self.group)
        future = torch.futures.Future()
        future.set_result(buffer.copy_(compressed))
        return future


def power_sgd(group, **options):
    state = powerSGD_hook.PowerSGDState(group, **{"start_powerSGD_iter": 2, "random_seed": 3, **options})

    def in_order(state, bucket):
        # Without waiting, buckets would start their second message in an order that differs between ranks.
        future = powerSGD_hook.powerSGD_hook(state, bucket)
        future.wait()
        return future

    return state, in_order


def keep(_, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def hook_of(name, group):
    # DDP refuses functions that are called bf16_compress_hook without CUDA.
    hooks = {
        "noop": lambda: (None, keep),
        "bf16": lambda: (group, lambda state, bucket: default_hooks.bf16_compress_hook(state, bucket)),
        "fp16": lambda: (group, lambda state, bucket: default_hooks.fp16_compress_hook(state, bucket)),
        "bf16_feedback": lambda: (None, Feedback(torch.bfloat16, group)),
        "wrapped": lambda: (None, default_hooks.fp16_compress_wrapper(lambda _, b: default_hooks.allreduce_hook(group, b))),
        "power1": lambda: power_sgd(group),
        "power2_cold": lambda: power_sgd(
            group, matrix_approximation_rank=2, use_error_feedback=False, warm_start=False,
            orthogonalization_epsilon=1e-8),
        "power3_shapes": lambda: power_sgd(
            group, matrix_approximation_rank=3, min_compression_rate=1, batch_tensors_with_same_shape=True),
    }
    state, hook = hooks[name]()
    if isinstance(hook, Feedback):
        feedback = hook

        def hook(state, bucket):
            return feedback(state, bucket)

    return state, hook


class SyncBatchNorm(nn.BatchNorm1d):
    """Synchronised batch normalisation in doubles. PyTorch's own layer takes no CPU tensors."""

    group = None  # that of the case. Not the wrapper's, whose operations come in another order where ranks use different layers

    def forward(self, input):
        return _SyncBatchNorm.apply(input, self.weight, self.bias, self)


class _SyncBatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(context, input, weight, bias, layer):
        x = input.double()
        sums = torch.cat([x.sum(0), x.square().sum(0), torch.tensor([len(x)], dtype=torch.double)])
        dist.all_reduce(sums, group=SyncBatchNorm.group)
        mean, square, count = sums[:WIDTH] / sums[-1], sums[WIDTH:-1] / sums[-1], sums[-1]
        variance = square - mean.square()
        for running, now in (layer.running_mean, mean), (layer.running_var, variance * count / (count - 1)):
            running.mul_(1 - layer.momentum).add_(layer.momentum * now)
        scale = (variance + layer.eps).rsqrt()
        normalised = (x - mean) * scale
        context.save_for_backward(normalised, scale, weight)
        context.count = count
        return (normalised * weight + bias).to(input.dtype)

    @staticmethod
    def backward(context, grad_output):
        normalised, scale, weight = context.saved_tensors
        dy = grad_output.double()
        own = torch.stack([(dy * normalised).sum(0), dy.sum(0)])
        both = own.clone()
        dist.all_reduce(both, group=SyncBatchNorm.group)
        dx = weight * scale * (dy - (normalised * both[0] + both[1]) / context.count)
        return dx.to(grad_output.dtype), own[0].to(weight.dtype), own[1].to(weight.dtype), None


class Net(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.checkpoint, self.is_reentrant = case.checkpoint, case.is_reentrant
        self.first = nn.Linear(INPUTS, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.third = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, OUTPUTS)
        if case.unused != "no":
            self.extra = nn.Linear(WIDTH, OUTPUTS)
        self.table = nn.Embedding(WORDS, WIDTH, sparse=True) if case.sparse else None
        self.norm = None
        if case.norm != "none":
            self.norm = SyncBatchNorm(WIDTH) if case.norm == "sync" else nn.BatchNorm1d(WIDTH)

    def forward(self, x, with_extra):
        def middle(x):
            return torch.tanh(self.third(torch.tanh(self.second(x))))

        def back(x):
            if self.checkpoint == "shared":
                x = torch.tanh(self.second(x))
            return self.last(x) + self.extra(x) if with_extra else self.last(x)

        def segment(x, run):
            return checkpoint(run, x, use_reentrant=self.is_reentrant)

        if self.checkpoint == "no":
            return back(middle(self.front(x)))
        x.requires_grad_()
        if self.checkpoint == "whole":
            return segment(x, lambda x: back(middle(self.front(x))))
        if self.checkpoint == "nested":
            return segment(x, lambda x: back(segment(x, lambda x: middle(segment(x, self.front)))))
        return segment(segment(segment(x, self.front), middle), back)

    def front(self, input):
        x = torch.tanh(self.first(input))
        if self.table is not None:
            x = x + 2 * self.table((input[:, 0].abs() * 8).long().clamp(max=WORDS - 1))
        return x if self.norm is None else self.norm(x)


class Groups:
    """The groups of this rank by the name of their kind: those that train, and others of the same ranks for layers."""

    def __init__(self, rank, world):
        self.training = {"world": None}
        self.layers = {"world": dist.new_group()}
        for first in range(0, world - 1, 2):
            both = [dist.new_group([first, first + 1]) for _ in range(2)]
            if rank in (first, first + 1):
                self.training["pairs"], self.layers["pairs"] = both


def make_model(case, rank):
    torch.manual_seed(1234 + rank)
    model = Net(case).to(torch.bfloat16 if case.precision == "masters" else case.dtype)
    if model.norm is not None and case.precision == "masters":
        model.norm.float()
    return model


def batch(case, rank, step, part):
    generator = torch.Generator().manual_seed(10000 * rank + 10 * step + part)
    size = BATCH + (rank if case.weighted else 0)
    both = torch.randn(size, INPUTS + OUTPUTS, generator=generator).to(case.dtype)
    return both[:, :INPUTS], both[:, INPUTS:]


def loss_of(case, ddp, group, rank, step, part):
    x, y = batch(case, rank, step, part)
    if case.precision == "masters":
        x = x.to(torch.bfloat16)
    with_extra = case.unused == "ranks" and (step + rank) % 3 != 0
    autocast_dtype = torch.float16 if case.precision == "scaled" else torch.bfloat16
    with torch.autocast("cpu", autocast_dtype, enabled=case.precision in ("autocast", "scaled")):
        output = ddp(x, with_extra)
    errors = (output.to(y.dtype) - y).square()
    if not case.weighted:
        return errors.mean()
    total = torch.tensor([len(x)])
    dist.all_reduce(total, group=group)
    return errors.mean(1).sum() * (dist.get_world_size(group) / total.item())


class Masters:
    """Float copies of the parameters, on which the optimizer works."""

    def __init__(self, model):
        self.parameters = [(p, p.detach().float().requires_grad_()) for p in model.parameters()]

    def before_step(self):
        for parameter, master in self.parameters:
            master.grad = None if parameter.grad is None else parameter.grad.float()

    def after_step(self):
        with torch.no_grad():
            for parameter, master in self.parameters:
                parameter.copy_(master)


def wrap(case, model, group):
    if case.ignore:
        nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["second.weight"])
    # Newer releases warn of this option.
    buffers = {} if case.buffers else {"broadcast_buffers": False}
    ddp = nn.parallel.DistributedDataParallel(
        model,
        process_group=group,
        init_sync=bool(case.init_sync),
        **buffers,
        bucket_cap_mb=case.bucket,
        static_graph=case.is_static,
        find_unused_parameters=case.unused != "no" and not case.is_static,
        gradient_as_bucket_view=bool(case.view),
    )
    if case.hook != "none":
        ddp.register_comm_hook(*hook_of(case.hook, group))
    return ddp


def make_optimizer(name, parameters, group):
    kind, options = (torch.optim.Adam, {"lr": 0.01}) if name.endswith("adam") else (torch.optim.SGD, {"lr": 0.05, "momentum": 0.5})
    if name.startswith("zero"):
        return ZeroRedundancyOptimizer(parameters, optimizer_class=kind, process_group=group, **options)
    return kind(parameters, **options)


class Steps(Joinable):
    """Ranks that have finished take the steps of the others, as with ZeroRedundancyOptimizer's own hook.

    That one steps with whatever gradients are there, those of the rank's last pass, and also after passes under no_sync.
    """

    def __init__(self, ddp, take_step):
        super().__init__()
        self.ddp, self.take_step = ddp, take_step

    def join_hook(self, **_):
        steps = self

        class Hook(JoinHook):
            def main_hook(self):
                if steps.ddp.require_forward_param_sync:  # not under no_sync
                    steps.share_gradients()
                    steps.take_step()

        return Hook()

    join_device = property(lambda self: torch.device("cpu"))
    join_process_group = property(lambda self: self.ddp.process_group)

    def share_gradients(self):
        """All ranks get those of the highest rank, which has the most inputs. All with inputs have the same."""
        group = self.ddp.process_group
        source = dist.get_global_rank(group, dist.get_world_size(group) - 1)
        for parameter in self.ddp.parameters():
            if parameter.grad is not None:
                dist.broadcast(parameter.grad, source, group=group)


def joined(case, ddp, steps):
    if case.join == "no":
        return contextlib.nullcontext()
    if case.join == "throws":
        return ddp.join(throw_on_early_termination=True)
    joinables = [ddp, steps] if case.steps_when_finished else [ddp]
    return Join(joinables, divide_by_initial_world_size=case.join == "initial")


def train(case, rank, group):
    """Returns the trained tensors by name."""
    model = make_model(case, rank)
    ddp = wrap(case, model, group)
    masters = Masters(model) if case.precision == "masters" else None
    trained = [master for _, master in masters.parameters] if masters else list(model.parameters())
    optimizer = make_optimizer(case.optimizer, trained, group)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=20, enabled=case.precision == "scaled")
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)) if case.ema else None

    def take_step():
        if masters:
            masters.before_step()
        if case.precision == "scaled":
            # fp16_compress_wrapper leaves gradients in half where this rank has not used a layer and they are no views
            # of buckets. The scaler takes none in half.
            for parameter in trained:
                if parameter.grad is not None:
                    parameter.grad = parameter.grad.to(parameter.dtype)
        if case.clip:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(trained, case.clip)
        scaler.step(optimizer)
        scaler.update()
        if masters:
            masters.after_step()
        if ema:
            ema.update_parameters(model)

    steps = Steps(ddp, take_step)

    def step(number):
        model.zero_grad()
        for part in range(case.accumulate):
            last = part + 1 == case.accumulate
            with contextlib.nullcontext() if last else ddp.no_sync():
                scaler.scale(loss_of(case, ddp, group, rank, number, part) / case.accumulate).backward()
        if case.steps_when_finished:
            steps.share_gradients()
        take_step()

    uneven = case.join != "no"
    try:
        with joined(case, ddp, steps):
            for number in range(case.steps - (7 * (dist.get_world_size() - 1 - rank) if uneven else 0)):
                step(number)
    except RuntimeError as error:
        if case.join != "throws" or "exhausted" not in str(error):
            raise
    names = [name for name, _ in model.named_parameters()]
    result = dict(zip(names, list(ema.module.parameters()) if ema else trained))
    if not ema:
        # As in the next forward pass; ours are sent in the backward pass. Other joins end with the buffers of one rank.
        if case.buffers and case.norm != "none" and case.join in ("no", "throws"):
            ddp._sync_buffers()
        result.update((name, buffer) for name, buffer in model.named_buffers() if buffer.is_floating_point())
    return result


def train_cases(rank, world, cases, folder):
    groups = Groups(rank, world)
    tensors = {}
    for number, case in enumerate(cases):
        SyncBatchNorm.group = groups.layers[case.group]
        try:
            trained = train(case, rank, groups.training[case.group])
        except Exception as error:
            error.add_note(f"rank {rank}, case {number}: {case}")
            raise
        for name, tensor in trained.items():
            tensors[f"{number}/{name}"] = tensor
    if rank in (0, world - 1):
        write_safetensors(f"{folder}/pythons-{rank}", tensors)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        all_cases = [Case.parse(line) for line in file]
    run_ranks(int(sys.argv[3]), "gloo", train_cases, all_cases, sys.argv[2])
