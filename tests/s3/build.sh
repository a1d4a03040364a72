#!/usr/bin/env bash
# Builds the S3 server that tests talk to into a cache outside the tree and prints the path of the program.
#   tests/s3/build.sh
# Exits with 3 where it cannot be had: no Go, or a network that lets no modules through.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${STOKE_CACHE_DIR:-${XDG_CACHE_HOME:-${HOME:?HOME is not set; set STOKE_CACHE_DIR}/.cache}/stokehold}/s3
program=$cache/versitygw
go_minor_min=26

say() { echo "s3: $*" >&2; }

cannot() {
    say "cannot be had here: $*"
    exit 3
}

# What it is built from: the versions of all modules.
fingerprint() { cat "$here/go/go.mod" "$here/go/go.sum" | sha256sum | cut -d' ' -f1; }

is_built() { [ -x "$program" ] && [ "$(cat "$cache/built" 2>/dev/null)" = "$(fingerprint)" ]; }

mkdir -p "$cache" 2>/dev/null || cannot "$cache cannot be written; set STOKE_CACHE_DIR"
exec 8>"$cache/lock"
flock 8
if ! is_built; then
    go=$(PATH="$PATH:/usr/local/go/bin" command -v go) || cannot "no Go; install Go 1.$go_minor_min or newer"
    version=$("$go" env GOVERSION)
    [[ $version =~ ^go1\.([0-9]+) && ${BASH_REMATCH[1]} -ge $go_minor_min ]] ||
        cannot "$go is $version; Go 1.$go_minor_min or newer is needed"
    say "building versitygw (on 2 cores, the first time, about 2 minutes)"
    package=github.com/versity/versitygw/cmd/versitygw
    # Tells a network that does not let modules through from a build that is broken.
    ( cd "$here/go" && GOFLAGS=-buildvcs=false GOWORK=off "$go" list -deps "$package" >/dev/null ) ||
        cannot "the Go modules do not load; see: go env GOPROXY"
    ( cd "$here/go" && CGO_ENABLED=0 GOFLAGS=-buildvcs=false GOWORK=off nice "$go" build -trimpath -ldflags "-s -w" \
        -o "$program.fresh" "$package" >&2 ) || { say "go build failed"; exit 1; }
    mv -f "$program.fresh" "$program"
    fingerprint >"$cache/built"
fi
echo "$program"
