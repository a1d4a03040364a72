#!/usr/bin/env bash
# Starts a real Kubernetes for tests and writes a kubeconfig.
#   tests/kube/up.sh                   with two real nodes; needs root
#   tests/kube/up.sh --control-plane   without nodes of its own (kwok plays as many as tests ask for); needs no root
#   tests/kube/up.sh --any             the first where it can be had here, else the second
# Ends with 3 where that cannot be had on this machine, having said why.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$here/control-plane.sh"
. "$here/nodes.sh"

mode=full
case ${1:-} in
    "") ;;
    --control-plane) mode=control-plane ;;
    --any)
        if ! lacking=$(full_lacks); then
            say "control plane only, no real nodes: $lacking"
            mode=control-plane
        fi ;;
    *) die "usage: tests/kube/up.sh [--control-plane | --any]" ;;
esac

# All that was started is in the ledger and runs.
all_alive() {
    local kind pid start
    [ -s "$state/env" ] || return 1
    while read -r kind pid start _; do
        [ "$kind" != process ] || alive "$pid" "$start" || return 1
    done <"$ledger"
}

umask 022
[ -e "$state" ] || make_state 2>/dev/null || cannot "$state cannot be made; set STOKE_KUBE_DIR"
[ -O "$state" ] || cannot "$state is not yours; set STOKE_KUBE_DIR"
lock_state
if is_testbed; then
    if all_alive; then
        up_mode=$(fact STOKE_KUBE_MODE)
        [ "$up_mode" = "$mode" ] || [ "$mode" = control-plane ] ||
            die "the testbed is up without real nodes; for those: make kube-down kube-up"
        say "already up ($up_mode): export KUBECONFIG=$state/kubeconfig"
        exit
    fi
    say "the testbed in $state has crashed: starting afresh"
    STOKE_KUBE_LOCKED=yes "$here/down.sh"
    make_state
    lock_state
elif [ -n "$(find "$state" -mindepth 1 ! -name lock -print -quit)" ]; then
    die "$state holds files that are not a testbed's; set STOKE_KUBE_DIR"
fi

if [ "$mode" = full ]; then
    lacking=$(full_lacks) || cannot "$lacking"
fi
command -v openssl >/dev/null || cannot "no openssl; scripts/setup.sh kube installs it"

began=$SECONDS
parts=(etcd kube-apiserver kube-controller-manager kube-scheduler kwok)
[ "$mode" = control-plane ] || parts+=(containerd kubelet coredns forward pause)
command -v kubectl >/dev/null || parts+=(kubectl)
"$here/build.sh" "${parts[@]}" >/dev/null
# Building takes minutes, in which another may have come up.
if [ "$mode" = full ]; then
    lacking=$(full_lacks) || cannot "$lacking"
fi

say "starting the control plane"
begin_ledger
mkdir -p "$state/logs"
interrupted() { say "not up; what was started goes with: make kube-down"; }
trap interrupted EXIT
if [ "$mode" = full ]; then
    nodes=(real-0 real-1)
    make_network "${#nodes[@]}"
    make_cgroups "${nodes[@]}"
    start_runtimes "${nodes[@]}"
    start_control_plane "$host_ip" "${nodes[@]}"
    say "starting ${#nodes[@]} nodes"
    start_nodes "${nodes[@]}"
    wait_control_plane
    wait_nodes "${nodes[@]}"
else
    nodes=()
    start_control_plane -
    wait_control_plane
fi

cat >"$state/env.part" <<ENV
STOKE_KUBE_DIR=$(printf %q "$state")
STOKE_KUBE_MODE=$mode
STOKE_KUBE_VERSION=$kube_version
STOKE_KUBE_BIN=$(printf %q "$bin")
STOKE_KUBE_SERVER=https://127.0.0.1:$api_port
STOKE_KUBE_NODES=$(printf %q "${nodes[*]}")
STOKE_KUBE_CGROUP=/$cgroup
STOKE_KUBE_HOST=$([ ${#nodes[@]} = 0 ] || echo "$host_ip")
ENV
mv "$state/env.part" "$state/env"
trap - EXIT
say "up ($mode) in $((SECONDS - began)) s: export KUBECONFIG=$state/kubeconfig"
