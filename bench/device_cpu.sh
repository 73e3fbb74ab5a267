#!/usr/bin/env bash
# Runs every CPU measurement of bench/results/2026-11-cpu.md in less than ten minutes on an idle machine.
# usage: bench/device_cpu.sh FOLDER_OF_BINARIES [PYTHON_WITH_LLAMA_CPP]
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=$1 python=${2:-}
models=${MODELS:-build/bench-models/random-1b}
two() { taskset -c 0,1 "$@"; }

lscpu | grep -E 'Model name|^CPU\(s\)|Flags' | sed -E 's/Flags:.*(amx_tile).*/Flags: \1/'
"$bin/sluice" bench machine
two "$bin/sluice" bench machine --threads 2
echo "== correctness"
two timeout 100 "$bin/ops_test" --gtest_filter='*Matmul*cpu_amx*:*Matmul*cpu_avx512_bf16*' | tail -8
echo "== kernels, two cores"
for backend in cpu-amx cpu-avx512-bf16; do
  two timeout 45 "$bin/kernels_bench" q4_0,q4_k,q8_0,bfloat16 "$backend" 2 | grep -E 'limits|5632x2048|threads'
done
echo "== 1.1B, two cores"
for backend in cpu-amx cpu-avx512-bf16; do
  two timeout 120 "$bin/sluice" bench cpu --folder "$models" --iterations 1 --threads 2 --backend "$backend" |
    cut -c1-90
done
if [ -n "$python" ]; then
  echo "== beside llama.cpp, two cores"
  two timeout 200 "$python" bench/cpu_peers.py --runs 3 --threads 2 --folder "$models" --sluice "$bin/sluice" \
    --types q4_0,q8_0
fi
