#!/usr/bin/env bash
# Builds the Debian packages from binaries that exist already.
#
#   systemd/build-debs.sh BINARIES PAGES OUT
#
# BINARIES holds partita, partitad, partita-gpu, partita-bench, libpartita_cuda.so and libpartita_slurm.so; PAGES is what
# `partita-pages` has written. The packages go to OUT. The same input gives the same packages to the bit:
# all times are SOURCE_DATE_EPOCH, by default that of the last commit.
# VERSION is the packages' version, by default that of the workspace; COMPRESSION is dpkg-deb's, by default xz.
#
# Why dpkg-deb and not cargo-deb: cargo-deb makes a package of a crate, and these are cut otherwise (the command with
# the shim, documents without a program). An upgrade restarts partitad and leaves its sockets and every partita-gpu
# alone, so the maintainer scripts would stay ours. What cargo-deb would take over, the control files, is 20 lines
# here. dpkg-deb is there on every Debian; cargo-deb would have to be compiled first.
# lintian has no complaint and needs no override; tests/container.sh asks it.
set -euo pipefail
if [ $# != 3 ]; then
    echo "usage: systemd/build-debs.sh BINARIES PAGES OUT" >&2
    exit 2
fi
binaries="$(realpath "$1")" pages="$(realpath "$2")"
mkdir -p "$3"
out="$(realpath "$3")"
cd "$(dirname "$0")/.."
for part in partita partitad partita-gpu partita-bench libpartita_cuda.so libpartita_slurm.so; do
    [ -e "$binaries/$part" ] && continue
    echo "build-debs: $binaries/$part does not exist: build the workspace first" >&2
    exit 1
done
version="${VERSION:-$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)}"
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}"
arch="$(dpkg --print-architecture)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
umask 022

# place MODE FILE TARGET: a file of the package that is being made.
place() { install -D -m "$1" "$2" "$root/$3"; }
# program FILE TARGET MODE: without debugging symbols.
program() { place "$3" "$1" "$2" && strip --strip-unneeded "$root/$2"; }
# page FILE SECTION: a manual page.
page() { place 644 "$1" "usr/share/man/man$2/$(basename "$1")" && gzip -9n "$root/usr/share/man/man$2/$(basename "$1")"; }

begin() {
    name="$1" root="$work/$1"
    mkdir -p "$root/DEBIAN" "$root/usr/share/doc/$name"
    {
        printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\n'
        printf 'Files: *\nCopyright: 2026 The Partita developers\nLicense: MIT or Apache-2.0\n'
        printf ' On Debian systems, the Apache License 2.0 is in /usr/share/common-licenses/Apache-2.0.\n .\n'
        sed 's/^$/./; s/^/ /' LICENSE-MIT
    } >"$root/usr/share/doc/$name/copyright"
    printf '%s (%s) unstable; urgency=medium\n\n  * See /usr/share/doc/partita-dev/CHANGELOG.md.gz of partita-dev.\n\n -- The Partita developers <partita@partita.invalid>  %s\n' \
        "$name" "$version" "$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$root/usr/share/doc/$name/changelog.gz"
}

# end ARCHITECTURE DEPENDS SUMMARY TEXT
end() {
    {
        printf 'Package: %s\nVersion: %s\nArchitecture: %s\n' "$name" "$version" "$1"
        printf 'Maintainer: The Partita developers <partita@partita.invalid>\n'
        printf 'Installed-Size: %s\n' "$(du -sk --exclude=DEBIAN "$root" | cut -f1)"
        [ -z "$2" ] || printf 'Depends: %s\n' "$2"
        printf 'Section: admin\nPriority: optional\nDescription: %s\n%s\n' "$3" "$(fold -sw 76 <<<"$4" | sed 's/ *$//; s/^/ /')"
    } >"$root/DEBIAN/control"
    (cd "$root" && find . -path ./DEBIAN -prune -o -type f -printf '%P\n' | LC_ALL=C sort | xargs -r md5sum) >"$root/DEBIAN/md5sums"
    find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group "-Z${COMPRESSION:-xz}" --build "$root" "$out/${name}_${version}_$1.deb" >/dev/null
}

libc="libc6 (>= $(dpkg-query -W -f '${Version}' libc6 | sed 's/-.*//'))"

begin partitad
program "$binaries/partitad" usr/bin/partitad 755
program "$binaries/partita-gpu" usr/bin/partita-gpu 755
for unit in partitad.socket partitad-api.socket partitad.service partita-gpu@.socket partita-gpu@.service; do
    place 644 "systemd/$unit" "lib/systemd/system/$unit"
done
place 644 systemd/partita.sysusers usr/lib/sysusers.d/partita.conf
place 644 systemd/partita.tmpfiles usr/lib/tmpfiles.d/partita.conf
place 644 systemd/partitad.toml etc/partita/partitad.toml
mkdir -p "$root/etc/partita/partitad.toml.d"
echo /etc/partita/partitad.toml >"$root/DEBIAN/conffiles"
page "$pages/man/partitad.8" 8
page docs/man/partita-gpu.8 8
page docs/man/partitad.toml.5 5
for script in postinst prerm postrm; do place 755 "systemd/debian/partitad.$script" "DEBIAN/$script"; done
end "$arch" "$libc, libgcc-s1, systemd (>= 247)" \
    "share NVIDIA GPUs between processes: daemon" \
    "The control plane partitad and the data plane partita-gpu, with their systemd units. Each application gets a range of streaming multiprocessors, and the borders move while kernels run. Without a GPU the emulated GPU is served."

begin partita
program "$binaries/partita" usr/bin/partita 755
program "$binaries/libpartita_cuda.so" usr/lib/partita/libpartita_cuda.so 644
for file in "$pages"/man/partita*.1; do page "$file" 1; done
place 644 "$pages/completions/partita.bash" usr/share/bash-completion/completions/partita
place 644 "$pages/completions/_partita" usr/share/zsh/vendor-completions/_partita
place 644 "$pages/completions/partita.fish" usr/share/fish/vendor_completions.d/partita.fish
end "$arch" "$libc, libgcc-s1" "share NVIDIA GPUs between processes: command and shim" \
    "The command partita, which runs programs on the daemon, shows and steers it, and the library that stands in for the driver's in these programs."

begin partita-bench
program "$binaries/partita-bench" usr/libexec/partita/partita-bench 755
end "$arch" "$libc, libgcc-s1, partita (= $version)" "share NVIDIA GPUs between processes: benchmarks" \
    "The benchmarks behind the command partita bench."

begin partita-slurm
program "$binaries/libpartita_slurm.so" usr/lib/partita/partita_slurm.so 644
# Programs that look for the driver by its name, and Triton for its assembler, find both here.
mkdir -p "$root/usr/lib/partita/cuda"
ln -s ../libpartita_cuda.so "$root/usr/lib/partita/cuda/libcuda.so.1"
ln -s ../../../bin/partita "$root/usr/lib/partita/cuda/ptxas"
place 644 systemd/slurm/plugstack.conf etc/slurm/plugstack.conf.d/partita.conf
echo /etc/slurm/plugstack.conf.d/partita.conf >"$root/DEBIAN/conffiles"
for file in job_submit.lua slurm.conf.example gres.conf.example; do
    place 644 "systemd/slurm/$file" "usr/share/doc/partita-slurm/examples/$file"
done
for task in reap advise; do
    place 755 "systemd/slurm/$task" "usr/lib/partita/slurm/$task"
    for kind in service timer; do
        place 644 "systemd/partita-slurm-$task.$kind" "lib/systemd/system/partita-slurm-$task.$kind"
    done
done
for script in postinst prerm postrm; do place 755 "systemd/debian/partita-slurm.$script" "DEBIAN/$script"; done
end "$arch" "$libc, libgcc-s1, jq, partita (= $version), slurm-client" "share NVIDIA GPUs between processes: plugin for Slurm" \
    "Options of srun, sbatch and salloc by which jobs get streaming multiprocessors of a shared GPU, reservations from the prolog to the epilog, and examples for slurm.conf."

begin partita-hooks
place 644 systemd/hooks/common.sh usr/lib/partita/hooks/common.sh
for script in flux/prolog flux/epilog pbs/prologue pbs/epilogue lsf/pre-exec lsf/post-exec; do
    place 755 "systemd/hooks/$script" "usr/lib/partita/hooks/$script"
done
place 755 systemd/hooks/partita-job usr/bin/partita-job
page docs/man/partita-job.1 1
end all "jq, partita (>= $version)" "share NVIDIA GPUs between processes: hooks for Flux, PBS and LSF" \
    "Prologs and epilogs by which jobs get streaming multiprocessors of a shared GPU from their begin to their end, and the command partita-job for the jobs' programs."

begin partita-dev
for file in CHANGELOG.md README.md docs/*.md docs/architecture/*.md docs/guide/*.md docs/openapi.json docs/grafana/*.json; do
    place 644 "$file" "usr/share/doc/partita-dev/$file"
done
gzip -9n "$root/usr/share/doc/partita-dev/CHANGELOG.md"
end all "" "share NVIDIA GPUs between processes: documents" \
    "The guide, the architecture and the description of the API, for those who build on Partita."
