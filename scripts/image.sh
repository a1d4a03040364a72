#!/usr/bin/env bash
# Writes the image that the Dockerfile describes as an archive, without a docker engine: for `docker load`, and for
# `ctr images import` on machines that reach no registry. The same binary gives the same bytes.
#   scripts/image.sh BINARY NAME:TAG ARCHIVE.tar
set -euo pipefail
[[ $# == 3 ]] || { sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 2; }
binary=$1 name=$2 archive=$3
dockerfile=$(dirname "$0")/../Dockerfile

fail() { echo "image: $*" >&2; exit 1; }
[[ -x $binary ]] || fail "$binary is not an executable; make static builds one"
# The image has no loader and no libraries, so a binary that wants them would fail with "no such file" in the cluster.
if readelf --program-headers "$binary" | grep -q INTERP; then
    fail "$binary is not static; make static builds one that is"
fi

user='' entrypoint='' path=''
while read -r word rest; do
    case $word in
        '' | '#'* | ARG) ;;
        FROM) [[ $rest == scratch ]] || fail "knows only FROM scratch, not FROM $rest" ;;
        COPY) [[ -z $path ]] || fail "knows only one COPY"; path=${rest##* } ;;
        USER) user=$rest ;;
        ENTRYPOINT) entrypoint=$rest ;;
        *) fail "does not know $word in the Dockerfile" ;;
    esac
done <"$dockerfile"

case $(uname -m) in
    x86_64) architecture=amd64 ;;
    aarch64) architecture=arm64 ;;
    *) fail "does not know the architecture $(uname -m)" ;;
esac

scratch=$(mktemp -d "${TMPDIR:-/tmp}/stoke-image.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
pack() { tar --create --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --directory="$1" --file="$2" "${@:3}"; }
digest() { sha256sum "$1" | cut -d ' ' -f 1; }

install -D --mode=0755 "$binary" "$scratch/root$path"
pack "$scratch/root" "$scratch/layer.tar" --mode=go-w "$(cut -d / -f 2 <<<"$path")"
layer=$(digest "$scratch/layer.tar")

mkdir "$scratch/image"
mv "$scratch/layer.tar" "$scratch/image/$layer.tar"
printf '{"architecture":"%s","os":"linux","config":{"User":"%s","Entrypoint":%s},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
    "$architecture" "$user" "$entrypoint" "$layer" >"$scratch/config"
config=$(digest "$scratch/config")
mv "$scratch/config" "$scratch/image/$config.json"
printf '[{"Config":"%s.json","RepoTags":["%s"],"Layers":["%s.tar"]}]' "$config" "$name" "$layer" >"$scratch/image/manifest.json"

mkdir -p "$(dirname "$archive")"
pack "$scratch/image" "$scratch/archive" .
mv "$scratch/archive" "$archive"
echo "image: $name is in $archive" >&2
