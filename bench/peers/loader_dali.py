"""Peer: images per second of NVIDIA DALI's CPU pipeline (no GPU needed), for the pipelines of bench/loader.cpp.

Its reference pipeline has no affine transform and no jitter, only two flips and two rotations.
"""

from nvidia.dali import fn, pipeline_def, types

from loader_peer import parse_arguments, rates, report

arguments = parse_arguments(__doc__, ["rates"])
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


def epoch() -> int:
    for _ in range(BATCHES_PER_EPOCH):
        pipe.run()
    return BATCH * BATCHES_PER_EPOCH


report(arguments.output, rates(arguments.epochs, epoch))
