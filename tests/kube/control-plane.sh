# shellcheck shell=bash disable=SC2154 # what lib.sh sets
# The control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, and kwok for nodes that do not exist.
# Everything listens on loopback, on free ports, and needs no root. Sourced by up.sh.

# Who may ask the API server: each a token of its own. NAME USER GROUPS
identities() {
    echo "admin stokehold-testbed-admin system:masters"
    echo "scheduler system:kube-scheduler -"
    echo "controller-manager system:kube-controller-manager -"
    echo "kwok stokehold-testbed-kwok system:masters"
    echo "dns stokehold-testbed-dns -"
    local node
    for node in "$@"; do echo "$node system:node:$node system:nodes"; done
}

# make_auth NODE...: keys, certificates and tokens, in auth/.
make_auth() {
    local auth=$state/auth
    mkdir -m 700 "$auth"
    openssl ecparam -name prime256v1 -genkey -noout -out "$auth/ca.key"
    openssl req -x509 -new -key "$auth/ca.key" -subj "/CN=stokehold testbed" -days 3650 -out "$auth/ca.crt" \
        -addext basicConstraints=critical,CA:true -addext keyUsage=critical,keyCertSign
    certificate apiserver "/CN=kube-apiserver" serverAuth "IP:127.0.0.1,IP:$host_ip,IP:$service_ip,DNS:localhost,\
DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
    certificate kubelet-client "/O=system:masters/CN=stokehold-testbed-apiserver" clientAuth DNS:localhost
    openssl genrsa -out "$auth/service-accounts.key" 2048 2>/dev/null

    local name user groups token
    while read -r name user groups; do
        token=$(openssl rand -hex 24)
        echo "$token,$user,$user$([ "$groups" = - ] || echo ",\"$groups\"")" >>"$auth/tokens.csv"
        echo "$token" >"$auth/$name.token"
    done < <(identities "$@")
}

# certificate NAME SUBJECT USE ALTERNATIVE-NAMES: a key pair in auth/, signed by the testbed's authority.
certificate() {
    local auth=$state/auth
    openssl ecparam -name prime256v1 -genkey -noout -out "$auth/$1.key"
    openssl req -new -key "$auth/$1.key" -subj "$2" -out "$auth/$1.csr"
    openssl x509 -req -in "$auth/$1.csr" -CA "$auth/ca.crt" -CAkey "$auth/ca.key" -CAcreateserial -days 3650 \
        -out "$auth/$1.crt" -extfile <(printf 'extendedKeyUsage=%s\nsubjectAltName=%s\n' "$3" "$4") 2>/dev/null
}

# kubeconfig NAME: for one of the identities, on stdout.
kubeconfig() {
    cat <<YAML
apiVersion: v1
kind: Config
clusters:
  - name: stokehold-testbed
    cluster:
      server: https://127.0.0.1:$api_port
      certificate-authority-data: $(base64 -w0 <"$state/auth/ca.crt")
users:
  - name: $1
    user:
      token: $(cat "$state/auth/$1.token")
contexts:
  - name: stokehold-testbed
    context: {cluster: stokehold-testbed, user: $1}
current-context: stokehold-testbed
YAML
}

# start_control_plane ADVERTISED-ADDRESS NODE...: - as the address where there are no pods that would call it.
start_control_plane() {
    local advertised=$1 auth=$state/auth name
    shift
    make_auth "$@"
    api_port=$(free_port)
    while read -r name _; do kubeconfig "$name" >"$auth/$name.kubeconfig"; done < <(identities "$@")
    install -m 600 "$auth/admin.kubeconfig" "$state/kubeconfig"

    start_etcd
    local advertise=(--advertise-address="$host_ip")
    # The API server refuses to name loopback as the endpoint of the Service `kubernetes`; then it names none.
    [ "$advertised" != - ] || advertise=(--advertise-address=127.0.0.1 --endpoint-reconciler-type=none)
    # Lists by watching need an etcd newer than Debian's; kwok asks for one wherever the API server offers it.
    start kube-apiserver "$bin/kube-apiserver" --feature-gates=WatchList=false \
        --etcd-servers="http://127.0.0.1:$etcd_port" \
        --bind-address=127.0.0.1 --secure-port="$api_port" "${advertise[@]}" \
        --tls-cert-file="$auth/apiserver.crt" --tls-private-key-file="$auth/apiserver.key" \
        --kubelet-client-certificate="$auth/kubelet-client.crt" --kubelet-client-key="$auth/kubelet-client.key" \
        --kubelet-preferred-address-types=InternalIP \
        --token-auth-file="$auth/tokens.csv" --authorization-mode=Node,RBAC \
        --enable-admission-plugins=NodeRestriction \
        --service-account-issuer=https://kubernetes.default.svc.cluster.local \
        --service-account-key-file="$auth/service-accounts.key" \
        --service-account-signing-key-file="$auth/service-accounts.key" \
        --service-cluster-ip-range="$service_subnet" --allow-privileged --profiling=false \
        --max-requests-inflight=3000 --max-mutating-requests-inflight=1500 \
        --audit-policy-file="$here/config/audit-policy.yaml" --audit-log-path="$state/audit.log" --audit-log-maxsize=10000
    wait_for 120 kube-apiserver "ready API server" kubectl get --raw /readyz

    # Tests fill and empty clusters in seconds; the stock 20 requests a second would measure the limit, not the work.
    local fast=(--kube-api-qps=5000 --kube-api-burst=5000)
    start kube-controller-manager "$bin/kube-controller-manager" \
        --kubeconfig="$auth/controller-manager.kubeconfig" --leader-elect=false "${fast[@]}" \
        --authentication-kubeconfig="$auth/controller-manager.kubeconfig" \
        --authorization-kubeconfig="$auth/controller-manager.kubeconfig" \
        --bind-address=127.0.0.1 --secure-port="$(free_port)" --cert-dir="$auth/controller-manager" \
        --use-service-account-credentials --service-account-private-key-file="$auth/service-accounts.key" \
        --root-ca-file="$auth/ca.crt" --profiling=false --node-monitor-grace-period=200s
    start kube-scheduler "$bin/kube-scheduler" \
        --kubeconfig="$auth/scheduler.kubeconfig" --leader-elect=false "${fast[@]}" \
        --authentication-kubeconfig="$auth/scheduler.kubeconfig" \
        --authorization-kubeconfig="$auth/scheduler.kubeconfig" \
        --bind-address=127.0.0.1 --secure-port="$(free_port)" --cert-dir="$auth/scheduler" --profiling=false
    # A lease of two minutes is renewed every half: a thousand nodes that do not exist should not cost much, nor be called
    # dead (above) when a busy machine renews one late.
    start kwok "$bin/kwok" \
        --kubeconfig="$auth/kwok.kubeconfig" --config="$here/config/kwok-stages.yaml" \
        --manage-all-nodes=false --manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake \
        --node-ip=127.0.0.1 --cidr="$kwok_subnet" --node-lease-duration-seconds=120 \
        --server-address="127.0.0.1:$(free_port)" --v=WARN
}

start_etcd() {
    etcd_port=$(free_port)
    local peers
    peers=$(free_port)
    start etcd "$bin/etcd" --name testbed --data-dir="$state/etcd" --unsafe-no-fsync --quota-backend-bytes=8589934592 \
        --listen-client-urls="http://127.0.0.1:$etcd_port" --advertise-client-urls="http://127.0.0.1:$etcd_port" \
        --listen-peer-urls="http://127.0.0.1:$peers" --initial-advertise-peer-urls="http://127.0.0.1:$peers" \
        --initial-cluster="testbed=http://127.0.0.1:$peers"
}

# Until a pod could be scheduled: both have begun their work, and every namespace gets its service account.
wait_control_plane() {
    wait_for 60 kube-controller-manager "service account of the namespace default" \
        kubectl get serviceaccount default --namespace default
    wait_for 60 kube-scheduler "scheduler's caches" grep -q "Caches are synced\|Starting Kubernetes Scheduler" "$state/logs/kube-scheduler.log"
    wait_for 60 kwok "kwok" pid_of kwok
}
