"""What bench/checkpoint.cpp measures, with PyTorch and with safetensors. See there for the tensors."""
import argparse
import json
import os
import sys
import time

SMALL_TENSORS, SMALL_ELEMENTS, LARGE_ELEMENTS = 200, 1024, 1 << 20


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--measure", choices=["load", "save"], required=True)
    parser.add_argument("--file", required=True)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--output")
    parser.add_argument("--packages", help="where safetensors is installed")
    parser.add_argument("--flush", action="store_true", help="wait until the disk has the file, as Lockstep does")
    parser.add_argument("--no-checksum", action="store_true", help="PyTorch's files without their CRC-32")
    parser.add_argument("--mapped", action="store_true", help="let PyTorch map a file instead of copying it")
    return parser.parse_args()


def make_state(torch, mib):
    torch.manual_seed(1)
    state = {f"large{i}": torch.randn(LARGE_ELEMENTS) for i in range(mib // 4)}
    return state | {f"small{i}": torch.randn(SMALL_ELEMENTS) for i in range(SMALL_TENSORS)}


def main():
    options = arguments()
    import torch  # pylint: disable=import-outside-toplevel

    if options.packages:
        sys.path.append(options.packages)
    if options.file.endswith(".safetensors"):
        from safetensors.torch import load_file as read  # pylint: disable=import-outside-toplevel
        from safetensors.torch import save_file as write
    else:
        write = torch.save

        torch.serialization.set_crc32_options(not options.no_checksum)

        def read(path):
            return torch.load(path, weights_only=True, mmap=options.mapped)

    state = make_state(torch, options.mib) if options.measure == "save" else None

    def save():
        write(state, options.file)
        if options.flush:
            with open(options.file, "rb") as file:
                os.fsync(file.fileno())

    def load():
        assert sum(tensor.sum().item() for tensor in read(options.file).values()) != 0

    run = save if options.measure == "save" else load
    run()  # warm-up
    values = []
    for _ in range(options.times):
        begin = time.perf_counter()
        run()
        values.append(time.perf_counter() - begin)
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            json.dump({"values": values}, file)


if __name__ == "__main__":
    main()
