#!/usr/bin/env bash
# Installs a wheel into an environment with nothing but numpy and pytest, and runs the package's tests there.
#   tests/python/wheel.sh build/wheels/sluice-0.1.0-cp311-cp311-linux_x86_64.whl
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
wheel=$(realpath "$1")
bytes=$(stat -c %s "$wheel")
echo "$(basename "$wheel"): $((bytes >> 20)) MiB"
[ "$bytes" -lt $((40 << 20)) ] || { echo "the wheel is larger than 40 MiB" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install -q --disable-pip-version-check "$wheel" pytest
cd "$folder"  # not in the source tree: the installed package must be the one that is imported
env -u PYTHONPATH -u SLUICE_BIN "$folder/bin/python" -m pytest -q -rs -p no:cacheprovider "$root/tests/python"
