"""The ways in which a peer can be used: its settings, each with the reason to try it.

A bench takes the best way for each row (harness.best_way), from those that have won on some machine. `./dev bench tune
PEER` measures all ways, also those with `tune_only`. What it found is in peers/README.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Way:
    reason: str
    environment: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()  # of the peer's program
    tune_only: bool = False  # never the best so far, or not by more than noise
    collective: bool = False  # also tried for operations other than all-reduce


def tuned(algorithm: int, **more: str) -> dict[str, str]:
    """Open MPI's choice of algorithm by hand."""
    return {
        "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
        "OMPI_MCA_coll_tuned_allreduce_algorithm": str(algorithm),
        **more,
    }


# Each moves every byte once a phase; which one wins depends on the size.
OPEN_MPI = {
    "default": Way("what a user gets", collective=True),
    "ring": Way("each rank sums a share: fewest bytes for long vectors", tuned(4)),
    "rabenseifner": Way("halving and doubling: as few bytes in fewer steps", tuned(6)),
    "recursive doubling": Way("fewest steps, for short vectors", tuned(3)),
    "segmented ring": Way("the ring in pieces that stay in the cache", tuned(5), tune_only=True),
    "no single copy": Way("through shared memory instead of process_vm_readv (CMA): no system call", {
        "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMPI_MCA_smsc": "^cma"},
        collective=True),
    "ring, no single copy": Way("both", tuned(4, OMPI_MCA_btl_vader_single_copy_mechanism="none", OMPI_MCA_smsc="^cma")),
    "coll sm": Way("collectives in shared memory", {"OMPI_MCA_coll_sm_priority": "100"}, collective=True),
}
INTEL_SHM = {"I_MPI_FABRICS": "shm"}
CCL = {"CCL_WORKER_OFFLOAD": "0", "CCL_LOG_LEVEL": "error"}
WAYS: dict[str, dict[str, Way]] = {
    "openmpi": OPEN_MPI,
    "openmpi5": {
        **OPEN_MPI,
        "coll han": Way("by levels of the machine; off for one node", {"OMPI_MCA_coll_han_priority": "100"}, tune_only=True),
    },
    "mpich": {
        "default": Way("what a user gets"),
        "release gather": Way("collectives in shared memory", {
            "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "auto", "MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM": "release_gather"}),
        "ring": Way("fewest bytes for long vectors", {"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "ring"}, tune_only=True),
        "reduce-scatter": Way("as few bytes in fewer steps", {
            "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "reduce_scatter_allgather"}),
        "recursive doubling": Way("fewest steps, for short vectors", {
            "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "recursive_doubling"}, tune_only=True),
        "no CMA": Way("through shared memory instead of process_vm_readv", {"MPIR_CVAR_CH4_CMA_ENABLE": "0"}),
        "UCX without CMA": Way("the same for the device that is the default", {"UCX_TLS": "posix,self"}),
    },
    "intelmpi": {
        "shm": Way("one machine needs no network", INTEL_SHM, collective=True),
        "shm, rabenseifner": Way("fewest bytes", {**INTEL_SHM, "I_MPI_ADJUST_ALLREDUCE": "2"}),
        "shm, recursive doubling": Way("fewest steps", {**INTEL_SHM, "I_MPI_ADJUST_ALLREDUCE": "1"}, tune_only=True),
        "shm, ring": Way("fewest bytes", {**INTEL_SHM, "I_MPI_ADJUST_ALLREDUCE": "8"}),
        "shm, shumilin's ring": Way("a ring of its own", {**INTEL_SHM, "I_MPI_ADJUST_ALLREDUCE": "7"}, tune_only=True),
        "shm, flat": Way("all read each other", {**INTEL_SHM, "I_MPI_ADJUST_ALLREDUCE": "12"}, tune_only=True),
        "default": Way("what a user gets: shm and OFI", tune_only=True),
    },
    "oneccl": {
        "direct": Way("the calling thread works: on all cores a rank, a second thread only takes time",
                      {**CCL, **INTEL_SHM, "CCL_ALLREDUCE": "direct"}),
        "default": Way("oneCCL's choice of algorithm, the calling thread works", {**CCL, **INTEL_SHM}),
        "ring": Way("fewest bytes", {**CCL, **INTEL_SHM, "CCL_ALLREDUCE": "ring"}),
        "rabenseifner": Way("as few bytes in fewer steps", {**CCL, **INTEL_SHM, "CCL_ALLREDUCE": "rabenseifner"}),
        "recursive doubling": Way("fewest steps", {**CCL, **INTEL_SHM, "CCL_ALLREDUCE": "recursive_doubling"}),
        "nreduce": Way("all to one and back in shares", {**CCL, **INTEL_SHM, "CCL_ALLREDUCE": "nreduce"}, tune_only=True),
        "worker": Way("what a user gets: a thread of its own", {"CCL_LOG_LEVEL": "error"}, tune_only=True),
    },
    "gloo": {
        "loopback": Way("one machine: no other interface is asked", {"GLOO_SOCKET_IFNAME": "lo"}),
        "default": Way("what a user gets", tune_only=True),
        "libuv": Way("the other transport", {"GLOO_SOCKET_IFNAME": "lo", "GLOO_DEVICE_TRANSPORT": "UV"}, tune_only=True),
        "aligned pages": Way("tensors begin at a huge page", {"GLOO_SOCKET_IFNAME": "lo", "THP_MEM_ALLOC_ENABLE": "1"},
                             tune_only=True),
    },
    # Options of peers/ddp_step.py. gradient_as_bucket_view is always on: it saves a copy.
    "pytorch": {
        "fused, static": Way("one kernel for all parameters; the graph is known after one step",
                             options=("--implementation", "fused", "--static-graph")),
        "fused": Way("one kernel for all parameters", options=("--implementation", "fused"), tune_only=True),
        "foreach, static": Way("one call for all parameters", options=("--implementation", "foreach", "--static-graph"),
                               tune_only=True),
        "plain, static": Way("torch's default on the CPU", options=("--implementation", "plain", "--static-graph"),
                             tune_only=True),
        "plain": Way("what a user gets, with gradient_as_bucket_view", options=("--implementation", "plain"), tune_only=True),
        "fused, static, 1 MiB": Way("small buckets, so that communication starts early",
                                    options=("--implementation", "fused", "--static-graph", "--bucket-mb", "1")),
        "fused, static, 100 MiB": Way("one bucket: one all-reduce",
                                      options=("--implementation", "fused", "--static-graph", "--bucket-mb", "100")),
    },
    # Options of peers/loader.py.
    "torchvision": {
        "v2 tensors": Way("decode_image and transforms.v2 on uint8 tensors, normalised per batch", options=("--way", "v2")),
        "PIL, per batch": Way("PIL pictures, made float and normalised per batch", options=("--way", "pil-batch")),
        "PIL": Way("what tutorials show: ToTensor and Normalize for each picture", options=("--way", "pil"), tune_only=True),
    },
    # Options of peers/loader_dali.py.
    "dali": {
        "fast": Way("nearest pixels as in all, fast IDCT, the sums of both rotations in one warp_affine"),
        "read ahead": Way("no mmap of the files", options=("--read-ahead",), tune_only=True),
        "one thread more": Way("the reader's thread sleeps now and then", options=("--extra-threads", "1"), tune_only=True),
        "exact IDCT": Way("DALI's default", options=("--exact-idct",), tune_only=True),
    },
    # Options of peers/loader_spdl.py.
    "spdl": {
        "v2 tensors": Way("decode_image and transforms.v2, which leave the interpreter's lock", options=("--way", "v2")),
        "PIL, per batch": Way("PIL's work leaves the lock too", options=("--way", "pil-batch")),
        "one thread more": Way("a thread that waits for the lock leaves a core free",
                               options=("--way", "v2", "--extra-threads", "1"), tune_only=True),
    },
    # Options of peers/loader_datago.py.
    "datago": {
        "default": Way("as many tasks as the others have workers"),
        "one task more": Way("reading and decoding overlap", options=("--extra-threads", "1"), tune_only=True),
        "two tasks more": Way("the same", options=("--extra-threads", "2"), tune_only=True),
    },
}


def usual(peer: str) -> dict[str, Way]:
    """The ways that a bench chooses from."""
    return {name: way for name, way in WAYS[peer].items() if not way.tune_only}
