#!/usr/bin/env bash
# Builds Stokehold, starts an engine in a temporary directory, trains an example with live progress, shows the result and
# stops. Leaves nothing behind.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n== %s\n' "$*" >&2; }

scripts/setup.sh build torch
if python=$(scripts/python-with.sh torch); then
    job=charlm-ddp
elif python=$(scripts/python-with.sh json); then
    job=plain
    say "No Python here has PyTorch: training the plain example in its place"
else
    say "There is no Python 3 here, and the examples are written in it"
    exit 1
fi

say "Building stoke"
cargo build --release --locked --package stoke-cli --bin stoke
stoke=${CARGO_TARGET_DIR:-target}/release/stoke
SECONDS=0

scratch=$(mktemp -d "${TMPDIR:-/tmp}/stoke-demo.XXXXXX")
export STOKE_DATA_DIR=$scratch/data
finish() {
    local code=$?
    trap - EXIT
    "$stoke" down >/dev/null 2>&1 || true
    if [[ $code != 0 && -s $STOKE_DATA_DIR/engine.log ]]; then
        say "It ended with $code. The engine's last words:"
        tail -n 20 "$STOKE_DATA_DIR/engine.log" >&2
    fi
    rm -rf "$scratch"
    exit "$code"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say "Starting an engine: stoke up --detach"
"$stoke" up --detach

say "Training: stoke run examples/$job/job.yaml"
# A job runs with the PATH of the shell it is sent from.
PATH="$(dirname "$python"):$PATH" "$stoke" run "examples/$job/job.yaml"

say "The result: stoke get"
"$stoke" get
"$stoke" logs "$job" >"$scratch/log"
# `final loss 1.589, from 4.060 at the start`, behind whatever the log puts before a line
losses=$(sed -n 's/.*final loss \([0-9.]*\), from \([0-9.]*\) at the start.*/\1 \2/p' "$scratch/log")
read -r last first <<<"${losses:-1 0}"
if ! awk -v first="$first" -v last="$last" 'BEGIN { exit !(last < first) }'; then
    say "The loss did not fall: $first at the start, $last at the end"
    exit 1
fi
say "The loss fell from $first to $last"

say "Stopping: stoke down"
"$stoke" down
say "Done, $SECONDS s after the build"
