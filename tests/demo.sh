#!/usr/bin/env bash
# Sets everything up and shows the main job: `partita demo`, with whatever options this script is given.
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/setup.sh
export PARTITA_CACHE_DIR="${PARTITA_CACHE_DIR:-$PWD/.cache}"

echo "== building Partita (release)"
cargo build --release --package partita-cli --package partitad --package partita-gpu --package partita-shim
exec "${CARGO_TARGET_DIR:-target}/release/partita" demo "$@"
