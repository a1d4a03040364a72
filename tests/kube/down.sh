#!/usr/bin/env bash
# Takes the testbed down: every process, interface, cgroup and file that up.sh made, and nothing else; also after a
# crash of any of them, or of up.sh itself. What is in it is thrown away, so nothing is asked to end in good order.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

# kill_all: what the ledger names, and whatever is in the testbed's cgroups, until none is left.
kill_all() {
    local deadline=$((SECONDS + 20)) left pid
    while :; do
        left=$(running)
        [ -n "$left" ] || return 0
        for pid in $left; do kill -KILL "$pid" 2>/dev/null || true; done
        [ "$SECONDS" -lt "$deadline" ] || die "these do not end: $left"
        sleep 0.05
    done
}

running() {
    local kind what start
    while read -r kind what start _; do
        case $kind in
            process) ! alive "$what" "$start" || echo "$what" ;;
            cgroup) [ ! -d "$what" ] || is_anothers || find "$what" -name cgroup.procs -exec cat {} + 2>/dev/null | living ;;
        esac
    done <"$ledger" | sort -nu
}

# The names of bridge and cgroups are the machine's, and another testbed may have them now.
is_anothers() {
    local owner
    owner=$(bridge_owner)
    [ -n "$owner" ] && [ "$owner" != "$state" ]
}

# Of the process ids on stdin, those that still run: a zombie has ended, and only its parent can clear it away.
living() {
    local pid
    while read -r pid; do ! started_at "$pid" >/dev/null || echo "$pid"; done
}

# Interfaces of pods go with their network namespaces, a moment after the last process.
remove_link() {
    [ -e "/sys/class/net/$1" ] || return 0
    # One that up.sh had no time to sign has not got the bridge's name yet.
    [ "$(link_owner "$1")" = "$state" ] || { [ "$1" != "$bridge" ] && [ -z "$(cat "/sys/class/net/$1/ifalias")" ]; } || return 0
    local port deadline=$((SECONDS + 10))
    for port in "/sys/class/net/$1/brif"/*; do
        [ -e "$port" ] || continue
        until [ ! -e "/sys/class/net/${port##*/}" ]; do
            if [ "$SECONDS" -ge "$deadline" ]; then
                ip link delete "${port##*/}" 2>/dev/null || true
                break
            fi
            sleep 0.05
        done
    done
    ip link delete "$1"
}

remove_cgroup() {
    local deadline=$((SECONDS + 10))
    until [ ! -d "$1" ] || { find "$1" -depth -type d -exec rmdir {} + 2>/dev/null; [ ! -d "$1" ]; }; do
        [ "$SECONDS" -lt "$deadline" ] || die "$1 cannot be removed: $(find "$1" -name cgroup.procs -exec cat {} + | tr '\n' ' ')is in it"
        sleep 0.05
    done
}

# An unlikely loss: the directory went, the rest stayed. The bridge says whose it is.
recover_ledger() {
    [ "$(bridge_owner)" = "$state" ] || return 1
    local hierarchy
    make_state
    begin_ledger
    echo "link $bridge" >>"$ledger"
    for hierarchy in $(cgroup_hierarchies); do echo "cgroup $hierarchy/$cgroup" >>"$ledger"; done
}

[ ! -e "$state" ] || own_state
if [ ! -e "$ledger" ] && ! recover_ledger; then
    # What up.sh makes before the ledger.
    rmdir "$state" 2>/dev/null || { [ "$(ls -A "$state" 2>/dev/null)" = lock ] && rm -r "$state"; } || true
    say "no testbed is up in $state"
    exit
fi
is_testbed || die "$state holds files that are not a testbed's"
# up.sh holds the lock while it clears away what crashed.
[ -n "${STOKE_KUBE_LOCKED:-}" ] || lock_state

kill_all
while read -r kind what _; do
    case $kind in
        link) remove_link "$what" ;;
        cgroup) is_anothers || remove_cgroup "$what" ;;
    esac
done < <(tac "$ledger")
# A part of a killed up.sh may be writing still.
until rm -rf "$state" 2>/dev/null; do
    [ "$SECONDS" -lt 60 ] || die "$state cannot be removed"
    sleep 0.1
done
say "down: nothing of it is left"
