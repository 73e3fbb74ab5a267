#!/usr/bin/env bash
# Checks what a wheel needs and how large it is, installs it into an environment with nothing but numpy and pytest, and
# runs the package's tests there.
#   tests/python/wheel.sh build/wheels/sluice-0.1.0-cp311-cp311-linux_x86_64.whl
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
wheel=$(realpath "$1")
limit=40 cuda="not built in"
case "$wheel" in *-1cuda-*) limit=80 cuda="architectures" ;; esac
bytes=$(stat -c %s "$wheel")
echo "$(basename "$wheel"): $((bytes >> 20)) MiB"
[ "$bytes" -lt $((limit << 20)) ] || { echo "the wheel is larger than $limit MiB" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install -q --disable-pip-version-check "$wheel" pytest
cd "$folder"  # not in the source tree: the installed package must be the one that is imported

# Libraries of the system alone: the CUDA runtime is part of the wheel, and its driver is opened when it is used.
for file in lib/python*/site-packages/sluice/_core*.so lib/python*/site-packages/sluice/bin/sluice; do
  needed=$(readelf -d "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
  if more=$(grep -vE '^(libc|libm|libdl|librt|libpthread|ld-linux-x86-64)\.so' <<<"$needed"); then
    echo "$file needs $more" >&2
    exit 1
  fi
done
bin/python -m sluice --version | grep -i "cuda.*$cuda"

env -u PYTHONPATH -u SLUICE_BIN bin/python -m pytest -q -rs -p no:cacheprovider "$root/tests/python"
