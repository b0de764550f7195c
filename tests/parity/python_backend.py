"""Checks the backend `lockstep` from a Python program. Prints "all well" without errors."""
import datetime
import os
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist

import lockstep

WORLD = 2


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


def expect_error(kind, text, call):
    try:
        call()
    except kind as error:
        expect(text in str(error), f"expected '{text}' in: {error}")
        return
    raise AssertionError(f"no error: {text}")


def check(rank, store):
    minute = datetime.timedelta(seconds=60)
    dist.init_process_group("lockstep", init_method=f"file://{store}", rank=rank, world_size=WORLD, timeout=minute)
    expect(dist.get_backend() == "lockstep", dist.get_backend())
    expect(lockstep.__version__.count(".") == 2, lockstep.__version__)
    served = {device.type for device in dist.group.WORLD._device_types}
    expect(served == ({"cpu", "cuda"} if torch.backends.cuda.is_built() else {"cpu"}), served)
    tensor = torch.full((3,), float(rank + 1))
    work = dist.all_reduce(tensor, async_op=True)
    expect(work.get_future().wait()[0].tolist() == [3, 3, 3], "the future's value")
    objects = [None] * WORLD
    dist.all_gather_object(objects, {"rank": rank, "name": "x" * (rank + 1)})
    expect(objects == [{"rank": r, "name": "x" * (r + 1)} for r in range(WORLD)], objects)

    group = dist.new_group([0, 1], backend="lockstep")
    other = torch.empty(1)
    sends = [dist.P2POp(dist.isend, torch.tensor([float(rank)]), 1 - rank, group)]
    for request in dist.batch_isend_irecv(sends + [dist.P2POp(dist.irecv, other, 1 - rank, group)]):
        request.wait()
    expect(other.item() == 1 - rank, "what the neighbour sent")
    sparse = torch.sparse_coo_tensor([[rank, 3]], [1.0, 2.0], (4,))
    dist.all_reduce(sparse)
    expect(sparse.to_dense().tolist() == [1, 1, 0, 4], "the sparse sum")

    check_forks()

    expect_error(dist.DistBackendError, "rank(s) 0 called", lambda: dist.all_reduce(torch.ones(3 + rank)))
    expect_error(ValueError, "not defined", lambda: dist.all_reduce(torch.ones(1), op=dist.ReduceOp.BXOR))
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))  # PyTorch's own dispatcher refuses an empty list too
    expect_error(ValueError, "requires non-empty tensor list", lambda: backend.allreduce([], dist.AllreduceOptions()))
    pair = [torch.full((3,), rank + 1.0), torch.full((3,), 10.0 * (rank + 1))]
    dist.group.WORLD.allreduce(pair).wait()
    expect([one.tolist() for one in pair] == [[33.0] * 3] * 2, "several tensors of a rank")
    kept = [torch.full((10, 2), float(i + rank))[:, 0] for i in range(16)]
    for tensor in kept:
        dist.group.WORLD.allreduce([tensor])  # nobody keeps the work
    dist.barrier(async_op=True).get_future().wait()
    expect(all(bool((tensor == 2 * i + 1).all()) for i, tensor in enumerate(kept)), "what a barrier completes")
    dist.barrier(device_ids=[0])
    dist.barrier(device_ids=[rank], async_op=True).wait()
    dist.barrier()
    for _ in range(50):
        dist.destroy_process_group(dist.new_group([0, 1]))
    if rank == 0:
        expect_error(RuntimeError, "Rank 1 failed to pass monitoredBarrier", lambda: group_barrier(group))
    dist.barrier()  # until here rank 1 stays in the group
    dist.destroy_process_group()


def check_forks():
    """Workers and other children that Python forks neither use nor disturb the group of their parent."""
    child = os.fork()
    if child == 0:
        refused = False
        try:
            dist.all_reduce(torch.ones(3))
        except ValueError as error:
            refused = "fork of" in str(error)
        dist.destroy_process_group()
        os._exit(0 if refused else 1)
    expect(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "a fork's own call")
    data = torch.arange(20.0)
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork")
    sums = []
    for batch in loader:
        dist.all_reduce(batch)
        sums.append(batch.sum().item())
    expect(sum(sums) == WORLD * data.sum().item(), sums)
    process = torch.multiprocessing.get_context("fork").Process(target=sys.exit, args=(5,))
    process.start()
    process.join()
    expect(process.exitcode == 5, process.exitcode)
    subprocess.run(["true"], check=True)


def group_barrier(group):
    group.monitored_barrier(datetime.timedelta(milliseconds=200))


if __name__ == "__main__":
    expect(lockstep.is_available(), "is_available")
    lockstep.register()
    with tempfile.TemporaryDirectory() as scratch:
        # Rank 0 has imported the package itself, as under a launcher. Rank 1 is forked, so that it need not import torch again.
        store = os.path.join(scratch, "store")
        other = torch.multiprocessing.get_context("fork").Process(target=check, args=(1, store))
        other.start()
        try:
            check(0, store)
        except BaseException:
            other.kill()  # else this process waits at its end for the other one, which waits for this one
            raise
        other.join()
        expect(other.exitcode == 0, f"rank 1 ended with {other.exitcode}")
    print("all well")
