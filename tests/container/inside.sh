#!/bin/bash
# What tests/container.sh runs inside the booted container: installs the packages, and restarts, kills and
# upgrades the daemon under a running program. Ends with 0 where all of it holds.
set -uo pipefail
cd "$(dirname "$0")" || exit 1
export HOME=/root TERM=dumb
client= crowd=()

fail() {
    echo "container: FAILED: $*"
    systemctl --no-pager --lines 0 status partitad.service 'partita-gpu@*.service' partitad.socket partitad-api.socket
    journalctl --no-pager -q -u 'partita*' | grep -v 'control socket of GPU' | tail -40
    exit 1
}
# within SECONDS WHAT COMMAND...: repeats the command until it succeeds.
within() {
    local deadline=$(($(date +%s%N) + $1 * 1000000000)) what="$2"
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ "$(date +%s%N)" -lt "$deadline" ] || fail "$what"
        sleep 0.02
    done
}
gpu_pid() { systemctl show -P MainPID partita-gpu@0.service; }
start_client() {
    rm -f progress
    partita run python3 client.py spin.ptx progress &
    client=$!
    within 60 "the program launches nothing" test -s progress
}
goes_on() {
    local before
    before="$(cat progress)"
    within 60 "$1: the program does not go on" sh -c "[ \$(cat progress) -gt $((before + 5)) ]"
    kill -0 $client || fail "$1: the program has ended"
}
# back WHAT: waits for the API, and says how long that took.
back() {
    local start
    start="$(date +%s%N)"
    within 20 "$1: the API is not back" partita status
    echo "container: $1: the API was back after $((($(date +%s%N) - start) / 1000000)) ms"
}
newcomer() { partita run python3 client.py spin.ptx progress.new 3 || fail "$1: a new program is not served"; }
# Programs that begin one after the other while the daemon comes and goes: some are in their handshake then.
start_crowd() {
    rm -f crowd.failed crowd.served crowd.end
    for worker in 1 2 3; do
        while [ ! -e crowd.end ]; do
            if partita run python3 client.py spin.ptx "progress.$worker" 1; then
                echo >>crowd.served
            else
                echo >>crowd.failed
            fi
        done &
        crowd[worker]=$!
    done
}
end_crowd() {
    touch crowd.end
    wait "${crowd[@]}"
    [ ! -e crowd.failed ] || fail "$1: $(wc -l <crowd.failed) of the programs that began meanwhile were not served"
    echo "container: $1: $(wc -l <crowd.served) programs began meanwhile, and all were served"
}
# as USER COMMAND...
as() { runuser -u "$1" -- env HOME=/ "${@:2}"; }

echo "container: install"
dpkg -i old/partitad_*.deb old/partita_*.deb old/partita-bench_*.deb >dpkg.log 2>&1 || { cat dpkg.log; fail "install"; }
back "install"
systemctl is-active -q partitad.service partitad.socket || fail "the units are not active after the installation"
getent group partita partita-admin >/dev/null && getent passwd partita >/dev/null || fail "users and groups"
[ "$(stat -c '%a %U %G' /run/partita/partitad.sock /run/partita/api.sock | sort -u)" = "660 partita partita" ] || fail "rights of the sockets"
[ "$(stat -c '%a %U' /run/partita/gpu)" = "700 partita" ] || fail "rights of the control sockets"
partitad --check-config --config /etc/partita/partitad.toml || fail "the configuration that is installed"
for file in /usr/share/man/man1/partita.1.gz /usr/share/man/man8/partitad.8.gz /usr/share/man/man5/partitad.toml.5.gz \
    /usr/share/bash-completion/completions/partita /usr/share/zsh/vendor-completions/_partita \
    /usr/share/fish/vendor_completions.d/partita.fish; do
    # Where this machine's dpkg leaves manual pages out, the packages still have them.
    grep -qxF "$file" <(dpkg -L partita partitad) || fail "no package has $file"
done
partita doctor >doctor.log || { cat doctor.log; fail "doctor finds trouble"; }
partita bench --help >/dev/null || fail "the benchmarks are not found"

echo "container: users"
useradd -G partita partita-member && useradd partita-stranger || fail "users cannot be made"
chmod 755 . && chmod 644 client.py spin.ptx
as partita-member partita status >/dev/null || fail "a member of the group is not answered"
as partita-member partita run python3 client.py spin.ptx /tmp/progress.member 3 || fail "a member of the group is not served"
refused="$(as partita-stranger partita status 2>&1)" && fail "a stranger is answered"
grep -q "you may not use" <<<"$refused" || fail "a stranger is told: $refused"
refused="$(as partita-stranger partita run true 2>&1)" && fail "a stranger is served"
grep -q "adduser USER partita" <<<"$refused" || fail "a stranger is told: $refused"

start_client
gpu="$(gpu_pid)"

echo "container: journal, configuration, bug report"
entries() { grep -q '"PARTITA_GPU":"0"' <(journalctl -q -o json "$@"); }
within 10 "the journal has no entry of partita-gpu about the session" entries PARTITA_TENANT=0
partita config | grep -q ' /etc/partita/partitad.toml:[0-9]' || fail "partita config names no line of the file"
printf '[policy]\nhold_up_ms = 0\n' >/etc/partita/partitad.toml.d/bad.toml
systemctl reload partitad.service
within 10 "a reload that is refused is not told" sh -c "partita config | grep -q 'was refused'"
rm /etc/partita/partitad.toml.d/bad.toml
systemctl reload partitad.service
within 10 "a reload that holds is not told" sh -c "! partita config | grep -q 'was refused'"
partita doctor --bundle bundle.tar.gz >/dev/null || fail "no bug report"
for part in status.json config.json units.txt log.txt; do
    grep -q "/$part\$" <(tar -tzf bundle.tar.gz) || { tar -xzOf bundle.tar.gz partita-bundle/CONTENTS.txt; fail "the bug report has no $part"; }
done
echo "container: systemctl reload partitad"
echo "# An administrator's line." >>/etc/partita/partitad.toml
read_again() { journalctl -q -u partitad.service | grep -c "the configuration was read again" || true; }
before="$(read_again)"
has_read_again() { [ "$(read_again)" -gt "$before" ]; }
systemctl reload partitad.service || fail "reload"
within 20 "partitad has not read its configuration again" has_read_again
goes_on "reload"
mkdir -p /etc/systemd/system/partitad.service.d
printf '[Service]\nEnvironment="PARTITAD_OPTIONS=--policy even"\n' >/etc/systemd/system/partitad.service.d/options.conf
systemctl daemon-reload

echo "container: systemctl restart partitad"
start_crowd
for _ in 1 2 3; do systemctl restart partitad.service || fail "restart"; done
back "restart"
goes_on "restart"
end_crowd "restart"
partita status --json | grep -q '"partitioner":"even"' || fail "a drop-in's options are not in force"
[ "$(gpu_pid)" = "$gpu" ] || fail "restart: partita-gpu is another process"

echo "container: kill -9 partitad"
start_crowd
for _ in 1 2 3; do
    within 20 "partitad does not come back" sh -c '[ "$(systemctl show -P MainPID partitad.service)" != 0 ]'
    kill -9 "$(systemctl show -P MainPID partitad.service)"
    sleep 0.5
done
back "kill"
goes_on "kill"
end_crowd "kill"
[ "$(gpu_pid)" = "$gpu" ] || fail "kill: partita-gpu is another process"
newcomer "kill"

echo "container: upgrade"
partitad_before="$(systemctl show -P MainPID partitad.service)"
start_crowd
dpkg -i new/partitad_*.deb new/partita_*.deb new/partita-bench_*.deb >dpkg.log 2>&1 || { cat dpkg.log; fail "upgrade"; }
back "upgrade"
goes_on "upgrade"
end_crowd "upgrade"
for package in partitad partita partita-bench; do
    dpkg-query -W -f '${Version}' "$package" | grep -q '+upgrade$' || fail "$package is not of the new version"
done
[ "$(systemctl show -P MainPID partitad.service)" != "$partitad_before" ] || fail "the upgrade did not restart partitad"
grep -q "An administrator's line" /etc/partita/partitad.toml || fail "the upgrade changed the administrator's configuration"
[ "$(gpu_pid)" = "$gpu" ] || fail "upgrade: partita-gpu is another process"

echo "container: kill -9 partita-gpu"
kill -9 "$gpu"
wait $client && fail "the program did not notice the end of partita-gpu"
within 20 "partita-gpu is not back" sh -c "pid=\$(systemctl show -P MainPID partita-gpu@0.service); [ \$pid -gt 0 -a \$pid != $gpu ]"
back "kill of partita-gpu"
newcomer "kill of partita-gpu"

echo "container: remove and install again"
dpkg -r partitad >dpkg.log 2>&1 || { cat dpkg.log; fail "remove"; }
[ -e /etc/partita/partitad.toml ] || fail "remove takes the configuration along"
partita status >/dev/null 2>&1 && fail "a removed daemon answers"
dpkg -i new/partitad_*.deb >dpkg.log 2>&1 || { cat dpkg.log; fail "installation after remove"; }
back "installation after remove"
newcomer "installation after remove"
[ "$(systemctl is-enabled partitad.service partitad.socket partitad-api.socket | sort -u)" = enabled ] ||
    fail "the units are not enabled after remove and installation"

echo "container: purge"
dpkg -P partita-bench partita partitad >dpkg.log 2>&1 || { cat dpkg.log; fail "purge"; }
for left in /usr/bin/partitad /usr/bin/partita /etc/partita /var/lib/partita /run/partita /lib/systemd/system/partitad.service; do
    [ ! -e "$left" ] || fail "purge leaves $left"
done
for process in partitad partita-gpu; do
    ! pgrep -x "$process" >/dev/null || fail "purge leaves $process"
done
echo "container: all of it holds"
exit 0
