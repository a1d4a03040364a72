#!/usr/bin/env bash
# Puts images on the real nodes, without a registry.
#   tests/kube/image.sh BINARY           stokehold.dev/stoke:dev, as the Dockerfile makes it, from the static binary
#   tests/kube/image.sh testbed NODE     what the testbed itself brings; up.sh does this
set -euo pipefail
. "$(dirname "$0")/lib.sh"
umask 022 # the modes of an image's files

# image NAME ROOT CONFIG: a tar of one image with one layer, the files under ROOT, on stdout.
image() {
    local name=$1 root=$2 config=$3 dir layer
    dir=$(mktemp -d "$state/image.XXXXXX")
    tar --create --file "$dir/layer.tar" --directory "$root" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner .
    layer=$(sha256sum "$dir/layer.tar" | cut -d' ' -f1)
    echo "{\"architecture\": \"$(architecture)\", \"os\": \"linux\", \"config\": $config,
        \"rootfs\": {\"type\": \"layers\", \"diff_ids\": [\"sha256:$layer\"]}}" >"$dir/config.json"
    echo "[{\"Config\": \"config.json\", \"RepoTags\": [\"$name\"], \"Layers\": [\"layer.tar\"]}]" >"$dir/manifest.json"
    tar --create --directory "$dir" manifest.json config.json layer.tar
    rm -rf "$dir"
}

architecture() {
    case $(uname -m) in
        x86_64) echo amd64 ;;
        aarch64) echo arm64 ;;
        *) uname -m ;;
    esac
}

# import NODE TAR
import() { "$bin/ctr" --address "$state/$1/containerd.sock" --namespace k8s.io images import "$2" >/dev/null; }

# What holds a pod's namespaces, and an empty root: pods mount the machine's /usr into it (and /etc/alternatives), and
# then have its programs. /bin, /lib and the like lead into /usr, as they do on the machine.
testbed_images() {
    local root
    root=$(mktemp -d "$state/root.XXXXXX")
    mkdir "$root/pause"
    install -m 755 "$bin/pause" "$root/pause/pause"
    image stokehold.dev/testbed/pause:1 "$root/pause" '{"Entrypoint": ["/pause"], "User": "65535:65535"}' >"$state/pause.tar"

    mkdir -p "$root"/host/{dev,etc/alternatives,home,mnt,opt,proc,root,run,sys,usr,var,work}
    mkdir -m 1777 "$root"/host/{tmp,var/tmp}
    ln -s usr/bin "$root/host/bin"
    ln -s usr/sbin "$root/host/sbin"
    ln -s usr/lib "$root/host/lib"
    ln -s usr/lib64 "$root/host/lib64"
    ln -s ../run "$root/host/var/run"
    printf '%s\n' 'root:x:0:0::/root:/bin/sh' 'user:x:1000:1000::/home:/bin/sh' 'nobody:x:65534:65534::/:/bin/false' \
        >"$root/host/etc/passwd"
    printf '%s\n' 'root:x:0:' 'user:x:1000:' 'nogroup:x:65534:' >"$root/host/etc/group"
    image stokehold.dev/testbed/host:1 "$root/host" '{"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]}' >"$state/host.tar"
    rm -rf "$root"
}

is_testbed || die "no testbed is up in $state; type: make kube-up"
own_state
case ${1:-} in
    testbed)
        [ -e "$state/host.tar" ] || testbed_images
        import "$2" "$state/pause.tar"
        import "$2" "$state/host.tar" ;;
    "") die "usage: tests/kube/image.sh BINARY" ;;
    *)
        [ -f "$1" ] || die "$1 is not there; make static builds it"
        nodes=$(fact STOKE_KUBE_NODES)
        [ -n "$nodes" ] || die "the testbed has no real nodes to put an image on"
        "$here/../../scripts/image.sh" "$1" stokehold.dev/stoke:dev "$state/stoke.tar"
        for node in $nodes; do
            import "$node" "$state/stoke.tar"
            say "stokehold.dev/stoke:dev is on $node"
        done
        rm "$state/stoke.tar" ;;
esac
