"""Peer: datago, a loader in Rust, for the pipeline crop-flip of bench/loader.cpp.

It does less: its crop is that of the centre, not a random one. It gives pictures of 224 x 224; flipping, normalising and
making batches are NumPy's.
"""

import json
import os

import numpy as np

from loader_peer import parse_arguments, rates, report

arguments = parse_arguments(__doc__, ["rates"])
os.environ["DATAGO_MAX_TASKS"] = str(arguments.workers + arguments.extra_threads)
from datago import DatagoClient, initialize_logging  # noqa: E402

initialize_logging(log_level="warn")
BATCH, PICTURES, SIZE = 32, 832, 224
SCALE = (1 / (255 * np.array([0.229, 0.224, 0.225]))).astype(np.float32).reshape(3, 1, 1)
SHIFT = (-np.array([0.485, 0.456, 0.406]) / np.array([0.229, 0.224, 0.225])).astype(np.float32).reshape(3, 1, 1)
CONFIG = {
    "source_type": "file",
    "source_config": {"root_path": arguments.folder, "random_sampling": True, "rank": 0, "world_size": 1},
    "image_config": {
        "crop_and_resize": True, "default_image_size": SIZE, "downsampling_ratio": 32, "min_aspect_ratio": 1.0,
        "max_aspect_ratio": 1.0, "pre_encode_images": False,
    },
    "limit": PICTURES,
    "samples_buffer_size": 2 * BATCH,
}
random = np.random.default_rng(1)


def normalised(pictures: list[np.ndarray]) -> np.ndarray:
    batch = np.empty((len(pictures), 3, SIZE, SIZE), np.float32)
    for place, picture, flip in zip(batch, pictures, random.random(len(pictures)) < 0.5):
        np.multiply((picture[:, ::-1] if flip else picture).transpose(2, 0, 1), SCALE, out=place)
    batch += SHIFT
    return batch


def epoch() -> int:
    client = DatagoClient(json.dumps(CONFIG))
    client.start()
    count, pictures = 0, []
    while (sample := client.get_sample_auto_convert()) is not None:
        pictures.append(np.asarray(sample["image"]))
        if len(pictures) == BATCH:
            count += len(normalised(pictures))
            pictures = []
    count += len(normalised(pictures))
    client.stop()
    return count


report(arguments.output, rates(arguments.epochs, epoch))
