#!/usr/bin/env bash
# Classifies kernels that nobody here wrote: algorithms of Thrust and CUB are recorded once as they stand, and each of their kernels
# that fills the GPU is measured alone and beside a companion under CD-search. Prints how many are told right.
#
#   tests/strangers.sh [OPTION…]   options of `partita bench cd-search`, and further recordings behind --strangers
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/setup.sh
export PARTITA_CACHE_DIR="${PARTITA_CACHE_DIR:-$PWD/.cache}"
export CARGO_PROFILE_DEV_DEBUG="${CARGO_PROFILE_DEV_DEBUG:-line-tables-only}"

echo "== building Partita" >&2
cargo build --quiet --package partita-bench --package partita-cli --package partitad --package partita-gpu --package partita-shim
toolkit="$(cargo run --quiet --package partita-e2e --bin toolkit)"
partita="${CARGO_TARGET_DIR:-target}/debug/partita"
programs=tests/partita-e2e/programs
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT

echo "== compiling and recording" >&2
"$toolkit/bin/nvcc" -std=c++17 --extended-lambda -arch=compute_80 -code=compute_80 -I "$programs" -L "$toolkit/lib" \
    -o "$folder/strangers" "$programs/strangers.cu"
"$partita" run --device "emu,timing=off,record=$folder/thrust.rec" -- "$folder/strangers" >&2

echo "== classifying" >&2
"$partita" bench cd-search --quick --mixes 0 --only dxtc --strangers "$folder/thrust.rec" "$@"
