#!/usr/bin/env bash
# Packs what `partita bench gpu` needs on a machine that has a GPU and nothing else of ours: no compiler, no network.
#
#   tests/gpu-bundle.sh [--binaries FOLDER] [OUT]
#
#   --binaries FOLDER  take the programs from FOLDER [default: build them with --release]
#   OUT                the archive [default: target/partita-gpu-bundle.tar.xz]
#
# There:  tar -xf partita-gpu-bundle.tar.xz && partita-gpu-bundle/measure gpu.tar.gz
# measures every part, prints each result, and packs all into gpu.tar.gz. Options of `partita bench gpu` may follow.
# The archive has at most 40 MB. NVIDIA's compiler is installed here where it is missing (PARTITA_NVCC names another).
set -euo pipefail
most=40000000
usage() {
    echo "usage: tests/gpu-bundle.sh [--binaries FOLDER] [OUT]" >&2
    exit 2
}
binaries= out=
while [ $# -gt 0 ]; do
    case "$1" in
    --binaries) [ $# -gt 1 ] || usage; binaries="$(realpath "$2")"; shift ;;
    -*) usage ;;
    *) [ -z "$out" ] || usage; out="$(realpath -m "$1")" ;;
    esac
    shift
done
cd "$(dirname "$0")/.."
source tests/setup.sh
export PARTITA_CACHE_DIR="${PARTITA_CACHE_DIR:-$PWD/.cache}"
out="${out:-$PWD/target/partita-gpu-bundle.tar.xz}"
if [ -z "$binaries" ]; then
    cargo build --release -p partita-cli -p partitad -p partita-gpu -p partita-shim -p partita-bench
    binaries="${CARGO_TARGET_DIR:-$PWD/target}/release"
fi
nvcc="${PARTITA_NVCC:-$(cargo run --quiet --package partita-e2e --bin toolkit)/bin/nvcc}"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
bundle="$work/partita-gpu-bundle"
mkdir -p "$bundle/programs" "$(dirname "$out")"
for part in partita partitad partita-gpu partita-bench libpartita_cuda.so; do
    [ -e "$binaries/$part" ] || { echo "gpu-bundle: $binaries/$part does not exist: build the workspace first" >&2; exit 1; }
    cp "$binaries/$part" "$bundle/" && strip --strip-unneeded "$bundle/$part"
done
# By itself the program needs machine code, because drivers refuse PTX that is newer than they are. Partita takes the PTX.
code=()
for architecture in 75 80 86 89 90 100 120; do
    code+=(-gencode "arch=compute_$architecture,code=sm_$architecture")
done
source=tests/partita-bench/src/command/gpu/programs/pace.cu
"$nvcc" "${code[@]}" -o "$bundle/programs/pace-machine-code" "$source"
"$nvcc" "${code[@]}" -gencode arch=compute_75,code=compute_75 -o "$bundle/programs/pace" "$source"
cat >"$bundle/measure" <<'EOF'
#!/bin/sh
# Measures the GPU of this machine: ./measure [ARCHIVE [OPTION…]]
set -eu
archive="$(realpath "${1:-gpu.tar.gz}")"
[ $# = 0 ] || shift
cd "$(dirname "$0")"
exec ./partita-bench gpu --archive "$archive" "$@"
EOF
chmod +x "$bundle/measure"
tar -C "$work" -cJf "$out" partita-gpu-bundle
bytes="$(stat -c %s "$out")"
echo "gpu-bundle: $out, $((bytes / 1000000)) MB"
[ "$bytes" -le "$most" ] || { echo "gpu-bundle: more than $((most / 1000000)) MB: are the programs built with --release?" >&2; exit 1; }
