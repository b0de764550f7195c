"""Peer: Monarch starts processes, each of which does nothing, and ends: monarch_launch.py PROCESSES [OPTION]...

On several machines, each has a worker loop (--serve ADDRESS), and one has the program that starts PROCESSES on each of them
too (--address ADDRESS --workers ADDRESS...).
"""

import argparse
import os

from monarch.actor import (
    Actor,
    HostMesh,
    attach_to_workers,
    enable_transport,
    endpoint,
    run_worker_loop_until_shutdown,
    shutdown_context,
    this_host,
)

TRUSTING = "trust_all_connections"  # the only kind that Monarch has


class Nothing(Actor):
    @endpoint
    def run(self) -> None:
        pass


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("processes", type=int)
    parser.add_argument("--grace", type=float, help="seconds that the processes get to end; without it Monarch's own way")
    parser.add_argument("--at-once", action="store_true",
                        help="leave when no process is left, without the ends of the interpreter and of Monarch's threads")
    parser.add_argument("--serve", help="be the worker loop at this address")
    parser.add_argument("--address", help="own address, for workers on other machines")
    parser.add_argument("--workers", nargs="+", help="their addresses")
    return parser.parse_args()


def start(hosts: HostMesh, processes: int) -> None:
    hosts.spawn_procs(per_host={"gpus": processes}).spawn("nothing", Nothing).run.call().get()


def main() -> None:
    arguments = parse_arguments()
    if arguments.serve:
        run_worker_loop_until_shutdown(address=arguments.serve, ca=TRUSTING)
    elif arguments.workers:
        enable_transport(arguments.address)
        hosts = attach_to_workers(workers=arguments.workers, ca=TRUSTING)
        start(hosts, arguments.processes)
        hosts.shutdown().get()
    else:
        start(this_host(), arguments.processes)
    if arguments.grace is not None:
        shutdown_context(host_timeout=arguments.grace).get()
    if arguments.at_once:
        os._exit(0)


if __name__ == "__main__":
    main()
