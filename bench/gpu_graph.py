"""gpu_graph: gpu_step, but each step is a CUDA graph, in our programs and in PyTorch's."""

from __future__ import annotations

from gpu_common import GpuTools
from gpu_step import Form, measure_forms
from harness import Outcome

FORMS = [
    Form("mlp-6M", ("--graph",), 20, 50),
    Form("resnet50-224", ("--autocast", "--channels-last", "--graph"), 10, 10),
]


def measure(tools: GpuTools) -> Outcome:
    return measure_forms("gpu_graph", FORMS, tools)
