# shellcheck shell=bash disable=SC2154 # what lib.sh sets
# The real nodes: each a kubelet and a containerd in a mount namespace of their own, so that no mount of theirs is ever
# seen by the machine, and all go when the last process of the node does. Pods hang on one bridge. Sourced by up.sh.

# Prints what this machine lacks for real nodes, if anything; succeeds where it lacks nothing. Leaves nothing behind.
full_lacks() {
    local program
    [ "$(id -u)" = 0 ] || { echo "real nodes need root; run it with sudo"; return 1; }
    for program in ip unshare nsenter mount tar openssl; do
        command -v "$program" >/dev/null || { echo "$program is not installed; scripts/setup.sh kube installs it"; return 1; }
    done
    case $state/ in
        /var/* | /run/*) echo "$state is under /var or /run, which nodes have for themselves; set STOKE_KUBE_DIR"; return 1 ;;
    esac

    local owner
    owner=$(bridge_owner)
    if [ -n "$owner" ] && [ "$owner" != "$state" ]; then
        echo "another testbed has real nodes: STOKE_KUBE_DIR=$owner make kube-down"
        return 1
    elif [ -z "$owner" ]; then
        [ ! -e "/sys/class/net/$bridge" ] || { echo "an interface $bridge that is not ours is there"; return 1; }
        if ip -4 -o address show | grep -Eq ' 10\.12[345]\.'; then
            echo "one of the networks 10.123, 10.124 and 10.125 is in use"
            return 1
        fi
        # In a network namespace of its own, which goes with it.
        unshare --net ip link add probe type bridge 2>/dev/null ||
            { echo "no bridge can be made (ip link add NAME type bridge)"; return 1; }
    fi

    local hierarchy
    for hierarchy in $(cgroup_hierarchies); do
        mkdir -p "$hierarchy/$cgroup-probe" 2>/dev/null || { echo "$hierarchy cannot be written"; return 1; }
        rmdir "$hierarchy/$cgroup-probe" 2>/dev/null || true # another probes at the same moment
    done
    [ -n "$(cgroup_hierarchies)" ] || { echo "no cgroups are mounted at /sys/fs/cgroup"; return 1; }
    # shellcheck disable=SC2016 # expanded by the child
    unshare --net --mount --propagation private bash -c '
        set -e
        mount -t tmpfs probe /run
        mkdir /run/lower /run/upper /run/work /run/merged
        mount -t overlay -o lowerdir=/run/lower,upperdir=/run/upper,workdir=/run/work probe /run/merged
    ' 2>/dev/null || { echo "namespaces or overlay mounts are not allowed"; return 1; }
}

# make_network NODES: the bridge, with the addresses of the machine, of each node and of the API server's Service. Whoever has
# it has the cgroups too. It gets its name when it says whose it is already, and one of two who try gets it.
make_network() {
    local index fresh=stokehold-$RANDOM
    echo "link $fresh" >>"$ledger"
    # Of its own, or the bridge takes the lowest of its pods': it would change when such a pod comes or goes, and whoever talks to the
    # API server would be cut off until it has asked for the new one, ten seconds and more.
    ip link add "$fresh" address "$bridge_mac" type bridge
    ip link set "$fresh" alias "stokehold testbed $state"
    echo "link $bridge" >>"$ledger"
    ip link set "$fresh" name "$bridge" || die "another testbed with real nodes came up meanwhile: $(bridge_owner)"
    ip address add "$host_ip/24" dev "$bridge"
    for ((index = 0; index < $1; index++)); do ip address add "$(node_ip "$index")/24" dev "$bridge"; done
    ip address add "$pod_gateway/${pod_subnet#*/}" dev "$bridge"
    ip address add "$service_ip/32" dev "$bridge"
    ip link set "$bridge" up
}

node_ip() { echo "10.123.0.$((10 + $1))"; }

# make_cgroups NODE...: one for each node's pods, and one for the testbed's own processes.
make_cgroups() {
    local hierarchy node
    for hierarchy in $(cgroup_hierarchies); do
        echo "cgroup $hierarchy/$cgroup" >>"$ledger"
        for node in "$@"; do mkdir -p "$hierarchy/$cgroup/$node"; done
    done
    mkdir -p "$(cgroup_tracker)"
}

# start_runtimes NODE...: each node's containerd, which needs no API server, and the images that no registry has.
start_runtimes() {
    local node index=0
    for node in "$@"; do
        mkdir -p "$state/$node"/{containerd,run,var/upper,var/work,cni/conf,cni/networks,kubelet}
        containerd_config "$node" >"$state/$node/containerd.toml"
        cni_config "$node" "$index" >"$state/$node/cni/conf/10-stokehold.conflist"
        start "$node-containerd" unshare --mount --propagation private bash "$here/in-node.sh" "$state/$node" \
            env PATH="$bin:$PATH" "$bin/containerd" --config "$state/$node/containerd.toml"
        index=$((index + 1))
    done
}

containerd_config() {
    cat <<TOML
version = 2
root = "$state/$1/containerd"
state = "$state/$1/run"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper"]
[grpc]
  address = "$state/$1/containerd.sock"
[ttrpc]
  address = "$state/$1/containerd.sock.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "stokehold.dev/testbed/pause:1"
  stream_server_address = "127.0.0.1"
  netns_mounts_under_state_dir = true
  disable_apparmor = true
  # Without CAP_SYS_RESOURCE no process may be made a less likely victim than its parent.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$cache/debian/usr/lib/cni"
    conf_dir = "$state/$1/cni/conf"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "$bin/runc"
TOML
}

# cni_config NODE INDEX: all nodes' pods on one bridge and in one subnet, a slice of it for each: they reach each other
# without routes, so the machine's forwarding stays as it is.
cni_config() {
    cat <<JSON
{
  "cniVersion": "0.4.0",
  "name": "stokehold-kube",
  "plugins": [
    {
      "type": "bridge",
      "bridge": "$bridge",
      "isGateway": false,
      "ipMasq": false,
      "hairpinMode": true,
      "ipam": {
        "type": "host-local",
        "dataDir": "$state/$1/cni/networks",
        "ranges": [[{
          "subnet": "$pod_subnet",
          "rangeStart": "10.124.$(($2 + 1)).1",
          "rangeEnd": "10.124.$(($2 + 1)).254",
          "gateway": "$pod_gateway"
        }]],
        "routes": [{"dst": "0.0.0.0/0"}]
      }
    }
  ]
}
JSON
}

# start_nodes NODE...: what the API server is needed for: kubelets, DNS, and the way from pods to the API server.
start_nodes() {
    local node index=0
    start forward "$bin/forward" "127.0.0.1:$api_port" "$service_ip:443" "$host_ip:$api_port"
    kubectl apply --filename "$here/config/coredns-rbac.yaml" >/dev/null
    cat >"$state/Corefile" <<COREFILE
. {
    bind $host_ip
    errors
    kubernetes cluster.local in-addr.arpa {
        kubeconfig $state/auth/dns.kubeconfig
        ttl 5
    }
}
COREFILE
    start coredns "$bin/coredns" -conf "$state/Corefile"
    echo "nameserver $host_ip" >"$state/resolv.conf"
    for node in "$@"; do
        wait_for 30 "$node-containerd" "containerd's socket" "$bin/ctr" --address "$state/$node/containerd.sock" version
        STOKE_KUBE_LOCKED=yes "$here/image.sh" testbed "$node"
        kubelet_config "$node" "$(node_ip "$index")" >"$state/$node/kubelet.yaml"
        start "$node-kubelet" nsenter --mount="/proc/$(pid_of "$node-containerd")/ns/mnt" env PATH="$bin:$PATH" "$bin/kubelet" \
            --config="$state/$node/kubelet.yaml" --kubeconfig="$state/auth/$node.kubeconfig" \
            --root-dir="$state/$node/kubelet" --cert-dir="$state/$node/pki" \
            --hostname-override="$node" --node-ip="$(node_ip "$index")" \
            --node-labels="$(node_labels)"
        index=$((index + 1))
    done
}

# A GPU node to whoever asks NVIDIA's feature discovery; the GPUs themselves are but numbers in the node's status.
node_labels() {
    echo "stokehold.dev/testbed=real,nvidia.com/gpu.present=true,nvidia.com/gpu.product=simulated,\
nvidia.com/gpu.count=4,nvidia.com/gpu.memory=81920"
}

kubelet_config() {
    cat <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $2
healthzBindAddress: $2
containerRuntimeEndpoint: unix://$state/$1/containerd.sock
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: $state/auth/ca.crt}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
cgroupRoot: /$cgroup/$1
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
makeIPTablesUtilChains: false
clusterDNS: [$host_ip]
clusterDomain: cluster.local
resolvConf: $state/resolv.conf
volumePluginDir: $state/$1/volume-plugins
podLogsDir: $state/$1/pod-logs
# The disk and the memory are those of the whole machine, which others fill as they like: a share of a large disk is a lot.
evictionHard: {memory.available: 50Mi, nodefs.available: 100Mi, imagefs.available: 100Mi, nodefs.inodesFree: 1%}
# A minute by default, which is longer than a test likes to wait for the eviction of a pod that fills its disk.
volumeStatsAggPeriod: 5s
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
localStorageCapacityIsolation: true
protectKernelDefaults: false
YAML
}

# wait_nodes NODE...: until each is Ready, with its simulated GPUs.
wait_nodes() {
    local node
    for node in "$@"; do
        wait_for 90 "$node-kubelet" "node $node" kubectl get node "$node"
        kubectl patch node "$node" --subresource=status --type=merge --patch \
            '{"status": {"capacity": {"nvidia.com/gpu": "4"}, "allocatable": {"nvidia.com/gpu": "4"}}}' >/dev/null
    done
    for node in "$@"; do
        wait_for 90 "$node-kubelet" "Ready node $node" node_is_ready "$node"
    done
    wait_for 30 coredns "DNS" dns_answers
}

node_is_ready() {
    [ "$(kubectl get node "$1" --output \
        'jsonpath={.status.conditions[?(@.type=="Ready")].status} {.status.allocatable.nvidia\.com/gpu}')" = "True 4" ]
}

dns_answers() { (exec 3<>"/dev/tcp/$host_ip/53"); }
