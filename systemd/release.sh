#!/usr/bin/env bash
# Makes a release from the commit that is checked out: packages, archives, SBOM, notes and checksums.
#
#   systemd/release.sh VERSION [--check-reproducible] [--debug] [--out FOLDER]
#
#   --check-reproducible  build in two folders and end with 1 where a file of the release differs
#   --debug               build without optimisation, to try this script; such files are no release
#   --out FOLDER          where the files go [default: target/partita-VERSION]
#
# VERSION is that of Cargo.toml, and CHANGELOG.md has a section `## VERSION - DATE`. What is not committed is
# refused, because it would be missing. Nothing is tagged or uploaded: the script ends with what to do next.
#
# The same commit gives the same files to the bit on one machine: only what is committed is built, all times are
# that of the commit, and no path of this machine gets into a file. Another compiler, linker, zlib, dpkg or xz
# may give other bits.
#
# Dependencies and cargo-cyclonedx come from crates.io, and cargo-cyclonedx goes to $PARTITA_CACHE_DIR (.cache).
set -euo pipefail
fail() {
    echo "release: $*" >&2
    exit 1
}
usage() {
    echo "usage: systemd/release.sh VERSION [--check-reproducible] [--debug] [--out FOLDER]" >&2
    exit 2
}
version= profile=release check= out=
while [ $# -gt 0 ]; do
    case "$1" in
    --check-reproducible) check=yes ;;
    --debug) profile=dev ;;
    --out) [ $# -gt 1 ] || usage; out="$2"; shift ;;
    -*) usage ;;
    *) [ -z "$version" ] || usage; version="$1" ;;
    esac
    shift
done
[ -n "$version" ] || usage
[ -z "$out" ] || out="$(realpath -m "$out")"
cd "$(dirname "$0")/.."
out="${out:-$PWD/target/partita-$version}"
# The folder is replaced, so it must be new, or an earlier release.
[ ! -e "$out" ] || [ -e "$out/SHA256SUMS" ] ||
    fail "$out is there and is no release: name a folder that is not there yet with --out"

stated="$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)"
[ "$version" = "$stated" ] ||
    fail "Cargo.toml says version $stated, not $version: change it there, run cargo check, and commit both files"
[ -z "$(git status --porcelain)" ] ||
    fail "the folder has changes that are not committed (git status): commit or remove them"
notes="$(awk -v version="$version" '
    /^## / { inside = ($2 == version || $2 == "[" version "]"); next }
    inside { print }' CHANGELOG.md)"
[ -n "${notes//[[:space:]]/}" ] ||
    fail "CHANGELOG.md says nothing under \`## $version\`: name the section \`## Unreleased\` so, with the date"

case "$PWD" in *[[:space:]]*) fail "$PWD has a space, which the flags of compilers cannot hold: work in another folder" ;; esac
SOURCE_DATE_EPOCH="$(git log -1 --format=%ct)"
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC CARGO_INCREMENTAL=0
umask 022
cache="${PARTITA_CACHE_DIR:-$PWD/.cache}"
cyclonedx="$cache/tools/bin/cargo-cyclonedx"
[ -x "$cyclonedx" ] || cargo install cargo-cyclonedx --version 0.5.9 --locked --quiet --root "$cache/tools"
cargo fetch --locked --quiet
crates="${CARGO_HOME:-$HOME/.cargo}/registry/src"
name="partita-$version"
host="$(rustc -vV | sed -n 's/^host: //p')"

# archive FILE FOLDER: a folder as .tar.gz whose bits depend on nothing but the files' contents and modes.
archive() {
    tar -C "$(dirname "$2")" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
        --format=gnu -cf - "$(basename "$2")" | gzip -9n >"$1"
}

# build FOLDER: the whole release in FOLDER/out. Cargo's own files stay in FOLDER/target for the next time.
build() {
    local folder="$1" source="$1/$name" maps=() from
    rm -rf "$source" "$folder/out" "$folder/tree" "$folder/pages"
    mkdir -p "$source" "$folder/out" "$folder/target" "$folder/tree"
    git archive HEAD | tar -x -C "$source"
    for from in "$source=/usr/src/$name" "$folder/target=/usr/src/target" "$crates"/*; do
        case "$from" in *=*) maps+=("$from") ;; *) maps+=("$from=/usr/src/crates") ;; esac
    done
    (
        cd "$source"
        export CARGO_TARGET_DIR="$folder/target"
        export RUSTFLAGS="${maps[*]/#/--remap-path-prefix=}" CFLAGS="${maps[*]/#/-ffile-prefix-map=}"
        cargo build --locked --quiet --profile "$profile" -p partita-cli -p partitad -p partita-gpu \
            -p partita-shim -p partita-slurm -p partita-bench -p partita-pages
        local built="$folder/target/release"
        [ $profile != dev ] || built="$folder/target/debug"
        "$built/partita-pages" "$folder/pages"
        VERSION="$version" COMPRESSION=xz systemd/build-debs.sh "$built" "$folder/pages" "$folder/out"
        # For systems without dpkg: the same files, below the folders where they belong.
        for package in partitad partita partita-bench partita-slurm partita-hooks; do
            dpkg-deb -x "$folder/out/${package}_${version}_"*.deb "$folder/tree/$name-$host"
        done
        archive "$folder/out/$name-$host.tar.gz" "$folder/tree/$name-$host"
        # What each program is made of. Where this machine keeps the sources is nobody's business.
        "$cyclonedx" cyclonedx --format json --spec-version 1.5 --describe binaries --target "$host" --quiet
        local part
        for part in daemon/partita-cli/partita_bin daemon/partitad/partitad_bin daemon/partita-gpu/partita-gpu_bin \
            tests/partita-bench/partita-bench_bin client-lib/partita-shim/partita_cuda_cdylib \
            client-lib/partita-slurm/partita_slurm_cdylib; do
            local program="${part##*/}"
            sed "s|$source|/usr/src/$name|g" "$part.cdx.json" >"$folder/out/${program%_*}-$version.cdx.json"
        done
    )
    git archive --format=tar --prefix="$name/" HEAD | gzip -9n >"$folder/out/$name.tar.gz"
    printf '%s\n' "$notes" >"$folder/out/$name-notes.md"
    (cd "$folder/out" && sha256sum -- * >SHA256SUMS)
}

echo "release: building $name ($profile)"
build "$PWD/target/release-build/one"
if [ -n "$check" ]; then
    echo "release: building it again in another folder"
    build "$PWD/target/release-build/and-another"
    if ! differing="$(diff target/release-build/one/out/SHA256SUMS target/release-build/and-another/out/SHA256SUMS)"; then
        printf '%s\n' "$differing" >&2
        fail "the files above differ between two builds of one commit (target/release-build/*/out)"
    fi
    echo "release: both builds gave the same $(wc -l <target/release-build/one/out/SHA256SUMS) files, to the bit"
fi
rm -rf "$out"
mkdir -p "$(dirname "$out")"
cp -a target/release-build/one/out "$out"
(cd "$out" && sha256sum --check --quiet SHA256SUMS && ls -sh)
if [ $profile = dev ]; then
    echo "release: $out holds a trial without optimisation; do not hand it out"
else
    echo "release: $out is complete; next:"
    echo "  git tag -a v$version -F $out/$name-notes.md && git push origin v$version"
    # From then on tests hold the API of this version against later ones.
    echo "  PARTITA_WRITE_LAST_API=1 cargo test -p partitad --lib compatible, and commit what it writes"
fi
