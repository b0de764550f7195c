"""Peer: SPDL's pipeline of threads, for the pipelines of bench/loader.cpp, with torchvision's work in them, or with
SPDL's decoder, which is FFmpeg (ffmpeg): that crops, scales and flips, PIL does the rest.

Runs in the environment of torch; --packages is the folder with SPDL's packages.
"""

import random
import sys
from collections.abc import Callable, Iterator

import torch
from PIL import Image
from torchvision import datasets
from torchvision.transforms import ColorJitter, PILToTensor, RandomResizedCrop

from loader_peer import parse_arguments, rates, report
from torchvision_ways import JITTER, Turn, normalised, pipeline

arguments = parse_arguments(__doc__, ["rates"], ways=["ffmpeg", "pil-batch", "pil-turn", "pil-draft", "v2"], packages=True)
sys.path.append(arguments.packages)  # after torch's own packages
import spdl.io  # noqa: E402
from spdl.pipeline import PipelineBuilder  # noqa: E402

torch.set_num_threads(1)
random.seed(1)
BATCH, SIDE = 32, 224
CROP = RandomResizedCrop(SIDE)


def ffmpeg_crop(packets: spdl.io.ImagePackets, flip: bool) -> spdl.io.CPUBuffer:
    """A random crop in RGB, of SIDE x SIDE pixels. The file is decoded at 1/2, 1/4 or 1/8 of its size where the crop needs
    no more (lowres)."""
    size = torch.empty(1).expand(3, packets.height, packets.width)  # get_params asks for the size alone
    box = CROP.get_params(size, CROP.scale, CROP.ratio)
    smaller = min(3, max(0, (min(box[2:]) // SIDE).bit_length() - 1))
    top, left, height, width = (max(value >> smaller, least) for value, least in zip(box, (0, 0, 1, 1)))
    steps = [f"crop={width}:{height}:{left}:{top}:exact=1", f"scale={SIDE}:{SIDE}:flags=bilinear", *(["hflip"] * flip)]
    frames = spdl.io.decode_packets(
        packets, decode_config=spdl.io.decode_config(decoder_options={"lowres": str(smaller)}),
        filter_desc=",".join([*steps, "format=pix_fmts=rgb24"]))
    return spdl.io.convert_frames(frames)


def ffmpeg_pipeline(name: str) -> tuple[Callable, Callable, Callable]:
    """As torchvision_ways.pipeline."""
    turn, jitter, to_tensor = Turn(), ColorJitter(*JITTER), PILToTensor()

    def crop_flip(packets: spdl.io.ImagePackets) -> torch.Tensor:
        return spdl.io.to_torch(ffmpeg_crop(packets, random.random() < 0.5)).permute(2, 0, 1)

    def reference(packets: spdl.io.ImagePackets) -> torch.Tensor:
        return to_tensor(jitter(turn(Image.fromarray(spdl.io.to_numpy(ffmpeg_crop(packets, flip=False))))))

    return spdl.io.demux_image, crop_flip if name == "crop-flip" else reference, normalised


load, transform, collate = (
    ffmpeg_pipeline(arguments.pipeline) if arguments.way == "ffmpeg" else pipeline(arguments.pipeline, arguments.way)
)
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
