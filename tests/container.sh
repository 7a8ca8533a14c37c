#!/usr/bin/env bash
# Boots a container (systemd-nspawn) and installs, restarts, kills, upgrades and purges Partita in it.
#
#   tests/container.sh BINARIES PAGES    as systemd/build-debs.sh takes them
#
# The container's root is an overlay over this machine's, in memory; nothing of this machine is changed.
# The packages are held against lintian, where that is installed.
# Binaries without optimisation do. Where nothing can be booted the test is skipped: it says so and ends with 0.
set -euo pipefail
skip() {
    echo "tests/container.sh: SKIPPED: $*"
    exit 0
}
[ $# = 2 ] || { echo "usage: tests/container.sh BINARIES PAGES" >&2; exit 2; }
[ "$(id -u)" = 0 ] || skip "it needs root"
command -v dpkg-deb >/dev/null || skip "it needs dpkg-deb: the packages are Debian's"
command -v systemd-nspawn >/dev/null || skip "it needs systemd-nspawn (Debian package systemd-container)"
[ -x /lib/systemd/systemd ] || skip "it boots this machine's systemd, and there is none"
binaries="$(realpath "$1")" pages="$(realpath "$2")"
cd "$(dirname "$0")/.."
work="$(mktemp -d)"
clean() {
    umount -R "$work/root" 2>/dev/null || umount -l "$work/root" 2>/dev/null || true
    umount "$work" 2>/dev/null || umount -l "$work" 2>/dev/null || true
    rmdir "$work" || true
}
trap clean EXIT
mount -t tmpfs -o mode=755,size=2G partita-container "$work" || skip "no file system in memory can be mounted"
mkdir "$work"/{upper,work,root}
mount -t overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" partita-container "$work/root" || skip "no overlay can be mounted"
root="$work/root"

version="$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)"
mkdir -p "$root/opt/partita-test"
export COMPRESSION=gzip
VERSION="$version" systemd/build-debs.sh "$binaries" "$pages" "$root/opt/partita-test/old"
VERSION="$version+upgrade" systemd/build-debs.sh "$binaries" "$pages" "$root/opt/partita-test/new"
if command -v lintian >/dev/null; then
    lintian --fail-on error,warning --tag-display-limit 0 "$root"/opt/partita-test/old/*.deb ||
        { echo "tests/container.sh: lintian complains of the packages" >&2; exit 1; }
else
    echo "tests/container.sh: without lintian the packages are not held against Debian's policy"
fi
cp tests/container/{client.py,inside.sh} daemon/partitad/tests/support/spin.ptx "$root/opt/partita-test/"
# Where this machine's policy keeps packages from starting services, the container's does not.
# Nor is the index of manual pages made anew at each step.
rm -f "$root/usr/sbin/policy-rc.d" "$root/etc/machine-id" "$root/var/lib/man-db/auto-update"
systemd-id128 new >"$root/etc/machine-id"
cat >"$root/etc/systemd/system/partita-test.service" <<UNIT
[Unit]
After=basic.target
SuccessAction=exit-force
FailureAction=exit-force
FailureActionExitStatus=77
[Service]
Type=oneshot
TimeoutStartSec=300
ExecStart=/bin/bash /opt/partita-test/inside.sh
StandardOutput=file:/opt/partita-test/log
StandardError=inherit
UNIT
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
# Only what the test needs is started.
for unit in getty@tty1.service console-getty.service systemd-networkd.service systemd-resolved.service; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
ln -sf ../partita-test.service "$root/etc/systemd/system/multi-user.target.wants/"
# A container that never boots is killed.
code=0
SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 timeout --kill-after=10 400 systemd-nspawn -q --register=no --keep-unit \
    --private-network --console=pipe --kill-signal=SIGRTMIN+4 -D "$root" --boot systemd.unit=multi-user.target \
    </dev/null >"$work/console" 2>&1 || code=$?
if ! [ -e "$root/opt/partita-test/log" ]; then
    tail -40 "$work/console"
    skip "nothing can be booted here (exit code $code); the lines above say why"
fi
cat "$root/opt/partita-test/log"
[ $code = 0 ] || { echo "tests/container.sh: it failed (exit code $code)" >&2; exit 1; }
echo "tests/container.sh: passed in $SECONDS s"
