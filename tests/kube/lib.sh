# shellcheck shell=bash disable=SC2034 # used by those who source it
# What every script of the testbed shares: where things are, how it talks, and the ledger.
# Invariant: whatever outlives a script (a process, a bridge, a cgroup) is in the ledger before it is there, so that
# down.sh finds it whenever and however the script ended.

kube_version=1.34.4
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${STOKE_CACHE_DIR:-${XDG_CACHE_HOME:-${HOME:?HOME is not set; set STOKE_CACHE_DIR}/.cache}/stokehold}/kube-v$kube_version
bin=$cache/bin
state=${STOKE_KUBE_DIR:-/tmp/stokehold-kube-$(id -u)}
ledger=$state/ledger

# One testbed with real nodes fits on a machine: these are its names and addresses.
bridge=stokehold-kb
bridge_mac=02:57:0c:e0:1d:01
cgroup=stokehold-kube
host_ip=10.123.0.1         # DNS and the endpoint of the API server; node real-N is 10.123.0.(10+N)
pod_subnet=10.124.0.0/16   # of node real-N: 10.124.(N+1).0/24, one segment with all others, so nothing is routed
pod_gateway=10.124.0.1
service_subnet=10.125.0.0/16
service_ip=10.125.0.1      # of the Service `kubernetes`
kwok_subnet=10.128.0.1/12  # of pods that do not exist

# What a kubelet makes of the kernel's settings when it starts, for the whole machine: NAME VALUE. No flag keeps it from that
# (protectKernelDefaults makes it give up instead), so its node shows it these values and the machine keeps its own.
kubelet_sysctls() {
    echo "vm/overcommit_memory 1"
    echo "vm/panic_on_oom 0"
    echo "kernel/panic 10"
    echo "kernel/panic_on_oops 1"
    echo "kernel/keys/root_maxkeys 1000000"
    echo "kernel/keys/root_maxbytes 25000000"
}

# Exit code of a script that found that what it was asked for cannot be had on this machine.
cannot_be_had=3

say() { echo "kube: $*" >&2; }

die() {
    say "$*"
    exit 1
}

cannot() {
    say "cannot be had here: $*"
    exit "$cannot_be_had"
}

# --- processes ---------------------------------------------------------------------------------------------------

# The tick at which a process started. With its id it names one process for ever; the id alone is given anew.
started_at() {
    local stat
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    # The command's name, in parentheses, may hold anything: count from behind it.
    # shellcheck disable=SC2086 # its words
    set -- ${stat##*) }
    [ "$1" != Z ] || return 1
    echo "${20}"
}

alive() { [ "$(started_at "$1")" = "$2" ]; }

# start NAME COMMAND...: runs it beyond this shell, logging to logs/NAME.log. The child itself writes the ledger, and
# joins the testbed's cgroup where it has one, before it becomes the command.
start() {
    local name=$1
    shift
    # shellcheck disable=SC2016 # expanded by the child
    setsid bash -c '
        set -eu
        . "$1/lib.sh"
        name=$2
        shift 2
        echo "process $$ $(started_at $$) $name" >>"$ledger"
        if grep -q "^cgroup " "$ledger"; then echo $$ >"$(cgroup_tracker)/cgroup.procs"; fi
        exec "$@"
    ' start "$here" "$name" "$@" </dev/null >>"$state/logs/$name.log" 2>&1 9>&- &
    disown
}

# pid_of NAME: of a process that start started and that still runs.
pid_of() {
    local kind pid start name
    while read -r kind pid start name; do
        if [ "$kind" = process ] && [ "$name" = "$1" ] && alive "$pid" "$start"; then
            echo "$pid"
            return
        fi
    done <"$ledger"
    return 1
}

# wait_for SECONDS NAME WHAT COMMAND...: until the command succeeds; the end of the process NAME ends it at once.
wait_for() {
    local seconds=$1 name=$2 what=$3 deadline
    shift 3
    deadline=$((SECONDS + seconds))
    until "$@" >/dev/null 2>&1; do
        if ! pid_of "$name" >/dev/null && [ -s "$state/logs/$name.log" ]; then
            tail -n 5 "$state/logs/$name.log" >&2
            die "$name ended while waiting for $what; its log: $state/logs/$name.log"
        fi
        [ "$SECONDS" -lt "$deadline" ] || {
            tail -n 5 "$state/logs/$name.log" >&2
            die "no $what after $seconds s; see $state/logs/$name.log"
        }
        sleep 0.1
    done
}

# --- the machine -------------------------------------------------------------------------------------------------

# The mount points of the cgroup hierarchies: one for v2, one per controller for v1, and with both of them all.
cgroup_hierarchies() { awk '$(NF - 2) ~ /^cgroup2?$/ { print $5 }' /proc/self/mountinfo | sort -u; }

# A cgroup that holds every process of the testbed that is not in a pod: what they start (a container's shim, say)
# stays in it, so nothing gets away from down.sh.
cgroup_tracker() {
    local hierarchy
    for hierarchy in /sys/fs/cgroup/pids /sys/fs/cgroup/memory /sys/fs/cgroup; do
        if [ -e "$hierarchy/cgroup.procs" ]; then
            echo "$hierarchy/$cgroup/testbed"
            return
        fi
    done
}

# link_owner NAME: the state directory of the testbed that made an interface: the interface itself says so.
link_owner() { sed -n 's/^stokehold testbed //p' "/sys/class/net/$1/ifalias" 2>/dev/null || true; }

# The one that has real nodes on this machine, and with them the bridge and the cgroups; nothing where there is none.
bridge_owner() { link_owner "$bridge"; }

# A TCP port that nobody listens on, below those the kernel hands out to clients.
free_port() {
    local port tries
    for tries in {1..200}; do
        port=$((20000 + (RANDOM * 7 + tries) % 12000))
        if ! grep -qi ":$(printf %04X "$port") .* 0A " /proc/net/tcp /proc/net/tcp6 2>/dev/null; then
            echo "$port"
            return
        fi
    done
    die "no free TCP port between 20000 and 32000"
}

kubectl() { "$(PATH="$PATH:$bin" type -P kubectl)" --kubeconfig "$state/kubeconfig" "$@"; }

# fact NAME: one of the facts in the testbed's env file.
fact() {
    # shellcheck disable=SC1091 # up.sh writes it
    ( . "$state/env" && echo "${!1}" )
}

# Holds tokens and keys: only its owner looks inside.
make_state() { mkdir -p "$state" && chmod 700 "$state"; }

# Under /tmp anyone may make a directory of any name, with a kubeconfig and facts of their own in it.
own_state() { [ -O "$state" ] || die "$state is not yours; set STOKE_KUBE_DIR"; }

# The first line of a ledger: down.sh removes a directory with all that is in it only where this was written there.
ledger_mark="stokehold testbed"
begin_ledger() { echo "$ledger_mark" >"$ledger"; }
is_testbed() { [ "$(head -n 1 "$ledger" 2>/dev/null)" = "$ledger_mark" ]; }

# Takes the lock that up, down and image share; it is free when this shell ends.
lock_state() {
    exec 9>"$state/lock" # closed by those that start() starts
    flock --timeout 600 9 || die "another script works on $state for over ten minutes"
}
