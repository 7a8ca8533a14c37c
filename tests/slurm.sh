#!/usr/bin/env bash
# Installs the packages for Slurm beside a real Slurm, with Debian's folders, and looks at what a node's timers do:
# leaked reservations end, those of living jobs stay, and the node's features tell who fits.
#
#   tests/slurm.sh BINARIES PAGES PROGRAM    as systemd/build-debs.sh and tests/podman.sh take them
#
# Everything lies in an overlay over this machine's root, in memory, with network and process ids of its own.
# tests/partita-e2e/tests/slurm.rs holds what the plugin does for jobs.
set -euo pipefail
fail() {
    echo "tests/slurm.sh: FAILED: $*" >&2
    for log in partitad munged slurmctld slurmd; do
        [ ! -e "$root/var/log/$log.log" ] || { echo "--- $log ---" && tail -15 "$root/var/log/$log.log"; } >&2
    done
    exit 1
}
skip() {
    echo "tests/slurm.sh: SKIPPED: $*"
    exit 0
}
[ $# = 3 ] || { echo "usage: tests/slurm.sh BINARIES PAGES PROGRAM" >&2; exit 2; }
[ "$(id -u)" = 0 ] || skip "it needs root, because packages are installed"
for needed in dpkg-deb munged slurmctld slurmd srun jq setpriv ip; do
    command -v $needed >/dev/null || skip "it needs $needed (Debian: apt-get install slurm-wlm munge jq iproute2)"
done
if [ -z "${PARTITA_SLURM_INSIDE:-}" ]; then
    PARTITA_SLURM_INSIDE=1 exec unshare --mount --propagation private --net --pid --fork --kill-child "$0" "$@"
fi

readonly NODE=gpu01 JOB_USER=daemon
binaries="$(realpath "$1")" pages="$(realpath "$2")" program="$(realpath "$3")"
cd "$(dirname "$0")/.."
work="$(mktemp -d)"
clean() {
    # All processes of this namespace but this script.
    kill -KILL -1 2>/dev/null || true
    wait 2>/dev/null || true
    umount -R "$work" 2>/dev/null || umount -l "$work" || true
    rmdir "$work" || true
}
trap clean EXIT
root="$work/root"
mount -t tmpfs -o mode=755 partita-slurm "$work" || skip "no file system in memory can be mounted"
mkdir "$work"/{upper,work,root}
mount -t overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" partita-slurm "$root" ||
    skip "no overlay can be mounted"
mount -t proc proc "$root/proc"
for folder in dev sys; do mount --rbind /$folder "$root/$folder"; done
ip link set lo up
# Slurm looks names up only where the machine has an address that is not the loopback's.
ip address add 192.0.2.1/32 dev lo

COMPRESSION=none systemd/build-debs.sh "$binaries" "$pages" "$root/packages" || fail "the packages are not built"
inside() { chroot "$root" "$@"; }
# shellcheck disable=SC2016 # The shell inside finds the files.
inside sh -c 'dpkg -i /packages/partitad_*.deb /packages/partita_*.deb /packages/partita-slurm_*.deb' \
    >"$work/dpkg" 2>&1 || fail "the packages cannot be installed: $(cat "$work/dpkg")"
install -m 755 "$program" "$root/usr/bin/poly"

mkdir -p "$root"/run/{partita,munge} "$root"/var/spool/slurmd "$root"/var/lib/slurm/state "$root/out"
chmod 1777 "$root/out"
head -c 128 /dev/urandom >"$root/etc/munge/munge.key"
inside chown -R munge: /etc/munge /run/munge /var/lib/munge /var/log/munge
chmod 600 "$root/etc/munge/munge.key"
examples="$root/usr/share/doc/partita-slurm/examples"
cp "$examples/job_submit.lua" "$root/etc/slurm/"
sed "s/Count=.*/Count=24/" "$examples/gres.conf.example" >"$root/etc/slurm/gres.conf"
cat - <(sed "s/^NodeName=.*/& NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 CPUs=4 RealMemory=500/; s/sm:132/sm:24/" \
    "$examples/slurm.conf.example") >"$root/etc/slurm/slurm.conf" <<CONF
ClusterName=partita
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmUser=root
StateSaveLocation=/var/lib/slurm/state
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
MessageTimeout=5
ReturnToService=2
KillWait=2
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
PartitionName=gpu Nodes=ALL Default=YES State=UP
CONF

# until_so WHAT COMMAND: waits until the command succeeds.
until_so() {
    local what="$1" end=$((SECONDS + 60))
    shift
    while [ $SECONDS -lt $end ]; do
        ! "$@" >/dev/null 2>&1 || return 0
        sleep 0.1
    done
    fail "waited in vain for $what: $(inside squeue --states=all 2>&1; inside scontrol show node 2>&1)"
}
start_daemon() {
    chroot "$root" partitad --device emu:cd-search-24,timing=off --socket-dir /run/partita --socket-mode 0666 \
        --state-dir /var/lib/partita 2>>"$root/var/log/partitad.log" &
    daemon=$!
    until_so "partitad" inside partita status
}
start_controller() {
    chroot "$root" slurmctld -D >/dev/null 2>&1 &
    controller=$!
}
state_is() { [ "$(inside squeue --noheader --states=all --job="$1" --format=%T)" = "$2" ]; }
node_is() { inside sinfo --noheader --Node --format=%T | grep -qx "$1"; }
reserved() { [ "$(inside partita reservation list --json | jq -r '[.[].id] | sort | join(" ")')" = "$*" ]; }
reap() { inside /usr/lib/partita/slurm/reap; }
advise() { inside /usr/lib/partita/slurm/advise; }
features_are() { inside scontrol --oneliner show node $NODE | grep -qE "ActiveFeatures=$1 "; }
# submit OPTIONS: a job that holds the program until `out/end` exists; its number.
submit() {
    inside sbatch --parsable --uid=$JOB_USER --no-requeue --chdir=/out --output=/out/%j "$@" \
        --wrap='until [ -e /out/end ]; do sleep 0.1; done; poly 4096 300 3'
}

chroot "$root" setpriv --reuid=munge --regid=munge --clear-groups munged --foreground --force --log-file=/var/log/munge/munged.log \
    >/dev/null 2>&1 &
until_so "munged" inside sh -c 'munge -n | unmunge'
start_daemon
start_controller
chroot "$root" slurmd -D -N $NODE >/dev/null 2>&1 &
until_so "the node" node_is idle

# The installed plugin serves a job.
inside srun --uid=$JOB_USER --chdir=/out --partita-sms=8-24 sh -c 'echo "$LD_PRELOAD" && poly 4096 300 3' >"$work/said" 2>&1 ||
    fail "a job fails: $(cat "$work/said")"
grep -q '/usr/lib/partita/libpartita_cuda.so' "$work/said" && grep -q '^PASSED$' "$work/said" ||
    fail "a job does not run by the installed plugin: $(cat "$work/said")"
until_so "the job's reservation to end" reserved ""

# A job ends while the daemon is away: its epilog waits for a while, and gives up.
lost="$(submit --partita-sms=20)"
until_so "the job's reservation" reserved "slurm-$lost"
until_so "the job" state_is "$lost" RUNNING
reap
reserved "slurm-$lost" || fail "the reservation of a job that runs was ended"
kill -KILL "$daemon"
wait "$daemon" 2>/dev/null || true
inside scancel "$lost"
until_so "the job to end" state_is "$lost" CANCELLED
until_so "its epilog to end" node_is idle
start_daemon
reserved "slurm-$lost" || fail "nothing leaked: the test shows nothing"

# Slurm gives the SMs to the next job.
kill "$controller"
wait "$controller" 2>/dev/null || true
! reap 2>/dev/null || fail "the reaper says nothing of a controller that does not answer"
reserved "slurm-$lost" || fail "a reservation was ended without Slurm's word"
start_controller
until_so "the controller" node_is idle
other="other-$lost"
inside partita reservation make "$other" --user $JOB_USER --sms 1 --for 1h >/dev/null
reap
reserved "$other" || fail "the leaked reservation is left, or another scheduler's has ended"
inside partita reservation release "$other"
living="$(submit --partita-sms=20)"
until_so "the next job's reservation" reserved "slurm-$living"
reap
reserved "slurm-$living" || fail "the reservation of a job that runs was ended"
touch "$root/out/end"
until_so "the next job" state_is "$living" COMPLETED
until_so "its reservation to end" reserved ""

# Features tell which job fits. Programs of each class are a stand-in's, because a class takes seconds of measuring.
cat >"$root/usr/sbin/partita" <<'STATUS'
#!/bin/sh
[ "$*" = "status --json" ] || exit 2
classes=$(cat /run/classes) || exit 1
printf '{"applications": [%s]}\n' "$classes"
STATUS
chmod 755 "$root/usr/sbin/partita"
programs() { printf '%s' "$1" >"$root/run/classes"; }
memory='{"class": "memory"}' compute='{"class": "compute"}' unknown='{"class": null}'
while IFS='|' read -r applications active; do
    programs "$applications"
    advise
    features_are "$active" || fail "beside $applications: $(inside scontrol show node $NODE | grep Features)"
done <<TABLE
|partita_memory_free,partita_sms_free
$unknown|partita_memory_free,partita_sms_free
$memory,$unknown|partita_sms_free
$compute|partita_memory_free
$compute,$memory|
TABLE
programs "$memory"
advise
for option in constraint prefer; do
    ! submit --$option=partita_memory_free >"$work/said" 2>&1 || fail "Slurm ignores the node's active features"
    grep -q "node configuration is not available" "$work/said" || fail "a job is refused otherwise: $(cat "$work/said")"
done
programs "$compute"
advise
fits="$(submit --partita-sms=2 --constraint=partita_memory_free)"
until_so "a job that fits" state_is "$fits" COMPLETED
rm "$root/run/classes"
advise
features_are "" || fail "a node without a daemon has advice"
rm "$root/usr/sbin/partita"
advise
features_are partita_memory_free,partita_sms_free || fail "the daemon's own answer is not read"
node_is idle || fail "the node was drained"
echo "tests/slurm.sh: passed in $SECONDS s"
