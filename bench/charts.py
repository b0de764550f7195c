"""The charts of docs/charts, drawn from the tables of docs/measurements. `./dev bench --into` draws them, and so does

    python3 bench/charts.py
"""

from __future__ import annotations

from pathlib import Path

from chart_shapes import BySize, Curve, Line, Rows, read

ROOT = Path(__file__).resolve().parents[1]
TABLES, CHARTS = "docs/measurements", "docs/charts"

MPIS = (("Open MPI 5", "openmpi5"), ("Intel MPI", "intelmpi"), ("oneCCL", "oneccl"), ("MPICH", "mpich"),
        ("Open MPI 4", "openmpi"))
MODELS = (("small CNN, 28 px", "cnn-28"), ("MLP, 5.8 M parameters", "mlp-6M"), ("ResNet-18, 32 px", "resnet18-32"),
          ("ResNet-18, 224 px", "resnet18-224"))
OPERATIONS = ("all_gather", "reduce_scatter", "broadcast", "all_to_all", "reduce", "gather", "scatter")
PYTORCH, TORCHVISION, DALI, TORCHRUN = "pytorch (Python)", "torchvision (Python)", "dali (Python)", "torchrun (Python)"
STANDBY_OFF = "a rank is killed, with LibTorch, --standby off"

CHART_LIST = (
    Rows("overview", "Lockstep beside others, on the 2 cores of one machine", (
        Line("All-reduce of 25 MiB, Python against Gloo",
             "all_reduce", "python-private (Python)", "gloo (Python)", 2, "25 MiB"),
        Line("All-reduce of 25 MiB, C++ against Open MPI 5", "all_reduce", "core-private", "openmpi5", 2, "25 MiB"),
        Line("All-reduce of 1 MiB, 2 machines x 2 ranks, against Open MPI 4",
             "hosts", "all_reduce-private", "openmpi", 4, "1 MiB"),
        Line("Step of a 5.8 M MLP against PyTorch's DDP", "ddp_step", "mlp-6M", PYTORCH),
        Line("The same against processes that do not communicate", "ddp_step", "mlp-6M", "limit"),
        Line("Step of ResNet-18, 32 px, against PyTorch's DDP", "ddp_step", "resnet18-32", PYTORCH),
        Line("Step of ResNet-18, 224 px, against PyTorch's DDP", "ddp_step", "resnet18-224", PYTORCH),
        Line("JPEGs decoded and augmented, against torchvision", "loader", "reference-fast", TORCHVISION, 1),
        Line("The same against DALI", "loader", "reference-fast", DALI, 1),
        Line("Training ResNet-18 on JPEGs, 224 px, against PyTorch", "train", "224 px", PYTORCH),
        Line("Loading a .pt file, 512 MiB, against PyTorch, mapped",
             "checkpoint", "load pt, 512 MiB", "pytorch mapped (Python)", 1),
        Line("Restart after a death, no standby, against torchrun", "recovery", STANDBY_OFF, TORCHRUN),
    )),
    BySize("all_reduce_private", "All-reduce from C++ on any memory, 2 ranks, one machine", "all_reduce",
           tuple(Curve(f"against {name}", "core-private", peer) for name, peer in MPIS)),
    BySize("all_reduce_shared", "All-reduce from C++ on memory of the group, 2 ranks", "all_reduce",
           tuple(Curve(f"against {name}", "core-shared", peer) for name, peer in MPIS)),
    BySize("all_reduce_python", "All-reduce from Python, 2 ranks, one machine", "all_reduce", (
        Curve("memory of the group, against Gloo", "python-shared (Python)", "gloo (Python)"),
        Curve("any memory, against Gloo", "python-private (Python)", "gloo (Python)"))),
    Rows("operations", "The other operations from C++, 1 MiB of any memory", (
        *(Line(f"{name} against Open MPI 4", "collectives", f"{name}-private", "openmpi", 2, "1 MiB") for name in OPERATIONS),
        Line("send and recv against Open MPI 4", "p2p", "send_recv-private", "openmpi", 2, "1 MiB"))),
    BySize("several_machines", "All-reduce between two machines over TCP", "hosts", (
        Curve("Python, 1 rank each, against Gloo", "all_reduce-private (Python)", "gloo (Python)"),
        Curve("C++, 1 rank each, against Open MPI 4", "all_reduce-private", "openmpi"),
        Curve("Python, 2 ranks each, against Gloo", "all_reduce-private (Python)", "gloo (Python)", 4),
        Curve("C++, 2 ranks each, against Open MPI 4", "all_reduce-private", "openmpi", 4))),
    Rows("training_step", "A training step with DDP, 2 ranks", (
        *(Line(f"{name}, against PyTorch's DDP", "ddp_step", model, PYTORCH) for name, model in MODELS),
        Line("ResNet-18, 32 px, LibTorch's operators, against PyTorch's DDP",
             "ddp_step", "resnet18-32, LibTorch's operators", PYTORCH),
        Line("MLP, from Python, against PyTorch's DDP", "ddp_step", "mlp-6M (Python)", PYTORCH),
        *(Line(f"{name}, against no communication", "ddp_step", model, "limit") for name, model in MODELS))),
    Rows("optimizers", "Optimizers: ResNet-18, and Adam with its state divided", (
        *(Line(f"{name}, against PyTorch, fused", "optimizers", f"resnet18-32, {case}", PYTORCH, 1)
          for name, case in (("SGD", "sgd-momentum"), ("SGD, weight decay", "sgd-momentum-decay"), ("AdamW", "adamw"))),
        Line("MLP, 2 ranks, against ZeroRedundancyOptimizer", "zero --ranks 2,4", "mlp-6M, step", PYTORCH, 2),
        Line("ResNet-18, 2 ranks, against ZeroRedundancyOptimizer", "zero --ranks 2,4", "resnet18-32, step", PYTORCH, 2),
        Line("MLP, 2 ranks, against plain Adam", "zero --ranks 2,4", "mlp-6M, step", "plain Adam", 2))),
    Rows("pictures", "JPEGs decoded and augmented, two workers", (
        Line("All transforms against torchvision", "loader", "reference-fast", TORCHVISION, 1),
        Line("All transforms against DALI", "loader", "reference-fast", DALI, 1),
        Line("All transforms against SPDL", "loader", "reference-fast", "spdl (Python)", 1),
        Line("Crop and flip against torchvision", "loader", "crop-flip-fast", TORCHVISION, 1),
        Line("Crop and flip, torchvision's pixels, against torchvision", "loader", "crop-flip-exact", TORCHVISION, 1),
        Line("Crop and flip against DALI", "loader", "crop-flip-fast", DALI, 1),
        Line("Crop and flip against datago", "loader", "crop-flip-fast", "datago (Python)", 1))),
    Rows("launching", "Start, and restart after a rank is killed", (
        Line("2 empty programs against torchrun", "launch", "two programs that exit at once", TORCHRUN),
        Line("2 empty programs against Monarch", "launch", "two programs that exit at once", "torchmonarch 0.7.0 (Python)"),
        Line("4 machines x 2 programs against torchrun", "launch", "4 machines with 2 programs each", TORCHRUN, 8),
        Line("First sum of 64 ranks against Open MPI 5", "init", "launch to first all_reduce", "openmpi5", 64),
        Line("Restart, processes on standby, against torchrun", "recovery", "a rank is killed, with LibTorch", TORCHRUN),
        Line("Restart without standby, against torchrun", "recovery", STANDBY_OFF, TORCHRUN))),
    Rows("checkpoints", "A checkpoint of 512 MiB", (
        Line("Save .pt against PyTorch", "checkpoint", "save pt, 512 MiB", PYTORCH, 1),
        Line("Save safetensors against safetensors", "checkpoint", "save safetensors, 512 MiB", "safetensors (Python)", 1),
        Line("Load .pt against PyTorch", "checkpoint", "load pt, 512 MiB", PYTORCH, 1),
        Line("Load .pt against PyTorch, mapped", "checkpoint", "load pt, 512 MiB", "pytorch mapped (Python)", 1),
        Line("Load safetensors against safetensors", "checkpoint", "load safetensors, 512 MiB", "safetensors (Python)", 1))),
    Rows("training_run", "Training ResNet-18 on a folder of JPEGs, 2 processes", (
        Line("224 px, against the same job in Python", "train", "224 px", PYTORCH),
        Line("64 px, against the same job in Python", "train", "64 px", PYTORCH),
        Line("224 px, against twice the rate of one process", "train", "224 px, efficiency", "limit"),
        Line("Step at 64 px, against one without communication", "efficiency", "64 px, communication", "limit"),
        Line("Step at 64 px, against one without communication and waiting",
             "efficiency", "64 px, communication and waiting", "limit"))),
)


def draw(root: Path) -> dict[Path, str]:
    """The text of each chart, by its file. A ValueError names what a table lacks."""
    tables = read(root / TABLES)
    return {root / CHARTS / f"{chart.name}.svg": chart.draw(tables) for chart in CHART_LIST}


def write(root: Path) -> list[Path]:
    """The files that have changed."""
    changed = []
    for file, svg in draw(root).items():
        if not file.exists() or file.read_text(encoding="utf-8") != svg:
            file.write_text(svg, encoding="utf-8")
            changed.append(file)
    return changed


if __name__ == "__main__":
    for chart in write(ROOT):
        print(chart.relative_to(ROOT))
