#!/usr/bin/env bash
# Builds or fetches parts of the testbed into a cache outside the tree and prints the directory with the programs.
#   tests/kube/build.sh PART...
# Parts: kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl kwok helm coredns forward pause (from Go
# modules), etcd containerd (Debian's packages, unpacked beside, not installed), or all.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

go_parts=(kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl kwok helm coredns forward pause)
go_minor_min=26

package_of() {
    case $1 in
        kwok) echo sigs.k8s.io/kwok/cmd/kwok ;;
        helm) echo helm.sh/helm/v3/cmd/helm ;;
        coredns | forward | pause) echo "./$1" ;;
        *) echo "k8s.io/kubernetes/cmd/$1" ;;
    esac
}

# Of the two modules under go/, the one that builds a part: they differ in the version of Kubernetes' libraries.
module_of() {
    case $1 in
        kwok | coredns | forward | pause) echo "$here/go/tools" ;;
        *) echo "$here/go/kubernetes" ;;
    esac
}

# What a part is built from: the versions of all modules, and our own source where it is ours.
fingerprint() {
    local module files
    module=$(module_of "$1")
    files=("$module/go.mod" "$module/go.sum")
    [ ! -d "$module/$1" ] || files+=("$module/$1"/*.go)
    cat "${files[@]}" | sha256sum | cut -d' ' -f1
}

is_built() { [ -x "$bin/$1" ] && [ "$(cat "$cache/built/$1" 2>/dev/null)" = "$(fingerprint "$1")" ]; }

find_go() {
    local go
    go=$(PATH="$PATH:/usr/local/go/bin" command -v go) ||
        cannot "no Go to build $* with; install Go 1.$go_minor_min or newer"
    local version
    version=$("$go" env GOVERSION)
    [[ $version =~ ^go1\.([0-9]+) && ${BASH_REMATCH[1]} -ge $go_minor_min ]] ||
        cannot "$go is $version; $* need Go 1.$go_minor_min or newer"
    echo "$go"
}

# Says every minute that this goes on, for as long as this script does; leaves no sleep behind that would hold its streams.
tick() {
    exec 8>&-
    local sleeper
    trap 'kill "$sleeper"; exit' TERM
    while kill -0 $$ 2>/dev/null; do
        sleep 60 &
        sleeper=$!
        wait "$sleeper"
        say "still building ($(((SECONDS - $1) / 60)) min)"
    done
}

# build_go MODULE PART...: one run for all, so that what they share is compiled once, and one is linked while the next
# compiles.
build_go() {
    local module=$1 go part packages=()
    shift
    go=$(find_go "$@")
    for part in "$@"; do packages+=("$(package_of "$part")"); done
    say "building $* (on 2 cores, the first time, 3 to 10 minutes)"

    # Tells a network that does not let modules through from a build that is broken.
    ( cd "$module" && GOFLAGS=-buildvcs=false GOWORK=off "$go" list -deps "${packages[@]}" >/dev/null ) ||
        cannot "the Go modules of $* do not load; see: go env GOPROXY"

    local fresh=$cache/fresh version=k8s.io/component-base/version began=$SECONDS
    rm -rf "$fresh" && mkdir -p "$fresh"
    tick "$began" &
    local ticker=$! failed=
    ( cd "$module" && CGO_ENABLED=0 GOFLAGS=-buildvcs=false GOWORK=off nice "$go" build -trimpath -o "$fresh/" \
        -ldflags "-s -w -X $version.gitVersion=v$kube_version -X $version.gitMajor=1 -X $version.gitMinor=34" \
        "${packages[@]}" >&2 ) || failed=yes
    kill "$ticker" 2>/dev/null
    [ -z "$failed" ] || die "go build failed"

    for part in "$@"; do
        mv -f "$fresh/$part" "$bin/$part"
        fingerprint "$part" >"$cache/built/$part"
    done
    rmdir "$fresh"
    say "built in $((SECONDS - began)) s"
}

# unpack PACKAGE...: Debian's packages into the cache, without installing them: no service starts, nothing of the
# machine changes, and root is not needed.
unpack() {
    { command -v apt-get && command -v dpkg-deb; } >/dev/null ||
        cannot "$* come from Debian's packages here; install them yourself, so that they are on the PATH"
    say "fetching $*"
    local dir
    dir=$(mktemp -d "$cache/debs.XXXXXX")
    if ! download "$dir" "$@"; then
        [ "$(id -u)" = 0 ] || cannot "apt-get download $* fails; sudo apt-get update may help"
        apt-get -qq -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 update >&2 || say "cannot update apt's lists"
        download "$dir" "$@" || cannot "apt-get download $* fails"
    fi
    for deb in "$dir"/*.deb; do dpkg-deb --extract "$deb" "$cache/debian"; done
    rm -rf "$dir"
}

download() { ( cd "$1" && shift && apt-get -qq -o Acquire::Retries=3 -o APT::Sandbox::User=root download "$@" >&2 ) }

# link FILE...: programs of unpacked packages into the directory of programs.
link() { for file in "$@"; do ln -sfn "../debian/$file" "$bin/${file##*/}"; done; }

fetch() {
    case $1 in
        etcd)
            [ -x "$bin/etcd" ] || use_installed etcd || { unpack etcd-server && link usr/bin/etcd; } ;;
        containerd)
            [ -x "$bin/containerd" ] && [ -x "$bin/runc" ] && [ -x "$cache/debian/usr/lib/cni/bridge" ] && return
            unpack containerd runc containernetworking-plugins
            link usr/bin/containerd usr/bin/containerd-shim-runc-v2 usr/bin/ctr usr/sbin/runc ;;
    esac
    "$bin/$1" --version >/dev/null || die "$bin/$1 does not run; remove $cache/debian and try again"
}

# Where there is no apt, a program that somebody installed does as well.
use_installed() {
    command -v apt-get >/dev/null && return 1
    local found
    found=$(command -v "$1") && ln -sfn "$found" "$bin/$1"
}

[ $# -gt 0 ] || die "usage: tests/kube/build.sh all | PART... (etcd containerd ${go_parts[*]})"
mkdir -p "$bin" "$cache/built" "$cache/debian" 2>/dev/null || cannot "$cache cannot be written; set STOKE_CACHE_DIR"
exec 8>"$cache/lock"
flock 8

kubernetes=()
tools=()
[ "$*" != all ] || set -- etcd containerd "${go_parts[@]}"
for part in "$@"; do
    case " ${go_parts[*]} " in
        *" $part "*)
            if is_built "$part"; then continue; fi
            case $(module_of "$part") in
                */tools) tools+=("$part") ;;
                *) kubernetes+=("$part") ;;
            esac ;;
        *)
            case $part in
                etcd | containerd) fetch "$part" ;;
                *) die "unknown part: $part (there are: etcd containerd ${go_parts[*]})" ;;
            esac ;;
    esac
done
[ ${#kubernetes[@]} = 0 ] || build_go "$here/go/kubernetes" "${kubernetes[@]}"
[ ${#tools[@]} = 0 ] || build_go "$here/go/tools" "${tools[@]}"
echo "$bin"
