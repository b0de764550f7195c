"""Peer: images per second of NVIDIA DALI's CPU pipeline (no GPU needed), for the pipelines of bench/loader.cpp.

The reference pipeline's rotation, affine transform (also a rotation) and vertical flip are one warp_affine with nearest
pixels. DALI's random numbers are its own, from the same distributions.
"""

from nvidia.dali import fn, pipeline_def, types

from loader_peer import parse_arguments, rates, report

FLAGS = {
    "--exact-idct": "DALI's default instead of the fast one",
    "--read-ahead": "the reader reads whole files instead of mapping them",
}
arguments = parse_arguments(__doc__, ["rates"], flags=FLAGS)
BATCH, BATCHES_PER_EPOCH, SIZE = 32, 26, 224
SEED = 1


def between(low: float, high: float):
    return fn.random.uniform(range=(low, high))


def turned(images):
    """Two rotations by up to 45 degrees and a vertical flip, around the centre, in one pass over the pixels."""
    centre = (SIZE / 2, SIZE / 2)
    coin = fn.cast(fn.random.coin_flip(), dtype=types.FLOAT)
    upside_down = fn.stack(1.0 + 0.0 * coin, 1.0 - 2.0 * coin)
    matrix = fn.transforms.rotation(angle=between(-45.0, 45.0) + between(-45.0, 45.0), center=centre)
    matrix = fn.transforms.scale(matrix, scale=upside_down, center=centre)
    return fn.warp_affine(images, matrix, fill_value=0, interp_type=types.INTERP_NN)


@pipeline_def
def pipeline():
    jpegs, labels = fn.readers.file(
        file_root=arguments.folder, random_shuffle=True, read_ahead=arguments.read_ahead, dont_use_mmap=arguments.read_ahead
    )
    images = fn.decoders.image_random_crop(
        jpegs, device="cpu", output_type=types.RGB, use_fast_idct=not arguments.exact_idct,
        random_area=(0.08, 1.0), random_aspect_ratio=(3 / 4, 4 / 3),
    )
    images = fn.resize(images, resize_x=SIZE, resize_y=SIZE)
    if arguments.pipeline == "reference":
        images = turned(images)
        images = fn.color_twist(
            images, brightness=between(0.6, 1.4), contrast=between(0.6, 1.4), saturation=between(0.6, 1.4),
            hue=between(-36.0, 36.0),  # degrees: 0.1 of the circle
        )
    images = fn.crop_mirror_normalize(
        images, mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], mirror=fn.random.coin_flip(),
        output_layout="CHW",
    )
    return images, labels


pipe = pipeline(batch_size=BATCH, num_threads=arguments.workers + arguments.extra_threads, device_id=None, seed=SEED)
pipe.build()


def epoch() -> int:
    for _ in range(BATCHES_PER_EPOCH):
        pipe.run()
    return BATCH * BATCHES_PER_EPOCH


report(arguments.output, rates(arguments.epochs, epoch))
