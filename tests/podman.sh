#!/usr/bin/env bash
# Runs a CUDA program in containers of Podman, by CDI, on a daemon with the emulated GPU outside.
#
#   tests/podman.sh BINARIES PROGRAM
#
# BINARIES holds partita, partitad, partita-gpu and libpartita_cuda.so; PROGRAM is tests/partita-e2e/programs/poly.cu
# as nvcc makes it. The image has the program, its libraries and a shell, and nothing of Partita.
#
# Containers of root and of the user `daemon` run. The test has a mount namespace of its own, in which /etc/cdi,
# /etc/subuid and /etc/subgid are the test's; nothing of this machine is changed, and no registry is asked.
# Where Podman starts no container without Partita either the test is skipped: it says so and ends with 0.
set -euo pipefail
skip() {
    echo "tests/podman.sh: SKIPPED: $*"
    exit 0
}
fail() {
    echo "tests/podman.sh: FAILED: $*" >&2
    [ ! -e "$work/out" ] || tail -20 "$work/out" >&2
    [ ! -e "$work/log" ] || tail -20 "$work/log" >&2
    exit 1
}
[ $# = 2 ] || { echo "usage: tests/podman.sh BINARIES PROGRAM" >&2; exit 2; }
[ "$(id -u)" = 0 ] || skip "it needs root, to run containers of two users"
for needed in podman newuidmap jq setpriv; do
    command -v $needed >/dev/null || skip "it needs $needed (Debian: apt-get install podman runc uidmap jq util-linux)"
done
if [ -z "${PARTITA_PODMAN_INSIDE:-}" ]; then
    PARTITA_PODMAN_INSIDE=1 exec unshare --mount --propagation private "$0" "$@"
fi

readonly USER_ID=1 # `daemon`, a user of every Debian
readonly GROUP_ID=4711
work="$(mktemp -d)"
made=
[ -d /etc/cdi ] || made=/etc/cdi
daemon=
clean() {
    exec 3>&-
    [ -z "$daemon" ] || kill "$daemon" || true
    wait || true
    umount /etc/cdi /etc/subuid /etc/subgid 2>/dev/null || true
    [ -z "$made" ] || rmdir "$made" || true
    # Files of the container's users belong to subordinate ids.
    rm -rf "$work" || true
}
trap clean EXIT
chmod 755 "$work"
mkdir -p /etc/cdi
mount -t tmpfs -o mode=755 partita-cdi /etc/cdi
echo "daemon:300000:65536" >"$work/subids"
for file in /etc/subuid /etc/subgid; do
    touch $file
    mount --bind "$work/subids" $file
done
mkdir "$work/bin" "$work/image" "$work/home" "$work/tmp" "$work/runtime"
for part in partita partitad partita-gpu libpartita_cuda.so; do
    install -m 755 "$1/$part" "$work/bin/$part"
done
chown $USER_ID "$work/home" "$work/tmp" "$work/runtime"
chmod 700 "$work/runtime"

# The image: programs, and the libraries that ldd names.
install -D -m 755 "$2" "$work/image/bin/poly"
for program in sh env chmod true; do install -D -m 755 "$(type -P $program)" "$work/image/bin/$program"; done
for program in "$work"/image/bin/* "$work/bin/partita"; do ldd "$program"; done |
    grep -o '/[^ ]*' | grep -v : | sort -u | while read -r library; do
    install -D "$library" "$work/image$library"
done
mkdir "$work/image"/{etc,run}
printf 'root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n' >"$work/image/etc/passwd"
tar -C "$work/image" -cf "$work/image.tar" .

# as_root PODMAN-ARGUMENTS, as_user PODMAN-ARGUMENTS: Podman with a store of the test's own.
as_root() {
    podman --runtime "$runtime" --cgroup-manager cgroupfs --storage-driver vfs --root "$work/store" --runroot "$work/runroot" "$@"
}
as_user() { as_user_in --clear-groups "$@"; }
# as_user_in GROUPS PODMAN-ARGUMENTS: the same with groups as `setpriv` takes them.
as_user_in() {
    local groups="$1"
    shift
    (cd "$work/home" && setpriv --reuid=$USER_ID --regid=$USER_ID "$groups" --inh-caps=-all \
        env -i PATH="$PATH" HOME="$work/home" TMPDIR="$work/tmp" XDG_RUNTIME_DIR="$work/runtime" \
        podman --runtime "$runtime" --cgroup-manager cgroupfs --storage-driver vfs "$@")
}
# run WHO OPTIONS IMAGE COMMAND: starts a container. Limits stay under those of this machine.
run() {
    local who="$1"
    shift
    "$who" run --rm --network none --ulimit nofile=1024:1024 --ulimit nproc=4096:4096 "$@"
}
# as_member PODMAN-ARGUMENTS: the user as a member of the sockets' group beside its own.
as_member() { as_user_in --groups=$GROUP_ID "$@"; }
# starts WHO: whether Podman starts a container of this user, without anything of Partita.
starts() {
    "$1" import "$work/image.tar" partita-test && run "$1" partita-test true </dev/null
}
for runtime in crun runc none; do
    [ "$runtime" != none ] || break
    starts as_root >>"$work/out" 2>&1 && starts as_user >>"$work/out" 2>&1 && break
done
[ "$runtime" != none ] || { cat "$work/out"; skip "Podman starts no container here, without Partita either; the lines above say why"; }
echo "tests/podman.sh: containers of $(podman --version) with $runtime"

# The daemon, outside. Its sockets are open to root and to the group of `daemon`.
PARTITA_LOG=info "$work/bin/partitad" --device emu:cd-search-24,timing=off --socket-dir "$work/run" \
    --state-dir "$work/state" 2>"$work/log" &
daemon=$!
export PARTITA_SOCKET_DIR="$work/run"
partita="$work/bin/partita"
for _ in $(seq 300); do
    "$partita" status >/dev/null 2>&1 && break
    sleep 0.1
done
chgrp $USER_ID "$work"/run/*.sock
"$partita" cdi generate >"$work/out" || fail "no specification is written"
jq -e '.devices[].name' /etc/cdi/partita.json >/dev/null || fail "the specification is no JSON"

shared=(--device partita.dev/gpu=shared)
both=("${shared[@]}" --device partita.dev/gpu=api)
# passes WHAT COMMAND…: the program in a container computes what it should.
passes() {
    local what="$1"
    shift
    "$@" </dev/null >"$work/out" 2>&1 || fail "$what: exit code $?"
    grep -q '^PASSED$' "$work/out" || fail "$what: it says no PASSED"
    echo "tests/podman.sh: $what"
}
# refuses WHAT WORDS COMMAND…: it fails and says so.
refuses() {
    local what="$1" words="$2"
    shift 2
    ! "$@" </dev/null >"$work/out" 2>&1 || fail "$what: it succeeds"
    grep -q "$words" "$work/out" || fail "$what: it does not say \"$words\""
    echo "tests/podman.sh: $what"
}
# tenant_of WHAT COMMAND…: runs a program whose launch is held, and says whose it is to the daemon.
mkfifo "$work/hold"
tenant_of() {
    local child seen=
    exec 3<>"$work/hold"
    "$@" <"$work/hold" >"$work/out" 2>&1 3>&- &
    child=$!
    for _ in $(seq 600); do
        seen="$("$partita" status --json | jq -r '.applications[] | select(.launches_completed + .ctas_completed > 0) | .tenant' | head -1)"
        [ -z "$seen" ] || break
        kill -0 $child 2>/dev/null || fail "$*: it ends early"
        sleep 0.1
    done
    "$partita" reservation list --json >"$work/reservations"
    exec 3>&-
    wait $child || fail "$*: it fails after it was held"
    echo "$seen"
}
# is NUMBER WHAT COMMAND…
is() {
    local expected="$1" what="$2" found
    shift 2
    found="$(tenant_of "$@")" || exit 1
    [ "$found" = "$expected" ] || fail "$what: the tenant is \"$found\", not $expected"
    echo "tests/podman.sh: $what"
}
poly=(poly 4096 300 3)
held=(poly 4096 300 3 held)

passes "a program in root's container runs on the daemon outside" run as_root "${shared[@]}" partita-test "${poly[@]}"
passes "it does without any environment" run as_root "${shared[@]}" partita-test env -i /bin/poly 4096 300 3
passes "the command runs it inside, with terms" run as_root "${shared[@]}" partita-test partita run --sms 4..8 "${poly[@]}"
passes "a program in a user's container runs, too" run as_user "${shared[@]}" partita-test "${poly[@]}"
refuses "without the device there is no GPU" "CUDA driver\|no CUDA-capable" run as_root partita-test "${poly[@]}"

is 0 "root of root's container is root" run as_root -i "${shared[@]}" partita-test "${held[@]}"
is 1 "root of a user's container is the user" run as_user -i "${shared[@]}" partita-test "${held[@]}"
is 1 "another user of that container is its owner" run as_user -i --user 1000:0 "${shared[@]}" partita-test "${held[@]}"
is 400007 "an id that nobody owns is a tenant of its own" \
    run as_root -i --uidmap 0:400000:8 --gidmap 0:$USER_ID:1 --user 7:0 "${shared[@]}" partita-test "${held[@]}"

# No more rights than outside.
refuses "a user of the container without the group is refused, as outside" "no CUDA-capable\|permission denied\|denied" \
    run as_user --user 1000:1000 "${shared[@]}" partita-test "${poly[@]}"
refuses "the socket's permissions cannot be changed inside" "Read-only file system" \
    run as_root "${shared[@]}" partita-test chmod 666 /run/partita/partitad.sock
refuses "the API is a device of its own" "no daemon answers\|No such file\|not exist" \
    run as_root "${shared[@]}" partita-test partita status
run as_user "${both[@]}" partita-test partita status </dev/null >"$work/out" 2>&1 || fail "the user may not ask inside"
for user in 0:0 1000:0; do
    refuses "user $user of a user's container may not reserve" "administrators\|only root" run as_user --user $user \
        "${both[@]}" partita-test partita reservation make job-9 --user 1 --sms 8 --for 1h
done

# A job in a container has what is reserved for its user.
"$partita" reservation make job-7 --user $USER_ID --sms 14 --for 1h >/dev/null
is 1 "a job of the user runs in the container" \
    run as_user -i --user 1000:0 --env PARTITA_APP=job-7 "${shared[@]}" partita-test "${held[@]}"
jq -e '.[] | select(.id == "job-7") | .application' "$work/reservations" >/dev/null || fail "the reservation has no application"
echo "tests/podman.sh: and has what is reserved for it"

# The groups of the user get into the container by crun only. Without cgroups of its own: crun refuses mixed ones.
if command -v crun >/dev/null; then
    chgrp $GROUP_ID "$work"/run/*.sock
    runtime=crun
    if ! run as_member --cgroups=disabled partita-test true </dev/null >"$work/out" 2>&1; then
        # Where version 1 of cgroups is mounted, too, crun wants version 2 alone.
        umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup || true
        # Podman keeps the user's mount namespace alive, in which the mounts of before are.
        as_user system migrate >/dev/null 2>&1 || true
    fi
    if run as_member --cgroups=disabled partita-test true </dev/null >"$work/out" 2>&1; then
        without=(run as_member --cgroups=disabled "${shared[@]}" partita-test "${poly[@]}")
        refuses "a rootless container drops its user's groups" "no CUDA-capable\|denied" "${without[@]}"
        passes "crun keeps them with keep-groups" \
            run as_member --cgroups=disabled --group-add keep-groups "${shared[@]}" partita-test "${poly[@]}"
    else
        cat "$work/out"
        echo "tests/podman.sh: keep-groups is not tried: crun starts no container here; the lines above say why"
    fi
fi
echo "tests/podman.sh: passed in $SECONDS s"
