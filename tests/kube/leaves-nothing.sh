#!/usr/bin/env bash
# Shows that a testbed leaves the machine as it found it: in good order, after a crash of its parts, after a crash of
# up.sh, and with pods running. Fails on any difference, and shows it. Ends with 3 where that cannot be shown: it needs
# root, and that no testbed is up.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$here/nodes.sh"

export STOKE_KUBE_DIR=/tmp/stokehold-kube-leaves-nothing
state=$STOKE_KUBE_DIR
ledger=$state/ledger
[ ! -e "$state" ] || cannot "a testbed is in $state; make kube-down first"
lacking=$(full_lacks) || cannot "$lacking"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# All that could be left behind. Processes: those that somebody else started meanwhile are told apart by name.
snapshot() {
    echo "--- links";  ip -o link | sed 's/^[0-9]*: //' | awk '{ print $1, $2, $3 }' | sort
    echo "--- addresses"; ip -o address | awk '{ print $2, $3, $4 }' | sort
    echo "--- routes"; ip route; ip neighbour show nud permanent
    echo "--- named network namespaces"; ip netns list 2>/dev/null || true
    echo "--- mounts"; awk '{ print $5, $(NF-2), $(NF-1) }' /proc/self/mountinfo | sort
    echo "--- packet filter"; { iptables-save; nft list ruleset; } 2>/dev/null | grep -v '^#' || true
    echo "--- kernel settings"; cat /proc/sys/net/ipv4/ip_forward; kubelet_sysctls | while read -r name _; do sysctl "$name"; done
    echo "--- cgroups"; find /sys/fs/cgroup -type d \( -name '*stokehold-kube*' -o -name '*kubepods*' \) | sort
    echo "--- processes"; processes
    echo "--- files"; ls -d /tmp/stokehold-kube-leaves* /run/containerd* /run/netns* /var/lib/kubelet* /var/lib/cni* \
        /var/lib/containerd* /var/log/pods* /var/log/containers* /etc/cni* /opt/cni* 2>/dev/null || true
}

sysctl() { echo "$1 $(cat "/proc/sys/$1" 2>/dev/null)"; }

processes() {
    local dir
    for dir in /proc/[0-9]*; do
        { tr '\0' ' ' <"$dir/cmdline"; } 2>/dev/null | grep -F -e "$cache" -e "$state" -e /pause || true
    done | sort
}

# check WHAT: nothing differs from before. The kernel clears a namespace's remains a moment later.
check() {
    local deadline=$((SECONDS + 10))
    until snapshot >"$work/after" && diff -u "$work/before" "$work/after" >"$work/difference"; do
        if [ "$SECONDS" -ge "$deadline" ]; then
            cat "$work/difference" >&2
            "$here/down.sh" || true
            die "left behind $1"
        fi
        sleep 0.1
    done
    say "nothing is left $1"
}

# Pods on both nodes, one that holds memory in a volume and one in the network of the machine.
run_pods() {
    kubectl apply --filename - >/dev/null <<'YAML'
apiVersion: v1
kind: Pod
metadata: {name: volumes}
spec:
  nodeName: real-0
  containers:
    - {name: pause, image: "stokehold.dev/testbed/pause:1", volumeMounts: [{name: memory, mountPath: /memory}]}
  volumes: [{name: memory, emptyDir: {medium: Memory}}]
---
apiVersion: v1
kind: Pod
metadata: {name: host}
spec:
  nodeName: real-1
  hostNetwork: true
  containers: [{name: pause, image: "stokehold.dev/testbed/pause:1"}]
YAML
    kubectl wait --for=condition=Ready --timeout=60s pod/volumes pod/host >/dev/null
}

"$here/build.sh" etcd containerd kube-apiserver kube-controller-manager kube-scheduler kwok kubelet coredns forward pause >/dev/null
snapshot >"$work/before"

"$here/up.sh"
run_pods
"$here/down.sh"
check "after pods ran"

"$here/up.sh"
run_pods
for name in real-0-kubelet real-1-containerd kube-apiserver etcd; do kill -KILL "$(pid_of "$name")"; done
"$here/down.sh"
check "after kubelet, containerd, kube-apiserver and etcd crashed"

# In the middle of its work, at three different moments.
for seconds in 1 5 12; do
    setsid "$here/up.sh" &
    up=$!
    sleep "$seconds"
    kill -KILL "$up" 2>/dev/null || true
    wait "$up" 2>/dev/null || true
    "$here/down.sh"
    check "after up.sh was killed $seconds s into its work"
done

"$here/up.sh" --control-plane
"$here/down.sh"
check "of a control plane alone"
