#!/usr/bin/env bash
# Runs a command inside a node: in the mount namespace that it was given, /var is a layer over the machine's, kept in the
# node's directory, and /run is new. Kubelet, containerd and CNI write to fixed paths there, each node to its own. The kernel
# settings that a kubelet would change are files of the node, which say already what it wants.
#   unshare --mount --propagation private tests/kube/in-node.sh DIRECTORY COMMAND...
set -euo pipefail
. "$(dirname "$0")/lib.sh"
node=$1
shift
mount -t overlay -o "lowerdir=/var,upperdir=$node/var/upper,workdir=$node/var/work" stokehold-kube /var
# Where agents look for it.
mkdir -p /var/lib/kubelet "$node/kubelet"
mount --bind "$node/kubelet" /var/lib/kubelet
mount -t tmpfs -o mode=755 stokehold-kube /run
mkdir -p "$node/sysctl"
while read -r name value; do
    [ -e "/proc/sys/$name" ] || continue
    echo "$value" >"$node/sysctl/${name//\//.}"
    mount --bind "$node/sysctl/${name//\//.}" "/proc/sys/$name"
done < <(kubelet_sysctls)
# What the kubelet mounts for a container the runtime must see, and the other way round.
mount --make-rshared /
exec "$@"
