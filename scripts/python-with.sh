#!/bin/sh
# Prints the first Python that can import all the modules named: $PYTHON, the one on PATH, the checkout's .venv, the system's.
#   scripts/python-with.sh torch
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
modules=$(echo "$*" | tr ' ' ',')

for python in "${PYTHON:-}" python3 "$root/.venv/bin/python3" /usr/bin/python3 /usr/local/bin/python3; do
    path=$(command -v "${python:-none}" 2>/dev/null) || continue
    if "$path" -c "import $modules" 2>/dev/null; then
        echo "$path"
        exit 0
    fi
done
exit 1
