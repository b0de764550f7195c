"""Peer: PyTorch's Gloo all-reduce, float32 SUM, in place. Started by torchrun. Measures and writes as measure.h does."""

import argparse
import json
import time

import torch
import torch.distributed as dist

WARM_UP = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", required=True, help="BYTES:REPETITIONS,...")
    parser.add_argument("--output", required=True)
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    lines = []
    for step in options.plan.split(","):
        size, repetitions = (int(part) for part in step.split(":"))
        data, seconds = torch.empty(size // 4), []
        for repetition in range(-WARM_UP, repetitions):
            value = (repetition + WARM_UP) % 64
            data.fill_(value + rank)
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(data)
            end = time.perf_counter()
            dist.barrier()  # so that checking does not take a core from ranks that are still in the call
            if repetition >= 0:
                seconds.append(end - start)
            expected = world * value + world * (world - 1) // 2
            if not bool((data == expected).all()):
                raise SystemExit(f"rank {rank}: wrong sum of {size} bytes")
        lines.append(json.dumps({"bytes": size, "seconds": seconds}))
    if rank == 0:
        with open(options.output, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
