"""One operation of torch.distributed by size, over Gloo, NCCL or Lockstep: the same program for all. Started by torchrun.

Every rank rewrites its input before each call, then the ranks meet, only the call is timed, and after a barrier the
result is checked. That barrier keeps a rank's check from taking a core that others need for the call.
`bytes` is the size of one rank's buffer: the whole tensor for broadcast, reduce, gather and send; all inputs of one rank
for reduce_scatter and all_to_all; the gathered result for all_gather. The time of a call is that of the slowest rank: the
root of a broadcast may return before the others have received anything. On a GPU a call is over when the result is there. Point to point: half of a round trip from rank 0
to rank 1 and back.
"""

import argparse
import json
import time

import torch
import torch.distributed as dist

from meeting import Meeting

WARM_UP = 3
DEVICE = torch.device("cpu")


def finish() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def allocate(memory: str, count: int) -> torch.Tensor:
    if memory == "private":
        return torch.empty(count, device=DEVICE)
    cpu = torch.device("cpu")
    backend = dist.distributed_c10d._get_default_group()._get_backend(cpu)
    return backend.allocate_tensor(count, dtype=torch.float, device=cpu)


class Operation:
    """Buffers of one size. run() is timed, right() checks the result."""

    def __init__(self, name: str, count: int, memory: str) -> None:
        self.name, self.rank, self.world = name, dist.get_rank(), dist.get_world_size()
        # The same number of elements for each rank, at least one.
        share = max(1, count // self.world)
        shared_out = name in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
        size = share * self.world if shared_out else max(1, count)
        self.data, self.other, self.part = (allocate(memory, elements) for elements in (size, size, share))
        self.input = self.part if name in ("all_gather", "gather") else self.data

    def fill(self, value: int) -> None:
        self.value = value
        self.input.fill_(value + self.rank)

    def run(self) -> None:
        root = self.rank == 0
        match self.name:
            case "all_reduce":
                dist.all_reduce(self.data)
            case "broadcast":
                dist.broadcast(self.data, 0)
            case "reduce":
                dist.reduce(self.data, 0)
            case "all_gather":
                dist.all_gather_into_tensor(self.data, self.part)
            case "gather":
                dist.gather(self.part, list(self.data.chunk(self.world)) if root else None, 0)
            case "scatter":
                dist.scatter(self.part, list(self.data.chunk(self.world)) if root else None, 0)
            case "reduce_scatter":
                dist.reduce_scatter_tensor(self.part, self.data)
            case "all_to_all":
                dist.all_to_all_single(self.other, self.data)
            case "barrier":
                dist.barrier()
            case "send_recv":
                self.ping()

    def ping(self) -> None:
        if self.rank == 0:
            dist.send(self.data, 1)
            dist.recv(self.other, 1)
        elif self.rank == 1:
            dist.recv(self.other, 0)
            dist.send(self.data, 0)

    def right(self) -> bool:
        value, world, root = self.value, self.world, self.rank == 0
        ranks = torch.arange(world, dtype=torch.float, device=DEVICE)
        total = world * value + world * (world - 1) // 2
        match self.name:
            case "all_reduce":
                return bool((self.data == total).all())
            case "broadcast":
                return bool((self.data == value).all())
            case "reduce":
                return not root or bool((self.data == total).all())
            case "all_gather":
                return bool((self.data.view(world, -1) == (ranks + value)[:, None]).all())
            case "gather":
                return not root or bool((self.data.view(world, -1) == (ranks + value)[:, None]).all())
            case "scatter":
                return bool((self.part == value).all())
            case "reduce_scatter":
                return bool((self.part == total).all())
            case "all_to_all":
                return bool((self.other.view(world, -1) == (ranks + value)[:, None]).all())
            case "send_recv":
                return self.rank > 1 or bool((self.other == value + 1 - self.rank).all())
        return True


def measure(name: str, size: int, repetitions: int, memory: str, meeting: Meeting | None) -> list[float]:
    operation, seconds = Operation(name, size // 4, memory), []
    for repetition in range(-WARM_UP, repetitions):
        operation.fill((repetition + WARM_UP) % 64)
        finish()
        dist.barrier()
        finish()
        if meeting is not None:
            meeting.meet()
        start = time.perf_counter()
        operation.run()
        finish()
        end = time.perf_counter()
        dist.barrier()
        if repetition >= 0:
            seconds.append((end - start) / (2 if name == "send_recv" else 1))
        if not operation.right():
            raise SystemExit(f"rank {dist.get_rank()}: wrong result of {name} of {size} bytes")
    if name == "send_recv":
        return seconds
    longest = torch.tensor(seconds, dtype=torch.float64, device=DEVICE)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return longest.tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=["gloo", "lockstep", "nccl"], required=True)
    parser.add_argument("--operation", required=True)
    parser.add_argument("--memory", choices=["private", "shared"], default="private", help="shared: tensors from the backend")
    parser.add_argument("--plan", required=True, help="BYTES:REPETITIONS,...")
    parser.add_argument("--output", required=True)
    parser.add_argument("--own-barrier", action="store_true", help="the ranks meet at the backend's barrier alone")
    options = parser.parse_args()

    torch.set_num_threads(1)
    if options.backend == "nccl":
        global DEVICE
        DEVICE = torch.device("cuda", 0)
        torch.cuda.set_device(DEVICE)
    if options.backend == "lockstep":
        import lockstep  # noqa: F401, registers the backend
    dist.init_process_group(options.backend)
    meeting = None if options.own_barrier else Meeting(options.output, dist.get_rank(), dist.get_world_size())
    lines = []
    for name in options.operation.split(","):
        for step in options.plan.split(","):
            size, repetitions = (int(part) for part in step.split(":"))
            if name == "barrier" and size > 4:
                continue
            seconds = measure(name, size, repetitions, options.memory, meeting)
            lines.append(json.dumps({"operation": name, "bytes": size, "seconds": seconds}))
    if dist.get_rank() == 0:
        with open(options.output, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
