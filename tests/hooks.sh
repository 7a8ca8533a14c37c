#!/usr/bin/env bash
# Runs the prologs and epilogs of Flux, PBS and LSF with what each scheduler hands them, on a daemon with the emulated
# GPU: a reservation appears, the job's program is accounted to it, and the epilog ends it.
#
#   tests/hooks.sh BINARIES PROGRAM    as tests/podman.sh takes them
#
# The schedulers themselves are not run. `flux` and `qstat` are stand-ins that answer as these commands do.
# Everything lies in an overlay over this machine's root, in memory, with the scripts where the package puts them.
set -euo pipefail
fail() {
    echo "tests/hooks.sh: FAILED: $*" >&2
    [ ! -e "$work/log" ] || tail -20 "$work/log" >&2
    exit 1
}
skip() {
    echo "tests/hooks.sh: SKIPPED: $*"
    exit 0
}
[ $# = 2 ] || { echo "usage: tests/hooks.sh BINARIES PROGRAM" >&2; exit 2; }
[ "$(id -u)" = 0 ] || skip "it needs root, as prologs have it"
for needed in jq setpriv; do command -v $needed >/dev/null || skip "it needs $needed (Debian: apt-get install jq util-linux)"; done
if [ -z "${PARTITA_HOOKS_INSIDE:-}" ]; then
    PARTITA_HOOKS_INSIDE=1 exec unshare --mount --propagation private "$0" "$@"
fi

readonly JOB_USER=daemon JOB_UID=1
binaries="$(realpath "$1")" program="$(realpath "$2")"
cd "$(dirname "$0")/.."
work="$(mktemp -d)"
daemon=
clean() {
    exec 3>&-
    [ -z "$daemon" ] || kill "$daemon" || true
    wait || true
    umount -R "$work" 2>/dev/null || umount -l "$work" || true
    rmdir "$work" || true
}
trap clean EXIT
mount -t tmpfs -o mode=755 partita-hooks "$work" || skip "no file system in memory can be mounted"
mkdir "$work"/{upper,work,root}
mount -t overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" partita-hooks "$work/root" ||
    skip "no overlay can be mounted"
root="$work/root"
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
hooks=/usr/lib/partita/hooks
for part in partita partitad partita-gpu; do install -m 755 "$binaries/$part" "$root/usr/bin/$part"; done
install -D -m 644 "$binaries/libpartita_cuda.so" "$root/usr/lib/partita/libpartita_cuda.so"
install -m 755 systemd/hooks/partita-job "$root/usr/bin/partita-job"
install -m 755 "$program" "$root/usr/bin/poly"
install -D -m 644 -t "$root$hooks" systemd/hooks/common.sh
for scheduler in flux pbs lsf; do install -D -m 755 -t "$root$hooks/$scheduler" systemd/hooks/$scheduler/*; done
mkdir -p "$root/etc/partita"
echo 'partita_patience=1 partita_days=1' >"$root/etc/partita/hooks.conf"
# What the schedulers' own commands say of the job.
cat >"$root/usr/bin/flux" <<'FLUX'
#!/bin/sh
[ "$1 $2 $4" = "job info jobspec" ] || exit 1
cat "/run/jobspec.$3"
FLUX
cat >"$root/usr/bin/qstat" <<'QSTAT'
#!/bin/sh
[ "$1 $2 $3" = "-f -F json" ] || exit 1
cat "/run/qstat.$4"
QSTAT
chmod +x "$root/usr/bin/flux" "$root/usr/bin/qstat"

inside() { chroot "$root" "$@"; }
as_user() { chroot "$root" setpriv --reuid=$JOB_UID --regid=$JOB_UID --clear-groups "$@"; }
mkdir -p "$root/run/partita" "$root/var/lib/partita"
# Not by `inside`: what is ended must be the daemon, and not a shell around it.
PARTITA_LOG=info chroot "$root" partitad --device emu:cd-search-24,timing=off --socket-dir /run/partita --socket-mode 0666 \
    --state-dir /var/lib/partita 2>"$work/log" &
daemon=$!
for _ in $(seq 300); do
    inside partita status >/dev/null 2>&1 && break
    sleep 0.1
done
# field NAME FIELD: a field of a reservation, or nothing.
field() { inside partita reservation list --json | jq -r ".[] | select(.id == \"$1\") | .$2"; }

# environment_of SCHEDULER ID: what the scheduler sets for its scripts and for the job, in `variables`; and how the
# script is called, in `begin` and `end`.
environment_of() {
    local id="$2"
    case "$1" in
    flux)
        variables=("FLUX_JOB_ID=$id")
        begin=("FLUX_JOB_USERID=$JOB_UID" "$hooks/flux/prolog") end=("FLUX_JOB_USERID=$JOB_UID" "$hooks/flux/epilog")
        ;;
    pbs)
        variables=("PBS_JOBID=$id")
        begin=("$hooks/pbs/prologue" "$id" "$JOB_USER" "$JOB_USER")
        end=("$hooks/pbs/epilogue" "$id" "$JOB_USER" "$JOB_USER" name 4711 "" "" queue account 0)
        ;;
    lsf)
        variables=("LSB_JOBID=${id%_*}" "LSB_JOBINDEX=${id#*_}" "LSFUSER=$JOB_USER")
        begin=("${wishes[@]}" "$hooks/lsf/pre-exec") end=("${wishes[@]}" "$hooks/lsf/post-exec")
        ;;
    esac
}
# submit SCHEDULER ID: what the scheduler knows of the job, whose environment is in `wishes`.
submit() {
    local pairs
    pairs="$(printf '%s\n' "${wishes[@]}" | jq -R 'split("=") | {(.[0]): .[1]}' | jq -s 'add // {}')"
    case "$1" in
    flux) jq -n --argjson e "$pairs" '{attributes: {system: {duration: 60, environment: ($e + {HOME: "/"})}}}' >"$root/run/jobspec.$2" ;;
    pbs) jq -n --argjson e "$pairs" --arg id "$2" '{Jobs: {($id): {Job_Name: "x", Variable_List: ($e + {PBS_O_HOME: "/"})}}}' >"$root/run/qstat.$2" ;;
    esac
}
root_runs() { inside env -i LD_PRELOAD=/nowhere.so "${variables[@]}" "$@" 2>>"$work/log" || fail "$*: a script of a scheduler fails"; }

mkfifo "$work/hold"
whole_life() {
    local scheduler="$1" id="$2" name="$3" child
    wishes=(PARTITA_SMS=8..14 PARTITA_PRIORITY=normal PARTITA_MEMORY=1G)
    environment_of "$scheduler" "$id"
    submit "$scheduler" "$id"
    root_runs "${begin[@]}"
    # A prolog may run twice: once for each attempt to start the job.
    root_runs "${begin[@]}"
    [ "$(field "$name" sms) $(field "$name" max_sms) $(field "$name" tenant)" = "8 14 $JOB_UID" ] ||
        fail "$scheduler: no reservation $name: $(inside partita reservation list)"
    exec 3<>"$work/hold"
    as_user env -i PATH=/usr/bin:/bin "${variables[@]}" "${wishes[@]}" partita-job poly 4096 300 3 held \
        <"$work/hold" >"$work/out" 2>&1 3>&- &
    child=$!
    for _ in $(seq 300); do
        [ "$(field "$name" application)" = null ] || break
        kill -0 $child || fail "$scheduler: the program ends early: $(cat "$work/out")"
        sleep 0.1
    done
    [ "$(field "$name" application)" != null ] || fail "$scheduler: the program is not the job's"
    exec 3>&-
    wait $child || fail "$scheduler: the program fails: $(cat "$work/out")"
    grep -q '^PASSED$' "$work/out" || fail "$scheduler: the program computes wrongly: $(cat "$work/out")"
    [ "$(field "$name" used.sm_ns)" -gt 0 ] || fail "$scheduler: the program is accounted to nobody"
    root_runs "${end[@]}"
    [ -z "$(field "$name" id)" ] || fail "$scheduler: the reservation is left"
    root_runs "${end[@]}"
    echo "tests/hooks.sh: $scheduler: $name from prolog to epilog, and an epilog that finds nothing"
}
no_harm() {
    local scheduler="$1" id="$2"
    # A job that asks for nothing is left alone.
    wishes=(OTHER=1)
    environment_of "$scheduler" "$id"
    submit "$scheduler" "$id"
    root_runs "${begin[@]}"
    [ "$(inside partita reservation list --json)" = "[]" ] || fail "$scheduler: a job without wishes has a reservation"
    # Words that are no SMs, more SMs than there are, and words for a shell: refused, and told.
    for sms in many 100000 "1;touch /run/evil" "\$(touch /run/evil)" "--help"; do
        wishes=("PARTITA_SMS=$sms")
        environment_of "$scheduler" "$id"
        submit "$scheduler" "$id"
        inside env -i "${variables[@]}" "${begin[@]}" >"$work/out" 2>&1 || fail "$scheduler: \"$sms\" fails a job"
        grep -q "no SMs are promised" "$work/out" || fail "$scheduler: \"$sms\" is not told: $(cat "$work/out")"
    done
    [ ! -e "$root/run/evil" ] || fail "$scheduler: a job's word is executed"
    [ "$(inside partita reservation list --json)" = "[]" ] || fail "$scheduler: a wrong word reserves"
    root_runs "${end[@]}"
    echo "tests/hooks.sh: $scheduler: wrong words harm neither job nor node"
}
whole_life flux ƒ2oLjVQpB flux-2oLjVQpB
whole_life pbs "1234[7].server.example" pbs-1234_7_.server.example
whole_life lsf 815_3 lsf-815_3
whole_life lsf 816_0 lsf-816
no_harm flux ƒ3ETxsR9H
no_harm pbs 1235.server
no_harm lsf 817_0

# A scheduler that says nothing, and a node without a daemon.
rm -f "$root"/run/jobspec.* "$root"/run/qstat.*
kill $daemon
wait $daemon || true
daemon=
! inside partita status >/dev/null 2>&1 || fail "the daemon is still there"
for scheduler in flux pbs lsf; do
    wishes=(PARTITA_SMS=8)
    environment_of $scheduler 9_0
    [ $scheduler = lsf ] || root_runs "${begin[@]}"
    submit $scheduler 9_0
    root_runs "${begin[@]}"
    root_runs "${end[@]}"
done
echo "tests/hooks.sh: without a daemon prologs and epilogs succeed"
echo "tests/hooks.sh: passed in $SECONDS s"
