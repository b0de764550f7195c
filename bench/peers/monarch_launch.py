"""Peer: Monarch starts processes, each of which does nothing, and ends: monarch_launch.py PROCESSES [--grace SECONDS]."""

import argparse

from monarch.actor import Actor, endpoint, shutdown_context, this_host


class Nothing(Actor):
    @endpoint
    def run(self) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("processes", type=int)
    parser.add_argument("--grace", type=float, help="how long the processes may take to end; without it Monarch's own way")
    arguments = parser.parse_args()
    processes = this_host().spawn_procs(per_host={"gpus": arguments.processes})
    processes.spawn("nothing", Nothing).run.call().get()
    if arguments.grace is not None:
        shutdown_context(host_timeout=arguments.grace).get()


if __name__ == "__main__":
    main()
