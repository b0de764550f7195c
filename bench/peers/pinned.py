"""Runs a command as a rank of torchrun, pinned to its share of the cores: pinned.py COMMAND...

The share is that of `lockstep run`: none with more ranks than cores.
"""

import os
import sys

cores = sorted(os.sched_getaffinity(0))
rank, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
if 1 < ranks <= len(cores):
    os.sched_setaffinity(0, cores[rank * len(cores) // ranks : (rank + 1) * len(cores) // ranks])
os.execvp(sys.argv[1], sys.argv[1:])
