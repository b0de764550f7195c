"""PyTorch's contract of reconfigure and shrink, on the backend `lockstep`. Prints "all well" without errors.

usage: reconfigure.py CASE...    (without: all)

Each case runs in a world of three forks, whose store is a file. PyTorch's own tests have the same cases.
"""
import datetime
import os
import signal
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType

import lockstep
from python_backend import expect, expect_error

WORLD = 3
ALL = WORLD * (WORLD + 1) / 2
HALF_A_MINUTE = datetime.timedelta(seconds=30)


class Rank:
    def __init__(self, rank, folder):
        self.rank = rank
        self.store = dist.FileStore(os.path.join(folder, "store"), WORLD)
        self.steps = 0

    def start(self, enable_reconfigure=True):
        dist.init_process_group("lockstep", store=self.store, rank=self.rank, world_size=WORLD, timeout=HALF_A_MINUTE,
                                enable_reconfigure=enable_reconfigure)
        self.backend = dist.group.WORLD._get_backend(torch.device("cpu"))

    def tell(self, what, value="1", ranks=range(WORLD)):
        """What all of `ranks` say at this point."""
        self.store.set(f"{what} {self.rank}", value)
        return [self.store.get(f"{what} {rank}").decode() for rank in ranks]

    def handles(self, ranks=range(WORLD)):
        self.steps += 1
        return self.tell(f"handle {self.steps}", dist._get_reconfigure_handle(), ranks)

    def form(self, uuid, handles, timeout=HALF_A_MINUTE):
        expect(dist._reconfigure(uuid, handles, timeout=timeout).wait(), "the work")

    def start_all(self, uuid=1):
        self.start()
        self.form(uuid, self.handles())
        expect((dist.get_rank(), dist.get_world_size()) == (self.rank, WORLD), "rank and size")

    def add_up(self, expected):
        tensor = torch.full((1000,), dist.get_rank() + 1.0)
        dist.all_reduce(tensor)
        expect(tensor.eq(expected).all(), f"{tensor[0]} instead of {expected}")


def basic(me):
    me.start()
    expect(dist._supports_reconfigure() and me.backend.supports_reconfigure, "supports_reconfigure")
    expect_error(RuntimeError, "call reconfigure() first", lambda: dist.all_reduce(torch.ones(1)))
    me.form(1, me.handles())
    me.add_up(ALL)


def messages(me):
    me.start_all()
    right, left = (me.rank + 1) % WORLD, (me.rank - 1) % WORLD
    received = torch.empty(4)
    works = [me.backend.send([torch.full((4,), me.rank + 1.0)], right, 0), me.backend.recv([received], left, 0)]
    for work in works:
        work.wait()
    expect(received.tolist() == [left + 1.0] * 4, received)


def without(me, excluded):
    me.start_all()
    handles = me.handles()
    if me.rank != excluded:
        me.form(2, [handle for rank, handle in enumerate(handles) if rank != excluded])
        expect(dist.get_rank() == me.rank - (me.rank > excluded), dist.get_rank())
        me.add_up(3)
        tensor = torch.full((4,), float(dist.get_rank() == 0))
        dist.broadcast(tensor, group_src=0)
        expect(tensor.tolist() == [1] * 4, tensor)
    me.tell("done")


def without_the_last(me):
    without(me, WORLD - 1)


def without_the_middle(me):
    without(me, WORLD // 2)


def down_and_up(me):
    me.start()
    for uuid in (10, 20):
        me.form(uuid + me.rank, [dist._get_reconfigure_handle()])
        expect((dist.get_rank(), dist.get_world_size()) == (0, 1), "alone")
        me.add_up(1)
        me.form(uuid + WORLD, me.handles())
        expect((dist.get_rank(), dist.get_world_size()) == (me.rank, WORLD), "together")
        me.add_up(ALL)


def single_to_all(me):
    me.start()
    me.form(me.rank, [dist._get_reconfigure_handle()])
    me.form(WORLD, set(me.handles()))
    me.add_up(ALL)


def identity(me):
    me.start_all()
    me.form(2, me.handles())
    me.add_up(ALL)


def late_join(me):
    me.start()
    handles = me.handles()
    if me.rank < 1:
        me.form(1, handles[:1])
    me.form(2, me.handles())
    me.add_up(ALL)


def merge_and_split(me):
    me.start()
    handles = me.handles()
    me.form(*(1, handles[:1]) if me.rank == 0 else (2, handles[1:]))
    me.add_up(1 if me.rank == 0 else 3)
    me.form(3, me.handles())
    me.add_up(ALL)
    me.form(*(4, me.handles()[:1]) if me.rank == 0 else (5, me.handles()[1:]))
    me.add_up(1 if me.rank == 0 else 3)


def after_an_abort(me):
    me.start_all()
    me.backend.abort()
    expect(me.backend.get_error() == ErrorType.SUCCESS, "an abort of one's own is no error")
    expect_error(RuntimeError, "reconfigure() makes the group again", lambda: dist.all_reduce(torch.ones(1)))
    me.form(2, me.handles())
    me.add_up(ALL)


def after_a_timeout(me):
    me.start_all()
    me.add_up(ALL)
    if me.rank == 1:
        me.backend.set_timeout(datetime.timedelta(milliseconds=50))
        work = dist.all_reduce(torch.ones(4), async_op=True)
        expect_error(RuntimeError, "timed out", work.wait)
        expect(me.backend.get_error() == ErrorType.TIMEOUT, me.backend.get_error())
        expect_error(RuntimeError, "timed out", lambda: dist.all_reduce(torch.ones(4)))
        me.backend.set_timeout(HALF_A_MINUTE)
    me.tell("seen")
    me.form(2, me.handles())
    me.add_up(ALL)


def used_number(me):
    me.start()
    own = dist._get_reconfigure_handle()
    me.form(10 + me.rank, [own])
    expect_error(RuntimeError, "already used", lambda: me.form(10 + me.rank, [own]))
    me.add_up(1)
    # Of one member: all get the error.
    expect_error(RuntimeError, "already used", lambda: me.form(11, me.handles()))
    me.form(2, me.handles())
    me.add_up(ALL)


def wrong_calls(me):
    me.start_all()
    own, other = me.handles()[me.rank], me.handles()[me.rank - 1]
    for text, handles in (("no handles", []), ("expected a handle of Lockstep", [own, "gloo:0:1:0:"]),
                          ("twice", [own, own]), ("not among", [other])):
        expect_error(ValueError, text, lambda: me.form(2, handles))
    me.tell("checked")
    me.add_up(ALL)
    if me.rank < 2:
        handles = me.handles(range(2))
        expect_error(RuntimeError, "different handles", lambda: me.form(3, handles if me.rank == 0 else handles[::-1]))
    me.tell("done")


def deaths(me):
    """Real ones, in the middle of a collective; the first was rank 0."""
    me.start_all()
    handles = me.handles()
    for victim in (0, 2):
        if me.rank == victim:
            dist.all_reduce(torch.ones(1000), async_op=True)
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            while True:
                dist.all_reduce(torch.ones(1000))
        except dist.DistBackendError:
            pass
        handles.pop(0 if victim == 0 else -1)
        me.form(100 + victim, handles)
        me.add_up(sum(range(1, len(handles) + 1)))
    os._exit(0)


def shrink(me):
    me.start(enable_reconfigure=False)
    me.add_up(ALL)
    me.tell("added up")
    if me.rank != 1:
        dist.shrink_group([1], shrink_flags=dist.distributed_c10d.SHRINK_ABORT if me.rank == 0 else 0)
        expect((dist.get_rank(), dist.get_world_size()) == (me.rank // 2, 2), "rank and size")
        me.add_up(3)
    me.tell("done")


CASES = [basic, messages, without_the_last, without_the_middle, down_and_up, single_to_all, identity, late_join,
         merge_and_split, after_an_abort, after_a_timeout, used_number, wrong_calls, deaths, shrink]


def run(case, rank, folder):
    torch.set_num_threads(1)
    me = Rank(rank, folder)
    case(me)
    dist.destroy_process_group()


def run_case(case):
    context = torch.multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=run, args=(case, rank, folder)) for rank in range(WORLD)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(60)
        codes = [process.exitcode for process in ranks]
        for process in ranks:
            process.kill()
    expected = [-signal.SIGKILL, 0, -signal.SIGKILL] if case is deaths else [0] * WORLD
    expect(codes == expected, f"{case.__name__}: the ranks ended with {codes}")


if __name__ == "__main__":
    expect(lockstep.is_available(), "is_available")
    for case in CASES:
        if len(sys.argv) == 1 or case.__name__ in sys.argv[1:]:
            start = time.monotonic()
            run_case(case)
            print(f"{case.__name__}: {time.monotonic() - start:.2f} s", file=sys.stderr)
    print("all well")
