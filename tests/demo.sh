#!/usr/bin/env bash
# Sets everything up and shows the main job on the emulated GPU: two unmodified CUDA programs share it, and the border
# between them moves while their kernels run.
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/setup.sh
export PARTITA_CACHE_DIR="${PARTITA_CACHE_DIR:-$PWD/.cache}"

step() { printf '\n\033[1m== %s\033[0m\n' "$*"; }

step "building Partita (release)"
cargo build --release --package partita-cli --package partitad --package partita-gpu --package partita-shim
step "installing NVIDIA's compiler, compiling two programs"
toolkit="$(cargo run --release --quiet --package partita-e2e --bin toolkit)"
programs="$PARTITA_CACHE_DIR/demo"
mkdir -p "$programs"
for program in vecAdd poly; do
    "$toolkit/bin/nvcc" -o "$programs/$program" "tests/partita-e2e/programs/$program.cu"
done
export PATH="$PWD/${CARGO_TARGET_DIR:-target}/release:$PATH"
[ -z "${CARGO_TARGET_DIR:-}" ] || export PATH="$CARGO_TARGET_DIR/release:$PATH"

step "partita run vecAdd 1000000"
partita run "$programs/vecAdd" 1000000

step "a daemon on the emulated 24-SM GPU"
sockets="$(mktemp -d)"
export PARTITA_SOCKET_DIR="$sockets"
daemon=
finish() {
    [ -z "$daemon" ] || { kill "$daemon" 2>/dev/null; wait "$daemon" 2>/dev/null; } || true
    rm -rf "$sockets"
}
trap finish EXIT
partitad --device emu:cd-search-24 --socket-dir "$sockets" 2>"$sockets/log" &
daemon=$!
for _ in $(seq 100); do partita status >/dev/null 2>&1 && break; sleep 0.1; done

step "two programs at once, each on half of the SMs"
partita run "$programs/poly" 2097152 4000 1 >"$sockets/first" & first=$!
partita run "$programs/poly" 2097152 4000 2 >"$sockets/second" & second=$!
for _ in $(seq 100); do
    [ "$(partita status --json | grep -c '"sms": "[0-9]')" -ge 2 ] && break
    sleep 0.1
done
sleep 1
partita status

ids=($(partita status --json | python3 -c 'import json, sys; print(*(a["id"] for a in json.load(sys.stdin)["applications"]))'))
step "partita resize ${ids[0]}=0-5 ${ids[1]}=6-23   (both kernels are running)"
partita resize "${ids[0]}=0-5" "${ids[1]}=6-23"
sleep 0.5
partita status

step "both results are right"
wait "$first"; wait "$second"
paste "$sockets/first" "$sockets/second"

step "which application was on which SM, over device time"
partita trace
