"""Python's side of the files that Lockstep and Python exchange.

interchange.py write FOLDER              writes values.pt, values-legacy.pt, values-legacy4.pt, values-protocol4.pt, values-deflated.pt,
                                         weights.safetensors, foreign.pt and foreign-legacy.pt with objects beside a model,
                                         and a distributed checkpoint as the file that dcp_to_torch makes of it, dcp.pt
interchange.py compare FOLDER NAME...    compares each file with values.pt; NAME may end in .safetensors, or be dcp-copy.pt
interchange.py train OPTIMIZER IN OUT FIRST STEPS ...   trains from IN ("-": from the start) and saves to OUT
interchange.py halve OPTIMIZER IN HALVES LOADED ...   saves IN with its optimizer's tensors as bfloat16, and what an optimizer
                                         of float64 has after loading that
interchange.py distance A B ...          prints how far the models of each two training files are from one another
"""
import argparse
import collections
import pathlib
import sys
import zipfile

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from ranks import run_ranks
from tensor_files import read_safetensors, write_safetensors

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16, torch.int32,
          torch.int64, torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64,
          torch.float8_e4m3fn, torch.float8_e5m2]


def layouts(dtype):
    base = torch.arange(24).remainder(7).to(dtype).reshape(4, 6)
    return {"plain": base, "transposed": base.clone().t(), "sliced": base.clone()[1:3, ::2],
            "expanded": base.clone()[:1].expand(3, 6), "scalar": base.clone()[2, 3], "empty": base.clone()[:0],
            "last": base.reshape(1, 2, 3, 4).clone(memory_format=torch.channels_last)}


def values():
    tied = torch.arange(6.0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2))
    return {
        "tensors": {f"{dtype}".removeprefix("torch."): layouts(dtype) for dtype in DTYPES},
        "lazy": {"conj": torch.tensor([1 + 2j, 3 - 4j]).conj(), "neg": torch.tensor([1 + 2j, 3j]).conj().imag},
        "shared": [tied, tied, tied[2:5], tied.view(2, 3).t()],
        "model": model.state_dict(),
        "parameters": list(model.parameters()),
        "frozen": nn.Parameter(torch.ones(2), requires_grad=False),
        "scalars": [0, 1, 255, 256, 65536, -1, -2**31, 2**31, 2**62, -2**63, 2**63, 2**64 - 1, 1.5, float("inf"), -0.0, True, False, None],
        "text": ["", "gr\u00fc\u00df", "\U0001F600", "a\nb"],
        "complex": 1 + 2j,
        "nested": {"list": [[], [1, [2.0, ["x"]]]], "tuple": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)), "dict": {}},
        "keys": {0: "zero", -7: "minus", 2.5: "half", True: "yes", "": "empty"},
        "ordered": collections.OrderedDict([("b", 1), ("a", collections.OrderedDict(c=2))]),
        "size": torch.Size([2, 3]),
        "device": torch.device("cpu"),
        "again": (tied, {"tied": tied}),
        "long": list(range(3000)),
        "bytes": b"ascii",
    }


def foreign_values(model):
    """What trainers put beside a model, and torch.load(weights_only=True) refuses."""
    return {"args": argparse.Namespace(lr=0.1, layers=[1, 2]), "best": np.float64(0.5), "array": np.arange(3),
            "scheduler": {"anneal_func": torch.optim.lr_scheduler.OneCycleLR._annealing_cos, "last_epoch": 3},
            "sparse": torch.eye(3).to_sparse(), "set": frozenset([1]), "large": 2**80, "keys": {None: 1, (1, 2): 2},
            "history": collections.defaultdict(list, loss=[1.0]), "queue": collections.deque([1, 2]), "path": pathlib.Path("a/b"),
            "whole": nn.Linear(2, 2), "empty": b"", "model": model}


def deflate(source, target):
    """What other programs make of a file, and Python still reads: its entries deflated, and zeros behind its end."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with open(target, "ab") as file:
        file.write(bytes(1000))


def save_distributed(_, world, folder):
    """Every rank saves its part of what values() cannot have: sharded tensors, of sizes that do not divide evenly."""
    mesh = init_device_mesh("cpu", (world,))
    whole = torch.arange(35.0).view(7, 5)
    dcp.save({
        "model": {
            "rows": distribute_tensor(whole, mesh, [Shard(0)]), "columns": distribute_tensor(whole, mesh, [Shard(1)]),
            "replica": distribute_tensor(whole.bfloat16(), mesh, [Replicate()]), "few": distribute_tensor(whole[:1], mesh, [Shard(0)]),
            "plain": torch.arange(6).view(2, 3).t(), "scalar": torch.tensor(2.5), "empty": torch.empty(0, 3), "flag": torch.tensor([True]),
        },
        "optimizer": {"state": {0: {"step": torch.tensor(3.0), "exp_avg": distribute_tensor(whole, mesh, [Shard(0)])}},
                      "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0], "foreach": None}]},
        "epoch": 3, "text": "gr\u00fc\u00df", "list": [1, 2.5, {"tensor": torch.ones(2)}], "ordered": collections.OrderedDict(a=1),
    }, checkpoint_id=f"{folder}/dcp")


def flat_tensors(value):
    return {f"{dtype}.{layout}": tensor for dtype, group in value["tensors"].items() if dtype != "complex128"
            for layout, tensor in group.items()}


def compare(a, b, where, memory):
    """Fails where Lockstep's copy b differs from Python's value a by more than the types that it does not have."""
    if isinstance(a, torch.Tensor):
        assert type(b) is torch.Tensor and b.dtype == a.dtype and b.shape == a.shape, where
        assert b.requires_grad == a.requires_grad, where
        assert b.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8).tolist() == \
            a.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8).tolist(), where
        if a.numel() and not (a.is_conj() or a.is_neg()):
            memory.setdefault(a.untyped_storage().data_ptr(), set()).add(b.untyped_storage().data_ptr())
            becomes_contiguous = any(word in where for word in ("sliced", "expanded", ".safetensors"))
            assert a.is_contiguous() == b.is_contiguous() or becomes_contiguous, where
    elif isinstance(a, dict):
        assert isinstance(b, dict) and list(a) == list(b), where
        for key in a:
            compare(a[key], b[key], f"{where}[{key!r}]", memory)
    elif isinstance(a, (list, tuple)):
        assert isinstance(b, tuple if isinstance(a, tuple) else list) and len(a) == len(b), where
        for index, pair in enumerate(zip(a, b)):
            compare(*pair, f"{where}[{index}]", memory)
    else:
        a = a.decode() if isinstance(a, bytes) else a
        assert type(a) is type(b) and repr(a) == repr(b), f"{where}: {a!r}, {b!r}"


def compare_files(folder, names):
    values_expected = torch.load(f"{folder}/values.pt", weights_only=True)
    for name in names:
        expected = torch.load(f"{folder}/dcp.pt", weights_only=True) if name == "dcp-copy.pt" else values_expected
        memory = {}
        if name.endswith(".safetensors"):
            compare(flat_tensors(expected), dict(sorted(read_safetensors(f"{folder}/{name}").items(),
                    key=lambda entry: list(flat_tensors(expected)).index(entry[0]))), name, {})
            continue
        compare(expected, torch.load(f"{folder}/{name}", weights_only=True), name, memory)
        assert all(len(copies) == 1 for copies in memory.values()), "tensors that share memory no longer do"
        torch.load(f"{folder}/{name}", weights_only=True, mmap=True)
    print("all well")


def make(kind):
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 3)).double()
    weights = [p for name, p in model.named_parameters() if name.endswith("weight")]
    others = [p for name, p in model.named_parameters() if not name.endswith("weight")]
    groups = [{"params": weights, "weight_decay": 0.01}, {"params": others, "lr": 0.02}]
    make_optimizer = {
        "sgd": lambda: torch.optim.SGD(groups, lr=0.05),
        "momentum": lambda: torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True),
        "adam": lambda: torch.optim.Adam(groups, lr=0.01, betas=(0.8, 0.95)),
        "amsgrad": lambda: torch.optim.Adam(groups, lr=0.01, amsgrad=True),
        "adamw": lambda: torch.optim.AdamW(groups, lr=0.01),
        "adamw-amsgrad": lambda: torch.optim.AdamW(groups, lr=0.01, amsgrad=True),
        "rmsprop": lambda: torch.optim.RMSprop(groups, lr=0.01, momentum=0.5, centered=True),
        "adagrad": lambda: torch.optim.Adagrad(groups, lr=0.05, lr_decay=0.01),
    }
    return model, make_optimizer[kind]()


def train(kind, source, target, first, steps):
    torch.set_num_threads(1)
    model, optimizer = make(kind)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.8) if kind == "sgd" else None
    if source != "-":
        state = torch.load(source, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        assert state["step"] == first
        if scheduler:
            scheduler.load_state_dict(state["scheduler"])
    for step in range(first, first + steps):
        inputs = torch.sin(torch.arange(80, dtype=torch.float64) * (step + 1)).view(8, 10)
        labels = torch.cos(torch.arange(24, dtype=torch.float64) * (step + 1)).view(8, 3)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), labels).backward()
        optimizer.step()
        if scheduler:
            scheduler.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": first + steps}
    if scheduler:
        state["scheduler"] = scheduler.state_dict()
    torch.save(state, target)


def halve(kind, source, halves, loaded):
    state = torch.load(source, weights_only=True)
    for values in state["optimizer"]["state"].values():
        values.update({name: value.bfloat16() for name, value in values.items() if name != "step"})
    torch.save(state, halves)
    _, optimizer = make(kind)
    optimizer.load_state_dict(state["optimizer"])
    torch.save(optimizer.state_dict()["state"], loaded)


def distance(a, b):
    models = [torch.load(path, weights_only=True)["model"] for path in (a, b)]
    assert set(models[0]) == set(models[1])
    print(max(((models[0][name] - models[1][name]).double().norm() / models[1][name].double().norm().clamp(min=1e-3)).item()
              for name in models[0]))


if __name__ == "__main__":
    command, arguments = sys.argv[1], sys.argv[2:]
    if command == "write":
        folder = arguments[0]
        torch.save(values(), f"{folder}/values.pt")
        expected = torch.load(f"{folder}/values.pt")
        torch.save(expected, f"{folder}/values-legacy.pt", _use_new_zipfile_serialization=False)
        torch.save(expected, f"{folder}/values-legacy4.pt", _use_new_zipfile_serialization=False, pickle_protocol=4)
        torch.save(expected, f"{folder}/values-protocol4.pt", pickle_protocol=4)
        deflate(f"{folder}/values.pt", f"{folder}/values-deflated.pt")
        torch.load(f"{folder}/values-deflated.pt")
        torch.save(foreign_values(expected["model"]), f"{folder}/foreign.pt")
        torch.save(foreign_values(expected["model"]), f"{folder}/foreign-legacy.pt", _use_new_zipfile_serialization=False)
        torch.save(foreign_values(expected["model"]), f"{folder}/foreign-protocol5.pt", pickle_protocol=5)
        write_safetensors(f"{folder}/weights.safetensors", flat_tensors(expected))
        run_ranks(2, "gloo", save_distributed, folder)
        dcp_to_torch_save(f"{folder}/dcp", f"{folder}/dcp.pt")
    elif command == "compare":
        compare_files(arguments[0], arguments[1:])
    elif command == "train":
        for at in range(0, len(arguments), 5):
            train(*arguments[at:at + 3], int(arguments[at + 3]), int(arguments[at + 4]))
    elif command == "halve":
        for at in range(0, len(arguments), 4):
            halve(*arguments[at:at + 4])
    elif command == "distance":
        for at in range(0, len(arguments), 2):
            distance(*arguments[at:at + 2])
