"""Peer: SPDL's pipeline of threads, with torchvision's work in them, for the pipelines of bench/loader.cpp.

Runs in the environment of torch; --packages is the folder with SPDL's packages. SPDL's own decoder needs FFmpeg's
libraries, which are not set up here.
"""

import random
import sys
from collections.abc import Iterator

import torch
from torchvision import datasets

from loader_peer import parse_arguments, rates, report
from torchvision_ways import pipeline

arguments = parse_arguments(__doc__, ["rates"], ways=["pil-batch", "pil-turn", "pil-draft", "v2"], packages=True)
sys.path.append(arguments.packages)  # after torch's own packages
from spdl.pipeline import PipelineBuilder  # noqa: E402

torch.set_num_threads(1)
random.seed(1)
BATCH = 32
load, transform, collate = pipeline(arguments.pipeline, arguments.way)
samples = datasets.ImageFolder(arguments.folder).samples


def shuffled() -> Iterator[tuple[str, int]]:
    yield from random.sample(samples, len(samples))


def picture(sample: tuple[str, int]) -> tuple[object, int]:
    path, label = sample
    return transform(load(path)), label


def epoch() -> int:
    """One pipeline an epoch, as SPDL's pipelines end with their source."""
    threads = max(1, arguments.workers + arguments.extra_threads)
    builder = PipelineBuilder().add_source(shuffled()).pipe(picture, concurrency=threads).aggregate(BATCH).pipe(collate)
    batches = builder.add_sink(2).build(num_threads=threads)
    with batches.auto_stop():
        return sum(len(labels) for _, labels in batches)


report(arguments.output, rates(arguments.epochs, epoch))
