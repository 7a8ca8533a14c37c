# What the prologs and epilogs of Flux, PBS and LSF share: a reservation from a job's begin to its end.
# shellcheck shell=sh
#
# POSIX sh, sourced by scripts that root runs. /etc/partita/hooks.conf may set the variables below.
#
# Nothing of Partita may fail a job or drain a node, so each script ends with 0; what goes wrong is on standard error
# and in the system's log (`journalctl -t partita`). The words of a job come from its user: `partita` checks each,
# and none is evaluated.

# LSF hands root's scripts the environment of the job.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
unset LD_PRELOAD LD_LIBRARY_PATH PARTITA_SOCKET_DIR PARTITA_LIB_DIR

# The folder of the daemon's sockets.
partita_socket_dir=/run/partita
# The GPU whose SMs jobs get.
partita_gpu=0
# When a reservation ends whose epilog never came, in days.
partita_days=30
# For how long a daemon that does not answer is asked again, in seconds.
partita_patience=10
# shellcheck source=/dev/null
[ ! -r /etc/partita/hooks.conf ] || . /etc/partita/hooks.conf

# say WORDS: tells the administrator.
say() {
    echo "partita: $*" >&2
    logger -t partita -- "$*" 2>/dev/null || true
}

# name_of SCHEDULER JOB: the name of a job's reservation, and the tag of its application. An id of Flux loses its
# first letter, which is not ASCII; other characters that a name cannot have, as of PBS's arrays, become `_`.
name_of() {
    partita_id=$2
    if [ "$1" = flux ]; then
        case $partita_id in
        ƒ*) partita_id=${partita_id#ƒ} ;;
        f*) partita_id=${partita_id#f} ;;
        esac
    fi
    printf '%s-%s' "$1" "$(printf %s "$partita_id" | LC_ALL=C tr -c 'A-Za-z0-9._-' _)"
}

# ask ARGUMENTS: asks the daemon, and again while none answers. A refusal is final.
ask() {
    partita_left=$partita_patience
    until partita_said=$(/usr/bin/partita "$@" --socket-dir "$partita_socket_dir" 2>&1); do
        if [ "$partita_left" -le 0 ] || /usr/bin/partita status --socket-dir "$partita_socket_dir" >/dev/null 2>&1; then
            return 1
        fi
        partita_left=$((partita_left - 1))
        sleep 1
    done
}

# reserve SCHEDULER JOB USER SMS PRIORITY MEMORY: makes the reservation. The last three are what PARTITA_SMS and its
# like are in the job's environment; without any of them the job is left alone.
reserve() {
    partita_name=$(name_of "$1" "$2")
    partita_user=$3 partita_sms=$4 partita_priority=$5 partita_memory=$6
    [ -n "$partita_sms$partita_priority$partita_memory" ] || return 0
    case $partita_sms in
    *..*) partita_min=${partita_sms%%..*} partita_max=${partita_sms##*..} ;;
    *) partita_min=$partita_sms partita_max=$partita_sms ;;
    esac
    set -- reservation make "$partita_name" "--user=$partita_user" "--sms=${partita_min:-1}" "--gpu=$partita_gpu" \
        "--for=${partita_days}d"
    [ -z "$partita_max" ] || set -- "$@" "--max-sms=$partita_max"
    [ -z "$partita_priority" ] || set -- "$@" "--priority=$partita_priority"
    [ -z "$partita_memory" ] || set -- "$@" "--memory=$partita_memory"
    if ask "$@"; then
        say "$partita_said"
    else
        say "no SMs are promised to $partita_name of user $partita_user: $partita_said"
    fi
}

# release SCHEDULER JOB: ends the reservation, if there is one.
release() {
    partita_name=$(name_of "$1" "$2")
    ask reservation release "$partita_name" --if-there || say "the reservation $partita_name stays: $partita_said"
}
