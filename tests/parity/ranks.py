"""Worlds of processes for the scripts of this folder."""
import datetime
import faulthandler
import multiprocessing
import sys
import tempfile

import torch
import torch.distributed as dist


def run_ranks(world, backend, run, *arguments):
    """Calls run(rank, world, *arguments) in `world` processes at once, in a process group over `backend`.

    Fails if one of them fails.
    """
    for attempts_left in reversed(range(3)):
        codes = _exit_codes(world, backend, run, arguments)
        if not any(codes):
            return
        # PyTorch over Gloo is the judge here. Very seldom one of its ranks ends with a segmentation fault, with none of
        # our code in the process. Such a run has judged nothing.
        crashed = backend == "gloo" and any(code < 0 for code in codes)
        if not crashed or attempts_left == 0:
            raise AssertionError(f"{backend}, {world} ranks: they ended with {codes}")
        print(f"{backend}, {world} ranks: they ended with {codes}; trying again", file=sys.stderr)


def _exit_codes(world, backend, run, arguments):
    # Forked processes: torch is imported only once.
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        ranks = [context.Process(target=_run_rank, args=(rank, world, backend, store, run, arguments)) for rank in range(world)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        return [process.exitcode for process in ranks]


def _run_rank(rank, world, backend, store, run, arguments):
    faulthandler.enable()  # says where a crash was
    torch.set_num_threads(1)
    minute = datetime.timedelta(seconds=60)
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=world, timeout=minute)
    run(rank, world, *arguments)
    dist.destroy_process_group()
