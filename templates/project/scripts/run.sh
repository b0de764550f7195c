#!/usr/bin/env bash
# Trains on this machine: scripts/run.sh [PROCESSES [OPTIONS OF train...]]
set -euo pipefail
cd "$(dirname "$0")/.."
processes=${1:-auto}
exec lockstep run --standalone --nproc-per-node "$processes" ./build/train --config config.yaml "${@:2}"
