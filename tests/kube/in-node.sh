#!/usr/bin/env bash
# Runs a command inside a node: in the mount namespace that it was given, /var is a layer over the machine's, kept in the
# node's directory, and /run is new. Kubelet, containerd and CNI write to fixed paths there, each node to its own.
#   unshare --mount --propagation private tests/kube/in-node.sh DIRECTORY COMMAND...
set -euo pipefail
node=$1
shift
mount -t overlay -o "lowerdir=/var,upperdir=$node/var/upper,workdir=$node/var/work" stokehold-kube /var
mount -t tmpfs -o mode=755 stokehold-kube /run
# What the kubelet mounts for a container the runtime must see, and the other way round.
mount --make-rshared /
exec "$@"
