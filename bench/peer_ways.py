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
    pinned: bool = True  # Python ranks alone: each to its share of the cores
    collective: bool = False  # also tried for operations other than all-reduce
    all_reduce: bool = True  # tried for all-reduces
    memory: str = "private"  # of the MPI programs' buffers; "mpi": what MPI_Alloc_mem gives


def tuned(algorithm: int, **more: str) -> dict[str, str]:
    """Open MPI's choice of algorithm by hand."""
    return {
        "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
        "OMPI_MCA_coll_tuned_allreduce_algorithm": str(algorithm),
        **more,
    }


def tuned_collectives(**algorithms: int) -> dict[str, str]:
    """The same for the other operations. Long vectors move in pieces that stay in the cache, where the algorithm can."""
    segments = {f"OMPI_MCA_coll_tuned_{name}_algorithm_segmentsize": "131072" for name in ("bcast", "reduce")}
    chosen = {f"OMPI_MCA_coll_tuned_{name}_algorithm": str(number) for name, number in algorithms.items()}
    return {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1", **segments, **chosen}


# Each moves every byte once a phase; which one wins depends on the size.
OPEN_MPI = {
    "default": Way("what a user gets", collective=True),
    "ring": Way("each rank sums a share: fewest bytes for long vectors", tuned(4)),
    "rabenseifner": Way("halving and doubling: as few bytes in fewer steps", tuned(6)),
    "recursive doubling": Way("fewest steps, for short vectors", tuned(3)),
    "segmented ring": Way("the ring in pieces that stay in the cache; without a size it is the plain ring", tuned(
        5, OMPI_MCA_coll_tuned_allreduce_algorithm_segmentsize="262144")),
    "no single copy, segmented ring": Way("both", tuned(
        5, OMPI_MCA_coll_tuned_allreduce_algorithm_segmentsize="262144",
        OMPI_MCA_btl_vader_single_copy_mechanism="none", OMPI_MCA_smsc="^cma")),
    "segmented ring, 1 MiB": Way("larger pieces, fewer messages", tuned(
        5, OMPI_MCA_coll_tuned_allreduce_algorithm_segmentsize="1048576"), tune_only=True),
    "pipelines": Way("chains of pieces; halves of a reduce-scatter", tuned_collectives(
        bcast=3, reduce=3, reduce_scatter_block=3, allgather=4, alltoall=2, gather=3, scatter=2),
        collective=True, all_reduce=False),
    "trees": Way("scatter and all-gather instead of whole vectors", tuned_collectives(
        bcast=8, reduce=7, reduce_scatter_block=4, allgather=3, alltoall=4, gather=2, scatter=3),
        collective=True, all_reduce=False),
    "straight": Way("root to each, for few ranks", tuned_collectives(
        bcast=1, reduce=1, reduce_scatter_block=2, allgather=1, alltoall=1, gather=1, scatter=1),
        collective=True, all_reduce=False),
    "no single copy": Way("through shared memory instead of process_vm_readv (CMA): no system call", {
        "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMPI_MCA_smsc": "^cma"},
        collective=True),
    "no single copy, eager": Way("the same, and messages of up to 64 KiB are sent before the receiver asks", {
        "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMPI_MCA_smsc": "^cma",
        "OMPI_MCA_btl_vader_eager_limit": "65536", "OMPI_MCA_btl_sm_eager_limit": "65536"}, collective=True),
    "ring, no single copy": Way("both", tuned(4, OMPI_MCA_btl_vader_single_copy_mechanism="none", OMPI_MCA_smsc="^cma")),
    "coll sm": Way("collectives in shared memory", {"OMPI_MCA_coll_sm_priority": "100"}, collective=True),
}
# Over machines: some of the above, and by levels.
# Where there are more ranks than cores, each machine's part of the job does not see that: a rank that only spins keeps
# the core from the rank that it waits for.
MPI_YIELDS = {"OMPI_MCA_mpi_yield_when_idle": "1"}
OVER_UCX = {"OMPI_MCA_pml": "ucx", "OMPI_MCA_pml_ucx_tls": "any", "OMPI_MCA_pml_ucx_devices": "any",
            "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}  # its shared memory would take namespaces for one machine
OVER_TCP = {
    **{name: OPEN_MPI[name] for name in ("default", "ring", "rabenseifner", "recursive doubling", "segmented ring")},
    "UCX": Way("the library that ours has, over TCP as well", OVER_UCX),
    "UCX, segmented ring": Way("both", {**OPEN_MPI["segmented ring"].environment, **OVER_UCX}),
    "coll han": Way("sums within a machine first, so fewer bytes are on the wire", {"OMPI_MCA_coll_han_priority": "100"}),
}
SHARED_CORE_WAYS = {
    "default": OPEN_MPI["default"],
    **{f"{name}, yield": Way(way.reason, {**way.environment, **MPI_YIELDS}) for name, way in OVER_TCP.items()},
}
OWN_CORE_WAYS = {
    **OVER_TCP,
    "default, yield": SHARED_CORE_WAYS["default, yield"],
    "ring, two connections": Way("both are written at a time", tuned(4, OMPI_MCA_btl_tcp_links="2")),
    "large fragments": Way("fewer system calls", {
        "OMPI_MCA_btl_tcp_max_send_size": "1048576", "OMPI_MCA_btl_tcp_rdma_pipeline_send_length": "1048576",
        "OMPI_MCA_btl_tcp_rdma_pipeline_frag_size": "4194304"}),
}
# Settings that can be combined, which a bench searches one after another (settings.py). Of peers/ddp_step.py and
# peers/train.py.
PINNED = {"pinned": Way("a core for each rank, as all have it"),
          "not pinned": Way("Gloo's threads may use the other rank's core while that one waits", pinned=False)}
# In the place of glibc's malloc. What is freed stays with the process, as in harness.ENVIRONMENT.
JEMALLOC = {"LD_PRELOAD": "libjemalloc.so.2", "MALLOC_CONF": "thp:always,dirty_decay_ms:-1,muzzy_decay_ms:-1"}
ALLOCATOR = {"malloc": Way("glibc's, with huge pages, as all have it"),
             "jemalloc": Way("another allocator, which PyTorch's guide to tuning recommends", JEMALLOC)}
# Threads have heaps of their own, which grow by 128 KiB a time otherwise.
LOADER_ALLOCATOR = {**ALLOCATOR, "malloc that grows by 64 MiB": Way(
    "fewer system calls for batches, also in threads", {"MALLOC_TOP_PAD_": str(64 << 20)})}
LAYOUT = {"contiguous": Way("what a user gets"),
          "channels last": Way("the layout that the CPU's convolutions and poolings like better", options=("--channels-last",))}
BUCKETS = {"25 MiB": Way("the default size of buckets"),
           "1 MiB": Way("small buckets, so that communication starts early", options=("--bucket-mb", "1")),
           "100 MiB": Way("one bucket: one all-reduce", options=("--bucket-mb", "100"))}
COMPILE = {"eager": Way("what a user gets"),
           "compiled": Way("the model by torch.compile; the first epoch is not counted", options=("--compile",))}
COMPILED_LAYOUT = {"TorchInductor's layout": Way("it gives convolutions channels_last"),
                   "plain layout": Way("which is faster for small pictures", {"TORCHINDUCTOR_LAYOUT_OPTIMIZATION": "0"})}
UCX_SHM = {"OMPI_MCA_pml": "ucx", "OMPI_MCA_pml_ucx_tls": "any", "OMPI_MCA_pml_ucx_devices": "any",
           "UCX_TLS": "posix,sysv,cma,self"}
INTEL_SHM = {"I_MPI_FABRICS": "shm"}
INTEL_HEAP = {**INTEL_SHM, "I_MPI_SHM_HEAP": "1", "I_MPI_SHM_HEAP_VSIZE": "1024"}
CCL = {"CCL_WORKER_OFFLOAD": "0", "CCL_LOG_LEVEL": "error"}


def intel_collectives(**algorithms: int) -> dict[str, str]:
    """Intel MPI's choice by hand. Its own takes longer for a reduce of 1 MiB than for one of 4 MiB."""
    return {**INTEL_SHM, **{f"I_MPI_ADJUST_{name.upper()}": str(number) for name, number in algorithms.items()}}


def mpich_algorithm(name: str) -> dict[str, str]:
    """The device has collectives of its own, which do not ask for this algorithm; so without them."""
    return {"MPIR_CVAR_DEVICE_COLLECTIVES": "none", "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": name}


MONARCH_QUIET = {"ENABLE_OTEL_TRACING": "0", "ENABLE_OTEL_METRICS": "0", "ENABLE_RECORDER_TRACING": "0",
                 "MONARCH_FILE_LOG": "off"}
MONARCH_NO_GRACE = {"HYPERACTOR_FORWARDER_FLUSH_TIMEOUT": "1ms", "HYPERACTOR_MESH_TERMINATE_TIMEOUT": "1ms"}
MONARCH_AT_ONCE = ("--grace", "0", "--at-once")
RELEASE_GATHER = {"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "auto",
                  "MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM": "release_gather"}
WAYS: dict[str, dict[str, Way]] = {
    "openmpi": {
        **OPEN_MPI,
        "UCX": Way("UCX's shared memory instead of Open MPI's", UCX_SHM, collective=True),
        "UCX, segmented ring": Way("both", {**OPEN_MPI["segmented ring"].environment, **UCX_SHM}),
    },
    "openmpi5": {
        **OPEN_MPI,
        "coll han": Way("by levels of the machine; off for one node", {"OMPI_MCA_coll_han_priority": "100"}, tune_only=True),
    },
    "mpich": {
        "default": Way("what a user gets"),
        "release gather": Way("collectives in shared memory", RELEASE_GATHER),
        "release gather, 1 MiB": Way("the same with larger buffers: fewer hand-overs", {
            **RELEASE_GATHER, "MPIR_CVAR_REDUCE_INTRANODE_BUFFER_TOTAL_SIZE": "1048576",
            "MPIR_CVAR_BCAST_INTRANODE_BUFFER_TOTAL_SIZE": "1048576"}),
        "ring": Way("fewest bytes for long vectors", mpich_algorithm("ring"), tune_only=True),
        "reduce-scatter": Way("as few bytes in fewer steps", mpich_algorithm("reduce_scatter_allgather")),
        "recursive doubling": Way("fewest steps, for short vectors", mpich_algorithm("recursive_doubling"),
                                  tune_only=True),
        "no CMA": Way("through shared memory instead of process_vm_readv", {"MPIR_CVAR_CH4_CMA_ENABLE": "0"}),
        "UCX without CMA": Way("the same for the device that is the default", {"UCX_TLS": "posix,self"}),
        "OFI": Way("the other device", {"MPIR_CVAR_CH4_NETMOD": "ofi"}, tune_only=True),
    },
    "intelmpi": {
        "shm": Way("one machine needs no network", INTEL_SHM, collective=True),
        "shm, rabenseifner": Way("fewest bytes", {**INTEL_SHM, "I_MPI_ADJUST_ALLREDUCE": "2"}),
        "shm, recursive doubling": Way("fewest steps", {**INTEL_SHM, "I_MPI_ADJUST_ALLREDUCE": "1"}, tune_only=True),
        "shm, ring": Way("fewest bytes", {**INTEL_SHM, "I_MPI_ADJUST_ALLREDUCE": "8"}),
        "shm, shumilin's ring": Way("a ring of its own", {**INTEL_SHM, "I_MPI_ADJUST_ALLREDUCE": "7"}, tune_only=True),
        "shm, flat": Way("all read each other", {**INTEL_SHM, "I_MPI_ADJUST_ALLREDUCE": "10"}, tune_only=True),
        "shm, k-ary tree": Way("a tree in shared memory", {**INTEL_SHM, "I_MPI_ADJUST_ALLREDUCE": "12"}, tune_only=True),
        "shm, no CMA": Way("through shared memory instead of process_vm_readv", {**INTEL_SHM, "I_MPI_SHM_CMA": "0"},
                           tune_only=True),
        "shm, trees": Way("binomial trees, pairs", intel_collectives(
            bcast=1, reduce=2, reduce_scatter_block=2, allgather=1, alltoall=3, gather=1, scatter=1),
            collective=True, all_reduce=False),
        "shm, shumilin's": Way("pieces", intel_collectives(
            bcast=7, reduce=1, reduce_scatter_block=3, allgather=3, alltoall=2, gather=3, scatter=3),
            collective=True, all_reduce=False),
        "shm, shares": Way("scatter and all-gather instead of whole vectors", intel_collectives(
            bcast=3, reduce=5, reduce_scatter_block=1, allgather=2, alltoall=4, gather=4, scatter=2),
            collective=True, all_reduce=False),
        "shm, shared heap": Way("buffers of MPI_Alloc_mem in memory that all ranks map, as the engine's are",
                                INTEL_HEAP, collective=True, memory="mpi"),
        "shm, shared heap, ring": Way("both", {**INTEL_HEAP, "I_MPI_ADJUST_ALLREDUCE": "8"}, memory="mpi"),
        "shm, shared heap, rabenseifner": Way("both", {**INTEL_HEAP, "I_MPI_ADJUST_ALLREDUCE": "2"}, memory="mpi"),
        "default": Way("what a user gets: shm and OFI", tune_only=True),
    },
    "oneccl": {
        "direct": Way("the calling thread works: on all cores a rank, a second thread only takes time",
                      {**CCL, **INTEL_SHM, "CCL_ALLREDUCE": "direct"}),
        "default": Way("oneCCL's choice of algorithm, the calling thread works", {**CCL, **INTEL_SHM}),
        "ring": Way("fewest bytes", {**CCL, **INTEL_SHM, "CCL_ALLREDUCE": "ring"}),
        "rabenseifner": Way("as few bytes in fewer steps", {**CCL, **INTEL_SHM, "CCL_ALLREDUCE": "rabenseifner"}),
        "recursive doubling": Way("fewest steps", {**CCL, **INTEL_SHM, "CCL_ALLREDUCE": "recursive_doubling"}),
        "ring, shared heap": Way("buffers in memory that all ranks of Intel MPI map", {
            **CCL, **INTEL_HEAP, "CCL_ALLREDUCE": "ring"}, memory="mpi"),
        "nreduce": Way("all to one and back in shares", {**CCL, **INTEL_SHM, "CCL_ALLREDUCE": "nreduce"}, tune_only=True),
        "double tree": Way("two trees, each with half", {**CCL, **INTEL_SHM, "CCL_ALLREDUCE": "double_tree"},
                           tune_only=True),
        "OFI": Way("libfabric carries it instead of MPI", {**CCL, "CCL_ATL_TRANSPORT": "ofi"}, tune_only=True),
        "worker": Way("what a user gets: a thread of its own", {"CCL_LOG_LEVEL": "error"}, tune_only=True),
    },
    "gloo": {
        "loopback": Way("one machine: no other interface is asked", {"GLOO_SOCKET_IFNAME": "lo"}),
        "loopback, not pinned": Way("its threads may use the other rank's core while that one waits",
                                    {"GLOO_SOCKET_IFNAME": "lo"}, pinned=False),
        "loopback, not pinned, own barrier": Way("no rank spins at the meeting of all, on a core that a thread of Gloo may need",
                                                 {"GLOO_SOCKET_IFNAME": "lo"}, options=("--own-barrier",), pinned=False),
        "default": Way("what a user gets", tune_only=True),
        "two devices": Way("each has a thread, and operations take turns", {"GLOO_SOCKET_IFNAME": "lo,lo"}, tune_only=True),
        "aligned pages": Way("tensors begin at a huge page", {"GLOO_SOCKET_IFNAME": "lo", "THP_MEM_ALLOC_ENABLE": "1"},
                             tune_only=True),
    },
    # Options of peers/ddp_step.py. gradient_as_bucket_view is always on: it saves a copy.
    "pytorch": {
        "fused, static": Way("one kernel for all parameters; the graph is known after one step",
                             options=("--implementation", "fused", "--static-graph")),
        "fused, static, not pinned": Way("Gloo's threads may use the other rank's core while that one waits",
                                         options=("--implementation", "fused", "--static-graph"), pinned=False),
        "fused, static, channels last": Way("the layout that the CPU's convolutions and poolings like better", options=(
            "--implementation", "fused", "--static-graph", "--channels-last")),
        "fused, static, channels last, not pinned": Way("both", pinned=False, options=(
            "--implementation", "fused", "--static-graph", "--channels-last")),
        "fused, static, channels last, jemalloc": Way(
            "another allocator, which PyTorch's guide to tuning recommends", JEMALLOC,
            options=("--implementation", "fused", "--static-graph", "--channels-last")),
        "fused, static, jemalloc": Way("the same", JEMALLOC, options=("--implementation", "fused", "--static-graph"),
                                       tune_only=True),
        "fused": Way("one kernel for all parameters", options=("--implementation", "fused"), tune_only=True),
        "foreach, static": Way("one call for all parameters", options=("--implementation", "foreach", "--static-graph"),
                               tune_only=True),
        "plain, static": Way("torch's default on the CPU", options=("--implementation", "plain", "--static-graph"),
                             tune_only=True),
        "plain": Way("what a user gets, with gradient_as_bucket_view", options=("--implementation", "plain"), tune_only=True),
        "fused, static, compiled": Way("torch.compile: TorchInductor's kernels, a graph instead of Python",
                                       options=("--implementation", "fused", "--static-graph", "--compile"), tune_only=True),
        "fused, static, compiled, plain layout": Way(
            "TorchInductor gives convolutions channels_last otherwise, which is slower for small pictures", tune_only=True,
            environment={"TORCHINDUCTOR_LAYOUT_OPTIMIZATION": "0"},
            options=("--implementation", "fused", "--static-graph", "--compile")),
        "fused, static, 1 MiB": Way("small buckets, so that communication starts early",
                                    options=("--implementation", "fused", "--static-graph", "--bucket-mb", "1")),
        "fused, static, 100 MiB": Way("one bucket: one all-reduce",
                                      options=("--implementation", "fused", "--static-graph", "--bucket-mb", "100")),
    },
    # Options of peers/train.py. gradient_as_bucket_view is always on.
    "pytorch-job": {
        "v2 tensors in process": Way("decode_image and transforms.v2 by the rank itself: no hand-over; fused, static as above",
                                     options=("--way", "v2", "--static-graph")),
        "v2 tensors in process, not pinned": Way("Gloo's threads may use the other rank's core while that one waits",
                                                 options=("--way", "v2", "--static-graph"), pinned=False, tune_only=True),
        "v2 tensors, a worker": Way("a process decodes while the rank waits for Gloo",
                                    options=("--way", "v2", "--static-graph", "--workers", "1"), pinned=False),
        "PIL, one turn in process": Way("PIL pictures, normalised per batch; flips, rotation and shift in one pass",
                                        options=("--way", "pil-turn", "--static-graph")),
        "PIL, draft in process": Way("the same, decoded no larger than the crop needs (Image.draft), as ours",
                                     options=("--way", "pil-draft", "--static-graph")),
        "PIL, draft in process, jemalloc": Way("the same with another allocator", JEMALLOC,
                                               options=("--way", "pil-draft", "--static-graph"), tune_only=True),
        "PIL, draft in process, compiled": Way("the model by torch.compile; the first epoch is not counted",
                                               options=("--way", "pil-draft", "--static-graph", "--compile"), tune_only=True),
        "PIL, one turn, a worker": Way("the turn by a process of its own",
                                       options=("--way", "pil-turn", "--static-graph", "--workers", "1"), pinned=False),
        "PIL, per batch, a worker": Way("PIL pictures, made float and normalised per batch", tune_only=True, pinned=False,
                                        options=("--way", "pil-batch", "--static-graph", "--workers", "1")),
        "PIL": Way("what tutorials show", options=("--way", "pil", "--implementation", "plain", "--workers", "1"),
                   tune_only=True, pinned=False),
    },
    # Options of peers/loader.py.
    "torchvision": {
        "v2 tensors": Way("decode_image and transforms.v2 on uint8 tensors, normalised per batch", options=("--way", "v2")),
        "v2 tensors, bytes": Way("the same, but workers pass bytes: a quarter of what goes through shared memory",
                                 options=("--way", "v2", "--bytes")),
        "PIL, per batch": Way("PIL pictures, made float and normalised per batch", options=("--way", "pil-batch")),
        "PIL, one turn": Way("the same, and flips and rotations in one pass, as DALI has it", options=("--way", "pil-turn")),
        "PIL, one turn, bytes": Way("both", options=("--way", "pil-turn", "--bytes")),
        "PIL, draft": Way("one turn, and files are decoded no larger than the crop needs (Image.draft)",
                          options=("--way", "pil-draft")),
        "PIL, draft, bytes": Way("both", options=("--way", "pil-draft", "--bytes")),
        "three workers": Way("a worker that waits leaves a core free",
                             options=("--way", "v2", "--bytes", "--extra-threads", "1"), tune_only=True),
        "PIL": Way("what tutorials show: ToTensor and Normalize for each picture", options=("--way", "pil"), tune_only=True),
    },
    # Options of peers/loader_dali.py.
    "dali": {
        "fast": Way("nearest pixels as in all, fast IDCT, the sums of both rotations in one warp_affine"),
        "read ahead": Way("no mmap of the files", options=("--read-ahead",), tune_only=True),
        "one thread more": Way("the reader's thread sleeps now and then", options=("--extra-threads", "1")),
        "exact IDCT": Way("DALI's default", options=("--exact-idct",), tune_only=True),
    },
    # Options of peers/loader_spdl.py.
    "spdl": {
        "v2 tensors": Way("decode_image and transforms.v2, which leave the interpreter's lock", options=("--way", "v2")),
        "PIL, per batch": Way("PIL's work leaves the lock too", options=("--way", "pil-batch")),
        "PIL, one turn": Way("flips and rotations in one pass, as DALI has it", options=("--way", "pil-turn")),
        "PIL, draft": Way("and files are decoded no larger than the crop needs", options=("--way", "pil-draft")),
        "FFmpeg": Way("SPDL's own decoder, also no larger than the crop needs, with FFmpeg's filters; then PIL",
                      options=("--way", "ffmpeg")),
        "one thread more": Way("a thread that waits for the lock leaves a core free",
                               options=("--way", "v2", "--extra-threads", "1"), tune_only=True),
    },
    # Options of peers/loader_datago.py.
    "datago": {
        "default": Way("as many tasks as the others have workers"),
        "one task more": Way("reading and decoding overlap", options=("--extra-threads", "1")),
        "two tasks more": Way("the same", options=("--extra-threads", "2")),
        "four tasks more": Way("the same", options=("--extra-threads", "4")),
    },
    # Options of torchrun; PORT is replaced by a free one.
    "torchrun": {
        "static": Way("no random delay of up to 0.3 s before the ranks meet, and a closer look at whether they have ended",
                      options=("--rdzv_backend", "static", "--nnodes", "1", "--node_rank", "0", "--master_addr", "127.0.0.1",
                               "--master_port", "PORT", "--monitor_interval", "0.01")),
        "static, 1 ms": Way("it looks every millisecond whether ranks have ended", options=(
            "--rdzv_backend", "static", "--nnodes", "1", "--node_rank", "0", "--master_addr", "127.0.0.1",
            "--master_port", "PORT", "--monitor_interval", "0.001")),
        "standalone": Way("what its manual shows: a meeting over c10d", options=("--standalone",)),
    },
    # Options of peers/monarch_launch.py.
    "torchmonarch": {
        "at once": Way("it does not wait at the end: not for its processes, its last messages, its interpreter's and threads' ends",
                       MONARCH_NO_GRACE, options=MONARCH_AT_ONCE),
        "at once, no records": Way("nor does it write traces, metrics and a log", {**MONARCH_NO_GRACE, **MONARCH_QUIET},
                                   options=MONARCH_AT_ONCE),
        "no grace": Way("`shutdown_context(host_timeout=0)`: it waits for its processes for 0.3 s otherwise",
                        options=("--grace", "0"), tune_only=True),
        "default": Way("what a user gets"),
    },
}
# Of peers/monarch_recovery.py.
MONARCH_RECOVERY = {
    "spare": Way("a process has loaded torch before it is needed, as ours on standby",
                 {"GLOO_SOCKET_IFNAME": "lo", **MONARCH_QUIET}, options=("--spare",)),
    "no spare": Way("only the lost process is spawned again", {"GLOO_SOCKET_IFNAME": "lo", **MONARCH_QUIET}),
}

# For the start of many ranks on few cores. Programs that only start open every network's library otherwise.
START_WAYS: dict[str, dict[str, Way]] = {
    "openmpi": {
        "default": Way("what a user gets"),
        "shared memory alone": Way("one machine needs no network: none is looked for", {
            "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "vader,self", **MPI_YIELDS}),
    },
    "openmpi5": {
        "default": Way("what a user gets"),
        "shared memory alone": Way("one machine needs no network: none is looked for", {
            "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "sm,self", **MPI_YIELDS}),
    },
    "mpich": {
        "default": Way("what a user gets"),
        "shared memory alone": Way("one machine needs no network: none is looked for", {"UCX_TLS": "posix,self"}),
        "shared memory alone, heavy yield": Way("a rank that waits leaves its core to the others", {
            "UCX_TLS": "posix,self", "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}),
    },
    "intelmpi": {
        "shm": Way("one machine needs no network: libfabric is not loaded", INTEL_SHM),
        "shm, yield": Way("a rank that waits leaves its core to the others", {**INTEL_SHM, "I_MPI_THREAD_YIELD": "2"}),
        "default": Way("what a user gets: shm and OFI"),
    },
}


def usual(peer: str) -> dict[str, Way]:
    """The ways that a bench chooses from."""
    return {name: way for name, way in WAYS[peer].items() if not way.tune_only}
