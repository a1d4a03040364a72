#!/bin/sh
# Installs what is missing for the parts named, with apt, where that is there and we are root. Where it is not, says what
# will be left out: tests that need it skip themselves, the demo takes another example.
#   scripts/setup.sh build torch mpi
set -eu
cd "$(dirname "$0")/.."

say() { echo "setup: $*" >&2; }

has() {
    case $1 in
        build) command -v cc ;;
        torch) scripts/python-with.sh torch ;;
        mpi) command -v mpirun && scripts/python-with.sh mpi4py.MPI numpy ;;
        kube) command -v ip && command -v openssl && command -v unshare && find /lib /usr/lib -name libseccomp.so.2 | grep -q . ;;
        *) say "unknown part: $1"; exit 2 ;;
    esac >/dev/null 2>&1
}

packages() {
    case $1 in
        build) echo build-essential ;;
        torch) echo python3-torch ;;
        mpi) echo openmpi-bin python3-mpi4py python3-numpy ;;
        kube) echo iproute2 openssl util-linux libseccomp2 ;;
    esac
}

# A mirror that stumbles is asked again; another apt that runs is waited for.
apt() {
    for pause in 2 10 30; do
        DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 "$@" >&2 && return
        say "apt-get $1 failed; again in $pause s"
        sleep "$pause"
    done
    return 1
}

updated=
for part in "$@"; do
    has "$part" && continue
    missing=$(packages "$part")
    if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
        say "going on without $missing: not root on a Debian; install it yourself to have that part too"
        continue
    fi
    say "installing $missing"
    if [ -z "$updated" ]; then
        apt update || say "cannot update apt's lists; trying with those there are"
        updated=yes
    fi
    # shellcheck disable=SC2086 # several packages, several words
    apt install --yes --no-install-recommends $missing || say "going on without $missing: it does not install"
done
