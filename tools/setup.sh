# Set-up from a bare Debian 12, sourced by ./dev. Each step does only what is missing, so that a second call costs nothing.
# Everything that is not a Debian package lives in .deps/ of the checkout.

readonly DEFAULT_TORCH=2.15.0
readonly BUILD_PACKAGES=(build-essential ca-certificates ccache cmake git ninja-build pkg-config python3 python3-dev
  python3-venv dataset-fashion-mnist fonts-dejavu-core iproute2 libcli11-dev libfmt-dev libfontconfig-dev libfreetype-dev
  libgtest-dev libjpeg-dev libopenmpi-dev libpng-dev libspdlog-dev libssl-dev libucx-dev libwebp-dev nlohmann-json3-dev
  openmpi-bin zlib1g-dev)
# For the tests under Slurm: the libraries that Slurm's programs load.
readonly TEST_PACKAGES=(libdbus-1-3 libhwloc15 libjson-c5 liblz4-1 libmunge2 libnuma1 libpam0g libreadline8
  libyaml-0-2)
readonly FORMAT_PACKAGES=(clang-format-14 git python3)
readonly CHECK_PACKAGES=(clang-14 clang-tidy-14)
readonly DOCS_PACKAGES=(doxygen python3)
readonly PEER_PACKAGES=(libopenmpi-dev openmpi-bin)

say() { printf '%s\n' "== $*" >&2; }
fail() { printf './dev: %s\n' "$*" >&2; exit 2; }

# need_packages NAME...: installs the Debian packages among these that are missing.
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
  # Old or absent package lists are the usual reason for a failed install: bring them up to date first.
  "${apt[@]}" update >&2 || say "apt-get update failed; trying with the package lists that are here"
  "${apt[@]}" install --no-install-recommends "${missing[@]}" >&2 ||
    fail "apt-get could not install: ${missing[*]} (its reason is above)"
}

# make_venv FOLDER CONTENT COMMAND...: a virtual environment, with CONTENT (a line of text that says what is in it) as its
# stamp. COMMAND fills it. Without the right stamp an earlier attempt was cut short or is of another version: made anew.
make_venv() {
  local folder=$1 content=$2
  shift 2
  mkdir -p .deps
  exec {venv_lock}>".deps/.lock"
  flock "$venv_lock"
  if [[ "$(cat "$folder/.ready" 2>/dev/null)" != "$content" ]]; then
    say "setting up $folder: $content"
    rm -rf "$folder"
    # Debian's python, not whatever is first on PATH: its headers and ABI are what the tests expect.
    /usr/bin/python3 -m venv "$folder"
    "$@" "$folder" >&2 || fail "could not set up $folder (the reason is above); run the same command again to retry"
    printf '%s\n' "$content" >"$folder/.ready"
  fi
  exec {venv_lock}>&-
}

fill_torch_venv() {
  # The wheel's own dependencies are taken too: Python's torch is the judge in parity tests and the peer in benches.
  "$2/bin/python" -m pip install --no-compile --disable-pip-version-check --progress-bar off "torch==$1" torchvision numpy
}

# need_torch VERSION: LibTorch with its Python half; sets TORCH_VENV and TORCH_DIR.
need_torch() {
  TORCH_VENV=$PWD/.deps/torch-$1
  make_venv ".deps/torch-$1" "torch $1 torchvision numpy" fill_torch_venv "$1"
  TORCH_DIR=$(echo "$TORCH_VENV"/lib/python3*/site-packages/torch)
  [[ -e $TORCH_DIR/version.py ]] || fail "$TORCH_VENV holds no torch; remove that folder and run the same command again"
}

# Slurm, for the tests with schedulers: unpacked, not installed, because its packages start services.
need_slurm() {
  [[ -e .deps/slurm/.ready ]] && return
  say "unpacking Slurm into .deps/slurm"
  local packages=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins) work=$PWD/.deps/slurm.new file
  rm -rf .deps/slurm "$work"
  mkdir -p "$work/packages"
  (cd "$work/packages" && apt-get -q download "${packages[@]}" >&2) ||
    fail "apt-get could not download: ${packages[*]} (its reason is above; apt-get update may help)"
  for file in "$work"/packages/*.deb; do dpkg -x "$file" "$work"; done
  rm -r "$work/packages"
  touch "$work/.ready"
  mv "$work" .deps/slurm
}

fill_peer_venv() {
  "$1/bin/python" -m pip install --no-compile --disable-pip-version-check --progress-bar off -r bench/requirements.txt || return
  # oneCCL's library asks for itself under a name that its wheel lacks.
  [[ -e $1/lib/libccl.so.2 ]] || ln -s libccl.so.1 "$1/lib/libccl.so.2"
}

# What PyTorch's own tests import beside torch; sets CONFORMANCE_SITE, a folder for PYTHONPATH.
need_conformance() {
  CONFORMANCE_SITE=$PWD/.deps/conformance/site
  make_venv .deps/conformance "expecttest" fill_conformance
}

fill_conformance() {
  "$1/bin/python" -m pip install --no-compile --disable-pip-version-check --progress-bar off --target "$1/site" expecttest
}

# What the benches compare with, beside PyTorch: Open MPI from Debian, Intel MPI and oneCCL from PyPI.
need_peers() {
  need_packages "${PEER_PACKAGES[@]}"
  make_venv .deps/peers "$(sha256sum <bench/requirements.txt)" fill_peer_venv
}
