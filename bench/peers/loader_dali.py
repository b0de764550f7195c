"""Peer: images a second of NVIDIA DALI's CPU pipeline (no GPU needed), for the pipelines of bench/loader.cpp.

Its reference pipeline is close to the others', without affine transform and jitter: two flips and two rotations.
"""

import argparse
import json
import time
from pathlib import Path

from nvidia.dali import fn, pipeline_def, types

parser = argparse.ArgumentParser()
parser.add_argument("--folder", required=True)
parser.add_argument("--pipeline", choices=["reference", "crop-flip"], required=True)
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--output", type=Path, required=True)
arguments = parser.parse_args()
BATCH, BATCHES_PER_EPOCH = 32, 12


@pipeline_def
def pipeline():
    jpegs, labels = fn.readers.file(file_root=arguments.folder, random_shuffle=True)
    images = fn.decoders.image_random_crop(jpegs, device="cpu", output_type=types.RGB)
    images = fn.resize(images, resize_x=224, resize_y=224)
    if arguments.pipeline == "reference":
        images = fn.flip(images, horizontal=fn.random.coin_flip(), vertical=fn.random.coin_flip())
        for _ in range(2):
            images = fn.rotate(images, angle=fn.random.uniform(range=(-45.0, 45.0)), keep_size=True, fill_value=0)
    images = fn.crop_mirror_normalize(
        images,
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        mirror=fn.random.coin_flip(),
        output_layout="CHW",
    )
    return images, labels


pipe = pipeline(batch_size=BATCH, num_threads=arguments.workers, device_id=None)
pipe.build()


def epoch_rate() -> float:
    start = time.perf_counter()
    for _ in range(BATCHES_PER_EPOCH):
        pipe.run()
    return BATCH * BATCHES_PER_EPOCH / (time.perf_counter() - start)


epoch_rate()
rates = [epoch_rate() for _ in range(arguments.epochs)]
arguments.output.write_text(json.dumps({"images_per_second": rates}), encoding="utf-8")
