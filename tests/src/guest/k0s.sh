#!/bin/sh
# Stands in for k0s: what `k0s worker` reads at its start and leaves on a node, without a cluster.
#
# Each start appends a line to /var/log/k0s-starts: the server in the token file, the server in kubelet.conf, and the
# arguments, separated by tabs.
set -eu
[ "${1-}" = worker ] || { echo "k0s: only the worker is here" >&2; exit 64; }
token_file=
for argument; do
    case $argument in --token-file=*) token_file=${argument#*=} ;; esac
done
server() { sed -n 's/^ *server: *//p' "$1"; }

# As k0s has it: once there is a kubelet.conf, the token is not used any more.
token=$(mktemp)
base64 -d "$token_file" | gunzip > "$token"
kubeconfig=/var/lib/k0s/kubelet.conf
if [ ! -e "$kubeconfig" ]; then
    pki=/var/lib/k0s/kubelet/pki
    mkdir -p $pki
    install -m 600 /usr/lib/lab/kubelet-client.pem $pki/kubelet-client-1.pem
    ln -sf $pki/kubelet-client-1.pem $pki/kubelet-client-current.pem
    (
        umask 077
        cat > "$kubeconfig" <<END
apiVersion: v1
kind: Config
clusters:
- cluster:
    certificate-authority-data: $(sed -n 's/^ *certificate-authority-data: *//p' "$token")
    server: $(server "$token")
  name: default-cluster
contexts:
- context:
    cluster: default-cluster
    namespace: default
    user: default-auth
  name: default-context
current-context: default-context
users:
- name: default-auth
  user:
    client-certificate: $pki/kubelet-client-current.pem
    client-key: $pki/kubelet-client-current.pem
END
    )
fi
printf '%s\t%s' "$(server "$token")" "$(server "$kubeconfig")" >> /var/log/k0s-starts
printf '\t%s' "$@" >> /var/log/k0s-starts
echo >> /var/log/k0s-starts
rm "$token"
# The process keeps its arguments: what a worker was started with is read there.
sleep infinity &
trap 'kill $!; exit 0' TERM
wait
