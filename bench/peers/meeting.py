"""Where the ranks meet before each timed call: bench/meeting.h for Python, on a file of the same form."""

import mmap
import os
import time

LINE = 8  # of 64 bytes, in counters


class Meeting:
    """`output` is a path that all ranks have, and no other run."""

    def __init__(self, output: str, rank: int, world: int) -> None:
        self.path, self.rank = f"{output}.meeting", rank
        self.times, self.crowded = 0, world > (os.cpu_count() or 1)
        self.others = [LINE * other for other in range(world) if other != rank]
        file = os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600)
        os.ftruncate(file, 8 * LINE * world)
        self.memory = mmap.mmap(file, 8 * LINE * world)
        os.close(file)
        self.counters = memoryview(self.memory).cast("Q")

    def meet(self) -> None:
        """Returns when all ranks have called it as often."""
        self.times += 1
        counters, times = self.counters, self.times
        counters[LINE * self.rank] = times
        end = time.monotonic() + 120
        for other in self.others:
            while counters[other] < times:
                if self.crowded:
                    os.sched_yield()
                if time.monotonic() > end:
                    raise SystemExit(f"rank {self.rank}: a rank has not come within 2 minutes")
        if times == 1 and self.rank == 0:
            os.unlink(self.path)  # all have it
