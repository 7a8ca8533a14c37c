#!/usr/bin/env bash
# Builds the image of systemd/images and runs tests of CUDA programs in it, as a CI without a GPU does.
#
#   tests/images.sh BINARIES PAGES NVCC    BINARIES and PAGES as systemd/build-debs.sh takes them
#
# No registry is asked. In the place of Debian's image stands one of this machine's shell, coreutils and dpkg-deb; the
# stage that compiles the packages is replaced by packages of BINARIES. The stage `devel` is not built: it installs from
# Debian and PyPI. The step `Test` of the example's job file runs as it is written, but for the names of the images.
# Where Podman starts no container the test is skipped: it says so and ends with 0.
set -euo pipefail
skip() {
    echo "tests/images.sh: SKIPPED: $*"
    exit 0
}
fail() {
    echo "tests/images.sh: FAILED: $*" >&2
    [ ! -e "$work/out" ] || tail -30 "$work/out" >&2
    exit 1
}
[ $# = 3 ] || { echo "usage: tests/images.sh BINARIES PAGES NVCC" >&2; exit 2; }
[ "$(id -u)" = 0 ] || skip "it needs root, to mount file systems in memory"
for needed in podman dpkg-deb setpriv; do
    command -v $needed >/dev/null || skip "it needs $needed (Debian: apt-get install podman runc uidmap dpkg util-linux)"
done
if [ -z "${PARTITA_IMAGES_INSIDE:-}" ]; then
    PARTITA_IMAGES_INSIDE=1 exec unshare --mount --propagation private "$0" "$@"
fi
binaries="$(realpath "$1")" pages="$(realpath "$2")" nvcc="$(realpath "$3")"
cd "$(dirname "$0")/.."

work="$(mktemp -d)"
clean() {
    wait || true
    umount -R "$work/store" 2>/dev/null || umount -l "$work/store" 2>/dev/null || true
    umount "$work" 2>/dev/null || umount -l "$work" 2>/dev/null || true
    rmdir "$work" || true
}
trap clean EXIT
# Layers in memory, one over the other: the driver `vfs` would copy all of the image for each container.
mount -t tmpfs -o mode=755,size=3G partita-images "$work" || skip "no file system in memory can be mounted"
mkdir "$work"/{store,runroot,base,packages}
export TMPDIR="$work"

with_store() {
    command podman --runtime "$runtime" --cgroup-manager cgroupfs --storage-driver overlay --root "$work/store" \
        --runroot "$work/runroot" "$@"
}
# Limits stay under those of this machine.
limits=(--ulimit nofile=1024:1024 --ulimit nproc=4096:4096)
closed=(--read-only --cap-drop=all --security-opt=no-new-privileges --network=none)

cp -r systemd/images/example "$work/example"
make -s -C "$work/example" NVCC="$nvcc" >"$work/out" 2>&1 || fail "the example is not compiled"
chmod -R a+rX "$work/example"

# apt brings libstdc++ into Debian's image, so the example's libraries are there, too.
for program in bash sh env cat cp mv rm mkdir mktemp sed sleep tail tar id kill setsid true dpkg-deb; do
    install -D -m 755 "$(type -P $program)" "$work/base/bin/$program"
done
for program in "$work"/base/bin/* "$work"/example/build/* "$binaries/partita"; do ldd "$program" || true; done |
    grep -o '/[^ ]*' | grep -v : | sort -u | while read -r library; do
    install -D "$library" "$work/base$library"
done
mkdir -p "$work/base"/{etc,run,tmp,dev,proc,sys} "$work/base/usr/bin"
chmod 1777 "$work/base/tmp"
printf 'root:x:0:0::/:/bin/sh\n' >"$work/base/etc/passwd"
tar -C "$work/base" -cf "$work/base.tar" .
readonly BASE=docker.io/library/debian:bookworm-slim
for runtime in crun runc none; do
    [ "$runtime" != none ] || break
    { with_store import "$work/base.tar" $BASE &&
        with_store run --rm --pull=never --network=none "${limits[@]}" $BASE true </dev/null; } >>"$work/out" 2>&1 && break
done
[ "$runtime" != none ] || { cat "$work/out"; skip "Podman starts no container here, without Partita either; the lines above say why"; }
echo "tests/images.sh: containers of $(podman --version) with $runtime"

COMPRESSION=none systemd/build-debs.sh "$binaries" "$pages" "$work/packages/debs" >"$work/out" 2>&1 || fail "no packages"
with_store build --pull=never --isolation=chroot --layers=false --build-context "packages=$work/packages" \
    -f systemd/images/Containerfile --target gpu -t partita-ci . >"$work/out" 2>&1 || fail "the image is not built"
rm -r "$work/packages"
echo "tests/images.sh: the image is built ($SECONDS s)"

# ends STATUS WORDS WHAT COMMAND…: it ends with this status, and says these words.
ends() {
    local status="$1" words="$2" what="$3" code=0
    shift 3
    "$@" </dev/null >"$work/out" 2>&1 || code=$?
    [ $code = "$status" ] || fail "$what: status $code, not $status"
    grep -q -- "$words" "$work/out" || fail "$what: it does not say \"$words\""
    echo "tests/images.sh: $what"
}
# ci OPTIONS IMAGE COMMAND: a job without a network or a privilege.
ci() {
    with_store run --rm "${limits[@]}" "${closed[@]}" --volume "$work/example:/src:ro" --workdir /src "$@"
}

# The job file's step, word for word.
{
    echo 'podman() { shift; with_store run "${limits[@]}" "$@"; }'
    awk '/- name: Test/ { step = 1 } step && body { print } step && /run: \|/ { body = 1 }' \
        systemd/images/example/.github/workflows/gpu-tests.yml |
        sed 's|registry.example.com/partita-ci:[0-9.]*|partita-ci|; s|\${{ matrix.gpu }}|emu:a100,timing=off|'
} >"$work/step"
grep -q 'build/test_saxpy' "$work/step" || fail "the job file has no step Test"
step() { (cd "$work/example" && GITHUB_ACTIONS=true && export GITHUB_ACTIONS && source "$work/step"); }
ends 0 "ok reduce" "the job file's step passes" step

ends 1 "::group::Log of the emulated GPU" "a test that fails fails the job, and the log is shown" \
    ci --env GITHUB_ACTIONS=true partita-ci build/test_reduce broken
ends 127 "no such program" "a command that does not exist is 127" ci partita-ci build/nothing
ends 137 "status 137" "a command that is killed is 128 and the signal" ci partita-ci sh -c 'kill -9 $$'
ends 125 "PARTITA_CI_DEVICE=cuda" "no other GPU than an emulated one is served" ci --env PARTITA_CI_DEVICE=cuda partita-ci true
ends 125 "no spec is named" "a GPU that does not exist is named" ci --env PARTITA_CI_DEVICE=emu:best partita-ci true
ends 125 "--tmpfs /tmp" "without a writable folder it says what to do" ci --read-only-tmpfs=false partita-ci true
ends 0 "ok reduce" "and that helps" ci --read-only-tmpfs=false --tmpfs /tmp partita-ci build/test_reduce
ends 0 "ok reduce" "/dev/shm may be as small as it likes" ci --shm-size=64k partita-ci build/test_reduce
ends 125 "--ulimit fsize=" "where files are too short for shared memory it says what to do" \
    ci --ulimit fsize=1000000:1000000 partita-ci true
ends 0 "ok reduce" "any user will do" ci --user 1001 partita-ci build/test_reduce
echo 3 >"$work/input"
read_input() { ci -i partita-ci cat <"$work/input"; }
ends 0 "^3$" "the command reads standard input" read_input

# A container as GitHub's runner starts it: with a command of its own, in which the steps are executed.
with_store run --detach --name steps --entrypoint tail "${limits[@]}" --user 1001 --cap-drop=all \
    --volume "$work/example:/src" --workdir /src partita-ci -f /dev/null >"$work/out" 2>&1 || fail "no container for steps"
in_steps() { with_store exec "$@"; }
ends 0 "ok saxpy" "a step of a running container has a GPU" in_steps steps partita-ci build/test_saxpy
ends 1 "FAILED" "a step that fails says so" in_steps steps partita-ci build/test_reduce broken
jobs=()
for job in 1 2 3; do
    in_steps steps partita-ci build/test_reduce </dev/null >"$work/job.$job" 2>&1 &
    jobs+=($!)
done
for job in 1 2 3; do
    wait "${jobs[job - 1]}" || { cp "$work/job.$job" "$work/out"; fail "job $job of three at once"; }
    grep -q "ok reduce" "$work/job.$job" || fail "job $job says nothing"
done
echo "tests/images.sh: three jobs at once have a GPU each"
with_store rm --force --time 0 steps >/dev/null

# Signals: the command gets them, and the container ends with its status.
with_store run --detach --name signals "${limits[@]}" "${closed[@]}" partita-ci \
    bash -c 'trap "echo told; exit 7" TERM; echo ready; while :; do sleep 0.1; done' >"$work/out" 2>&1 || fail "no container"
for _ in $(seq 200); do
    with_store logs signals >"$work/out" 2>&1
    ! grep -q '^ready' "$work/out" || break
    sleep 0.1
done
in_steps signals partita status >"$work/out" 2>&1 || fail "the GPU of a container cannot be asked from outside"
with_store stop --time 20 signals >"$work/out" 2>&1
[ "$(with_store wait signals)" = 7 ] || fail "the container ends with $(with_store wait signals), not the command's 7"
# The last line may come to the log behind the container's end.
for _ in $(seq 50); do
    with_store logs signals >"$work/out" 2>&1
    ! grep -q '^told' "$work/out" || break
    sleep 0.1
done
grep -q '^told' "$work/out" || fail "the command was not told: $(cat "$work/out")"
with_store rm signals >/dev/null
echo "tests/images.sh: podman stop tells the command, and its status is the container's"

# One GPU for several containers: the first serves, the others find its sockets in a volume. Each has process numbers of
# its own.
mkdir -m 1777 "$work/sockets"
shared=(--volume "$work/sockets:/sockets" --env PARTITA_SOCKET_DIR=/sockets/gpu)
with_store run --detach --name service "${limits[@]}" "${closed[@]}" "${shared[@]}" partita-ci >"$work/out" 2>&1 ||
    fail "no container that serves"
for _ in $(seq 200); do
    ! in_steps service partita status >"$work/out" 2>&1 || break
    sleep 0.1
done
ends 0 "ok reduce" "a container uses the GPU of another one" ci "${shared[@]}" partita-ci build/test_reduce
! grep -q "serves in" "$work/out" || fail "it started a GPU of its own"
with_store stop --time 20 service >/dev/null 2>&1
[ "$(with_store wait service)" = 0 ] || fail "the container that served ends with $(with_store wait service)"
with_store rm service >/dev/null
echo "tests/images.sh: passed in $SECONDS s"
