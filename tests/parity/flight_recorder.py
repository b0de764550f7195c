"""Reads files of `lockstep inspect --pytorch` with PyTorch's own analyser: flight_recorder.py FOLDER. Prints a line for each collective
that it has put together."""
import sys

from torch.distributed.flight_recorder.components.builder import build_db
from torch.distributed.flight_recorder.components.config_manager import JobConfig
from torch.distributed.flight_recorder.components.loader import read_dir

arguments = JobConfig().parse_args([sys.argv[1]])
details, version = read_dir(arguments)
database = build_db(details, arguments, version)
for one in database.collectives:
    missing = "" if not one.missing_ranks else f", missing {sorted(one.missing_ranks)}"
    print(f"{one.collective_name} #{one.collective_seq_id} of {one.pg_desc}, {one.input_sizes}, "
          f"{'good' if one.pass_check else 'bad'}{missing}")
