#!/usr/bin/env bash
# Says what of the testbed runs. Ends with 1 where it is not up, or not whole.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

[ -s "$state/env" ] || die "no testbed is up in $state; type: make kube-up"
own_state
whole=yes
while read -r kind pid start name; do
    [ "$kind" = process ] || continue
    if alive "$pid" "$start"; then
        printf '%-24s runs (%s)\n' "$name" "$pid"
    else
        printf '%-24s ended; see %s\n' "$name" "$state/logs/$name.log"
        whole=
    fi
done <"$ledger"
kubectl get nodes || whole=
echo "export KUBECONFIG=$state/kubeconfig"
[ -n "$whole" ]
