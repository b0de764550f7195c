"""Run by ctest: the Debian packages install and run in a root that has nothing but what they depend on.

The root is made of the files of the installed packages that the packages of programs name in Depends, and of those that these
name.
So a dependency that is missing there is a library that is missing in the root. Entering it needs root, or a kernel
that lets users make namespaces.

usage: clean_root.py CPACK_CONFIG SCRATCH
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

COMPONENTS = ("core", "vision", "studio")
TEST_PACKAGES = ["bash", "coreutils", "libc-bin"]  # what the test itself runs


def output(*command, **options):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {result.returncode}:\n{result.stdout}")
    return result.stdout


def named_in(depends):
    """The first alternative of each dependency: "libc6 (>= 2.34), libfmt9 | libfmt10"."""
    return [re.sub(r"[ (:|].*", "", part.strip()) for part in depends.split(",") if part.strip()]


def providers():
    """Names that installed packages provide, such as libspdlog1.10-fmt9."""
    of_name = {}
    for line in output("dpkg-query", "-W", "-f", "${Package}\t${Provides}\n").splitlines():
        package, provided = line.split("\t")
        for name in named_in(provided):
            of_name.setdefault(name, package)
    return of_name


def with_dependencies(names):
    seen, todo, of_name = set(), list(names), providers()
    while todo:
        name = todo.pop()
        name = of_name.get(name, name)
        if name in seen:
            continue
        seen.add(name)
        shown = subprocess.run(["dpkg-query", "-W", "-f", "${Pre-Depends},${Depends}", name], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True, check=False)
        todo += named_in(shown.stdout.replace("\n", ","))
    return sorted(seen)


def copy_files_of(package, root):
    listed = subprocess.run(["dpkg-query", "-L", package], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                            check=False)
    for path in listed.stdout.splitlines():
        if "/share/doc/" in path or "/share/locale/" in path or "/share/man/" in path or not os.path.lexists(path):
            continue
        # /lib is a link to /usr/lib, and so on.
        target = root / os.path.realpath(os.path.dirname(path)).lstrip("/") / os.path.basename(path)
        if os.path.islink(path) and not os.path.isdir(path):
            target.parent.mkdir(parents=True, exist_ok=True)
            if not os.path.lexists(target):
                os.symlink(os.readlink(path), target)
        elif os.path.isfile(path):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)


def make_root(depends, root):
    for folder in ("usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "dev", "proc", "tmp", "root"):
        (root / folder).mkdir(parents=True)
    for link in ("bin", "sbin", "lib", "lib64"):
        (root / link).symlink_to(f"usr/{link}")
    for package in with_dependencies(named_in(depends) + TEST_PACKAGES):
        copy_files_of(package, root)
    # What the dynamic loader's package says of its folders.
    for path in ("ld.so.conf", "ld.so.conf.d"):
        source, target = pathlib.Path("/etc", path), root / "etc" / path
        target.parent.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        elif source.exists():
            shutil.copy(source, target)


ENTER = """set -e
mount --rbind /dev "$0/dev"
mount -t proc proc "$0/proc"
chroot "$0" /sbin/ldconfig
exec chroot "$0" /bin/bash -ec "$1"
"""


def run_in(root, script):
    namespaces = ["unshare", "--mount", "--pid", "--fork"] + ([] if os.geteuid() == 0 else ["--map-root-user"])
    return output(*namespaces, "bash", "-c", ENTER, root, script,
                  env={"PATH": "/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin", "HOME": "/root"})


def expect(text, *parts):
    for part in parts:
        if part not in text:
            sys.exit(f"expected '{part}' in:\n{text}")


PROGRAM = 'echo "rank $RANK of $WORLD_SIZE"'


def depends_of(package):
    return output("dpkg-deb", "-f", package, "Depends").strip()


def check_packages(packages, scratch):
    programs = [next(packages.glob(f"lockstep-{component}_*.deb")) for component in COMPONENTS]
    development = [next(packages.glob(f"lockstep-{component}-dev_*.deb")) for component in COMPONENTS]
    version = output("dpkg-deb", "-f", programs[0], "Version").strip()
    expect(depends_of(development[0]), f"lockstep-core (= {version})", "libfmt-dev")
    expect(depends_of(development[1]), f"lockstep-core-dev (= {version})", "libpng-dev")
    depends = [depends_of(package) for package in programs]
    expect(depends[0], "libc6", "libstdc++6")
    expect(depends[1], f"lockstep-core (= {version})", "libpng16")
    for unwanted in ("torch", "libpng", "yaml"):
        if unwanted in depends[0]:
            sys.exit(f"core needs no {unwanted}, but Depends is: {depends[0]}")
    # Core alone runs jobs, and says what the other packages are for.
    root = scratch / "core"
    make_root(depends[0], root)
    output("dpkg-deb", "-x", programs[0], root)
    expect(run_in(root, "lockstep --version"), "lockstep ")
    expect(run_in(root, f"lockstep run --nproc-per-node 2 bash -c '{PROGRAM}'"), "rank 0 of 2", "rank 1 of 2")
    expect(run_in(root, "lockstep run --config none.yaml true || test $? = 127"), "Debian package lockstep-studio")
    if "torch" in version:
        expect(run_in(root, "lockstep checkpoint show none.pt || test $? = 1"), "needs LibTorch", "LOCKSTEP_TORCH_DIR")
    # All of them.
    root = scratch / "all"
    make_root(", ".join(depends), root)
    for package in programs:
        output("dpkg-deb", "-x", package, root)
    expect(run_in(root, "lockstep doctor || test $? = 1"), "all_reduce", "libtorch")
    expect(run_in(root, "lockstep new /tmp/pictures && ls /tmp/pictures"), "trainer")
    expect(run_in(root, "lockstep data check /tmp/pictures/data/pictures/train"), "72 pictures of 3 classes")
    expect(run_in(root, "lockstep scaling --procs 1,2 -o /tmp/s -- bash -c "
                        "'echo \"lockstep-result: {\\\"seconds_per_epoch\\\": 1}\"'"), "efficiency", "/tmp/s/report.html")
    if "torch" in version:
        expect(run_in(root, "lockstep train --config none.yaml || test $? = 1"), "needs LibTorch", "LOCKSTEP_TORCH_DIR")
    # Unpacked by hand, somewhere else.
    for package in development:
        output("dpkg-deb", "-x", package, scratch / "development")
    for path in ("include/lockstep/lockstep.h", "lib/cmake/lockstep/lockstepConfig.cmake", "lib/liblockstep_engine.a"):
        if not (scratch / "development/usr" / path).exists():
            sys.exit(f"the packages have no /usr/{path}")


def main():
    config, scratch = sys.argv[1], pathlib.Path(sys.argv[2])
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        output("cpack", "--config", config, "-G", "DEB", "-B", scratch / "packages")
        check_packages(scratch / "packages", scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
