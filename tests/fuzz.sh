#!/usr/bin/env bash
# Looks for inputs that break what reads the words of strangers: coverage-guided fuzzing with libFuzzer on the stable toolchain.
#
#   tests/fuzz.sh [--seconds N] [TARGET…]   N seconds (60) for each target: ptx, wire, fatbin, http, configuration; all without TARGET
#   tests/fuzz.sh --repeat TARGET FILE      one input, with its message and backtrace
#   tests/fuzz.sh --help                    this text
#
# A run begins with tests/fuzz/seeds/TARGET and with what earlier runs found, which .cache/fuzz/TARGET keeps.
# An input that breaks something goes into the seeds with the change that mends it: `cargo test -p partita-fuzz` holds it from then on.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '2,/^set /{/^#/{s/^# \{0,1\}//;p}}' tests/fuzz.sh; }

seconds=60 repeat= targets=()
while [ $# -gt 0 ]; do
    case "$1" in
        --help) usage; exit 0 ;;
        --seconds) seconds="${2:?--seconds needs a number}"; shift ;;
        --repeat) targets=("${2:?--repeat needs a target and a file}") repeat="${3:?--repeat needs a file}"; shift 2 ;;
        -*) usage >&2; exit 2 ;;
        *) targets+=("$1") ;;
    esac
    shift
done
[ ${#targets[@]} -gt 0 ] || targets=(ptx wire fatbin http configuration)
for target in "${targets[@]}"; do
    [ -d "tests/fuzz/seeds/$target" ] && continue
    echo "tests/fuzz.sh: there is no target $target; there are: $(ls tests/fuzz/seeds | paste -sd' ')" >&2
    exit 2
done

source tests/setup.sh
export PARTITA_CACHE_DIR="${PARTITA_CACHE_DIR:-$PWD/.cache}"
tools="$PARTITA_CACHE_DIR/tools" found="$PARTITA_CACHE_DIR/fuzz" build="${CARGO_TARGET_DIR:-$PWD/target}/fuzz"
[ -x "$tools/bin/cargo-fuzz" ] || cargo install cargo-fuzz --version 0.13.2 --locked --quiet --root "$tools"
host="$(rustc -vV | sed -n 's/^host: //p')"

echo "== building the targets" >&2
# Sanitizers need a nightly compiler and find what only unsafe code does. Counters of coverage do not.
for target in "${targets[@]}"; do
    PATH="$tools/bin:$PATH" cargo fuzz build --fuzz-dir tests/fuzz --target-dir "$build" --sanitizer none "$target"
done

# Bytes of an input, seconds of one input, MiB of memory.
limits=(-max_len=8192 -timeout=20 -rss_limit_mb=2048)
export RUST_BACKTRACE="${RUST_BACKTRACE:-1}"
if [ -n "$repeat" ]; then
    exec "$build/$host/release/${targets[0]}" "${limits[@]}" "$repeat"
fi

failed=0
for target in "${targets[@]}"; do
    echo "== $target: $seconds s" >&2
    inputs="$found/$target" broken="$found/$target-broken"
    mkdir -p "$inputs" "$broken"
    seeds=("tests/fuzz/seeds/$target")
    [ "$target" != ptx ] || seeds+=(kernels-ptx/corpus kernels-ptx/device)
    options=("${limits[@]}" -max_total_time="$seconds" -print_final_stats=1 -artifact_prefix="$broken/")
    [ ! -f "tests/fuzz/$target.dict" ] || options+=(-dict="tests/fuzz/$target.dict")
    log="$found/$target.log"
    if "$build/$host/release/$target" "${options[@]}" "$inputs" "${seeds[@]}" >"$log" 2>&1; then
        sed -n 's/^stat::number_of_executed_units: */   inputs tried: /p; s/^stat::new_units_added: */   inputs kept:  /p' "$log"
        continue
    fi
    failed=1
    input="$(sed -n 's/^artifact_prefix=.*Test unit written to //p' "$log" | tail -n 1)"
    grep -vE '^#[0-9]+[[:space:]]+(NEW|REDUCE|pulse|RELOAD)' "$log" | tail -n 60 >&2
    echo "tests/fuzz.sh: $target: an input breaks it: ${input:-see $log}" >&2
    [ -z "$input" ] || echo "repeat it: tests/fuzz.sh --repeat $target $input" >&2
done
exit $failed
