#!/usr/bin/env bash
# Runs a command with a testbed: the one that is up, which stays up, or its own, which goes afterwards however the command
# ended. Where none can be had the command runs without; tests that need one then skip themselves.
#   tests/kube/with.sh COMMAND...
set -euo pipefail
. "$(dirname "$0")/lib.sh"

was_up=
[ ! -s "$state/env" ] || was_up=yes
code=0
"$here/up.sh" --any || code=$?
case $code in
    0)
        # What the tests install the chart with.
        command -v helm >/dev/null || "$here/build.sh" helm >/dev/null
        export STOKE_KUBE_DIR=$state STOKE_KUBE_REQUIRED=1
        STOKE_KUBE_MODE=$(fact STOKE_KUBE_MODE)
        export STOKE_KUBE_MODE ;;
    "$cannot_be_had") say "going on without: tests that need a Kubernetes skip themselves" ;;
    *) [ -n "$was_up" ] || "$here/down.sh"; exit "$code" ;;
esac
[ -n "$was_up" ] || trap '"$here/down.sh"' EXIT
trap 'exit 130' INT TERM HUP
"$@"
