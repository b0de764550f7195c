"""./dev conformance: PyTorch's own distributed tests on Lockstep and on Gloo, compared test by test.

Results are in BUILD/../conformance, a line of JSON per test. Gloo's tests run once per torch release and world size. Ours
run in each call; --resume continues an earlier call that was stopped. Exit code 0: every test that passes with Gloo passes
with Lockstep, and Lockstep skips no test that Gloo runs (except those of ABOUT_GLOO).
"""
import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).parent

# Tests of Gloo itself. DDP's logger casts any backend that is registered as GLOO to ProcessGroupGloo (static_cast) and
# reads its number of threads. The test expects Gloo's default, 2. No other backend can pass it.
ABOUT_GLOO = {"test_ddp_logging_data_cpu"}


def parse():
    parser = argparse.ArgumentParser(prog="./dev conformance")
    parser.add_argument("--build", required=True, type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--site", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--torch", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--world", type=int, action="append", help="ranks; may be given several times (default: 2)")
    parser.add_argument("--filter", default="", help="regular expression for names of tests")
    parser.add_argument("--jobs", type=int, default=2, help="tests at once (default: 2)")
    parser.add_argument("--resume", action="store_true", help="run only tests that have no Lockstep result yet")
    parser.add_argument("--quiet", action="store_true", help="print only tests with different results")
    return parser.parse_args()


def load(path):
    if not path.exists():
        return {}
    with open(path) as file:
        return {entry["test"]: entry for entry in map(json.loads, file)}


def forget(path, pattern):
    """Drops the results of tests that will run again."""
    kept = [entry for name, entry in load(path).items() if not re.search(pattern, name)]
    temporary = path.with_suffix(".new")
    temporary.write_text("".join(json.dumps(entry) + "\n" for entry in kept))
    os.replace(temporary, path)


def run(options, engine, world, path):
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join([str(options.build / "python"), options.site])
    command = [sys.executable, str(HERE / "suite.py"), "--engine", engine, "--world", str(world), "--results", str(path)]
    command += ["--filter", options.filter, "--jobs", str(options.jobs)]
    subprocess.run(command, env=environment, check=True)


def table(gloo, ours, quiet):
    worse = []
    for name in sorted(gloo):
        theirs, mine = gloo[name]["outcome"], ours.get(name, {"outcome": "not run"})["outcome"]
        if mine != theirs and (theirs == "passed" or mine == "failed") and name not in ABOUT_GLOO:
            worse.append(name)
        note = "   <--" if name in worse else "   about Gloo itself" if name in ABOUT_GLOO else ""
        if not quiet or mine != theirs:
            print(f"  {name:<76} {theirs:>8} {mine:>9}{note}")
    return worse


def counts(results):
    return collections.Counter(entry["outcome"] for entry in results.values())


def main():
    options = parse()
    folder = options.build.parent / "conformance"
    folder.mkdir(parents=True, exist_ok=True)
    lines, well = [], True
    for world in options.world or [2]:
        paths = {engine: folder / f"torch{options.torch}-world{world}-{engine}.jsonl" for engine in ("gloo", "lockstep")}
        if not options.resume:
            forget(paths["lockstep"], options.filter)
        for engine, path in paths.items():
            run(options, engine, world, path)
        gloo, ours = (
            {name: entry for name, entry in load(path).items() if re.search(options.filter, name)} for path in paths.values()
        )
        print(f"\ntorch {options.torch}, world {world}{'':<57} {'gloo':>8} {'lockstep':>9}")
        worse = table(gloo, ours, options.quiet)
        for name in worse:
            print(f"\n== {name}\n{ours.get(name, {}).get('reason', '')}")
        for engine, results in (("gloo", gloo), ("lockstep", ours)):
            count = counts(results)
            lines.append(
                f"world {world}, {engine:<8}: {count['passed']} passed, {count['skipped']} skipped, {count['failed']} failed"
            )
        well = well and not worse and bool(gloo)
    print("\n" + "\n".join(lines))
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
