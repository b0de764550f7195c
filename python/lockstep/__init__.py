"""Lockstep's CPU engine as a backend of torch.distributed.

    import lockstep
    torch.distributed.init_process_group("lockstep")

All of torch.distributed works as usual: DistributedDataParallel, collectives, groups. From torch 2.15 on, the import is
not needed: torch finds installed backends by their name.
"""

import torch
import torch.distributed as dist

from lockstep._build import torch_version, version as __version__

__all__ = ["BACKEND", "__version__", "is_available", "register"]

BACKEND = "lockstep"


def _load_engine():
    # The extension works only with the LibTorch it was built with. Another one would crash or misbehave later.
    found = torch.__version__.split("+")[0]
    if found != torch_version:
        raise ImportError(
            f"this build of lockstep is for torch {torch_version}, but torch {found} is installed; "
            "rebuild it: pip install --force-reinstall --no-deps lockstep (from its source folder: pip install .)"
        )
    from lockstep import _engine

    return _engine


_engine = _load_engine()


def _create(options, backend_options):
    """torch.distributed calls this for each group. `options`: store, ranks, timeout."""
    return _engine.make_backend(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
        options.group_id if options.global_ranks_in_group else "world",
        list(options.global_ranks_in_group),
        enable_reconfigure=getattr(options, "enable_reconfigure", False),  # from torch 2.15 on
    )


def is_available() -> bool:
    """Whether this torch can use the engine, because it has torch.distributed."""
    return dist.is_available()


def register() -> None:
    """Registers "lockstep" with torch.distributed. The import does this; a second call has no effect."""
    if BACKEND.upper() not in dist.Backend._plugins:
        # CUDA tensors are copied through pinned host memory. torch makes one engine per group for both device types.
        devices = ["cpu", "cuda"] if torch.backends.cuda.is_built() else ["cpu"]
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=devices)


register()
