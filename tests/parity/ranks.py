"""Worlds of processes for the scripts of this folder."""
import datetime
import multiprocessing
import tempfile

import torch
import torch.distributed as dist


def run_ranks(world, backend, run, *arguments):
    """Calls run(rank, world, *arguments) in `world` processes at once, in a process group over `backend`.

    Fails if one of them fails.
    """
    # Forked processes: torch is imported only once.
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        ranks = [context.Process(target=_run_rank, args=(rank, world, backend, store, run, arguments)) for rank in range(world)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
            if process.exitcode != 0:
                raise AssertionError(f"{backend}, {world} ranks: a rank ended with {process.exitcode}")


def _run_rank(rank, world, backend, store, run, arguments):
    torch.set_num_threads(1)
    minute = datetime.timedelta(seconds=60)
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=world, timeout=minute)
    run(rank, world, *arguments)
    dist.destroy_process_group()
