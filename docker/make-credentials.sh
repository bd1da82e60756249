#!/usr/bin/env bash
# Certificates and keys of a federation. Nothing that is there is overwritten.
#
#   make-credentials.sh server FOLDER NAME[,NAME...]   host names and IP addresses of the SuperLink
#   make-credentials.sh node FOLDER NODE...            one key pair for each device
#
#   FOLDER/ca.key      signs certificates; keep it offline
#   FOLDER/ca.crt      whom to trust: nodes and `flwr` need it
#   FOLDER/superlink/  the server's certificate and key, the secret of its executor
#   FOLDER/NODE/       what that device needs: ca.crt, its key, the secret of its executor
#   FOLDER/NODE.pub    to admit the device: flwr supernode register FOLDER/NODE.pub
set -euo pipefail
umask 077

fail() {
  echo "error: $*" >&2
  exit 2
}

quiet() {
  local said
  said=$("$@" 2>&1) || fail "$1: $said"
}

new() {
  [[ ! -e $1 ]] || fail "$1 is there already; it is not overwritten"
}

alternative_names() {
  local name names
  IFS=, read -ra names <<< "$1"
  for name in "${names[@]}"; do
    if [[ $name =~ ^[0-9]+(\.[0-9]+){3}$ || $name =~ ^[0-9a-fA-F:]*:[0-9a-fA-F:.]*$ ]]; then
      echo "IP:$name"
    elif [[ $name =~ ^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$ ]]; then
      echo "DNS:$name"
    else
      fail "'$name' is no host name or IP address"
    fi
  done
}

make_authority() {
  [[ ! -e $folder/ca.crt ]] ||
    fail "$folder/ca.key is not here, and devices trust $folder/ca.crt: bring it back to sign"
  quiet openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -sha384 -days 3650 \
    -subj "/CN=fedhet" -addext "basicConstraints=critical,CA:TRUE" \
    -addext "keyUsage=critical,keyCertSign,cRLSign" \
    -keyout "$folder/ca.key" -out "$folder/ca.crt"
  [[ -e $folder/.gitignore ]] || echo '*' > "$folder/.gitignore"
}

make_server() {
  local at=$folder/.making names extensions
  [[ $# -eq 1 && -n $1 ]] || fail "name the hosts: $usage"
  names=$(alternative_names "$1") || exit
  new "$folder/superlink"
  mkdir -p "$at"
  [[ -e $folder/ca.key ]] || make_authority
  extensions=$(printf '%s\n' "subjectAltName=${names//$'\n'/,}" "basicConstraints=CA:FALSE" \
    "extendedKeyUsage=serverAuth")
  quiet openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes \
    -subj "/CN=superlink" -keyout "$at/server.key" -out "$at/server.csr"
  quiet openssl x509 -req -in "$at/server.csr" -CA "$folder/ca.crt" -CAkey "$folder/ca.key" \
    -CAcreateserial -days 825 -sha384 -extfile <(echo "$extensions") -out "$at/server.crt"
  rm "$at/server.csr"
  openssl rand -out "$at/superexec.secret" 32
  chmod 644 "$folder/ca.crt" "$at/server.crt"
  mv "$at" "$folder/superlink"
}

make_nodes() {
  local at=$folder/.making node
  [[ $# -gt 0 ]] || fail "name the nodes: $usage"
  for node in "$@"; do
    [[ $node =~ ^[A-Za-z0-9][A-Za-z0-9_-]*$ && $node != superlink ]] ||
      fail "'$node' names no node: use letters, digits, hyphens and underscores"
    new "$folder/$node"
    new "$folder/$node.pub"
  done
  [[ -e $folder/ca.crt ]] || fail "$folder/ca.crt is not there; make the server's first"
  for node in "$@"; do
    mkdir "$at"
    quiet ssh-keygen -q -t ecdsa -b 384 -N "" -C "$node" -f "$at/key"
    openssl rand -out "$at/superexec.secret" 32
    cp "$folder/ca.crt" "$at/ca.crt"
    chmod 644 "$at/key.pub" "$at/ca.crt"
    mv "$at/key.pub" "$folder/$node.pub"
    mv "$at" "$folder/$node"
  done
}

usage="make-credentials.sh server FOLDER NAME[,NAME...] | node FOLDER NODE..."
for tool in openssl ssh-keygen; do
  command -v "$tool" > /dev/null || fail "$tool is not installed"
done
[[ $# -ge 2 ]] || fail "$usage"
what=$1 folder=$2
shift 2
trap 'rm -rf "$folder/.making"' EXIT
case $what in
  server) make_server "$@" ;;
  node) make_nodes "$@" ;;
  *) fail "$usage" ;;
esac
