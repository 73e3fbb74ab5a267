#!/usr/bin/env python3
"""Measures sluice on a GPU and prints a table with one row per case, including its share of the memory bandwidth.

usage: measure.py SLUICE TOKENIZER_FOLDER [--work /dev/shm] [--transformers] [--only SUBSTRING]

For a batch, the TPOT column shows the inter-token latency, because TPOT includes the prefill of later sequences.
Checkpoints are random weights of published shapes (make_checkpoint.py). --transformers adds the same 8B model in
Hugging Face transformers (static cache, compiled) for one sequence. The full output of every case is appended to
WORK/measure.jsonl.
"""
import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

BANDWIDTH = 4.64e12  # bytes/s, read only, measured on one H200
HERE = Path(__file__).parent

# Weights, activations and cache in 8-bit floats, as in TensorRT-LLM's published figures.
FP8 = "--quantization fp8 --kv-cache-dtype fp8"

# Saturation is measured with several times as many requests as run at once. So the start and the end, when fewer run,
# weigh little; the published figures use 1000 to 30000 requests.

# name, checkpoint, arguments of sluice bench, bytes streamed per decode step of one sequence
CASES = [
    ("8B bf16, 1 sequence", "8b", "latency --input-len 128 --output-len 256 --iterations 3", 15.0e9),
    ("8B bf16, 1 x 1k", "8b", "latency --input-len 1024 --output-len 256 --iterations 3", 15.0e9 + 1.2e3 * 131072),
    ("8B fp8, 1 sequence", "8b", "latency --quantization fp8 --input-len 128 --output-len 256 --iterations 3", 8.0e9),
    ("8B int4, 1 sequence", "8b",
     "latency --quantization int4_g128 --input-len 128 --output-len 256 --iterations 3", 4.2e9),
    ("1B bf16, 1 sequence", "1b", "latency --input-len 128 --output-len 256 --iterations 3", 2.47e9),
    ("8B int4, 16 x 1k", "8b",
     "latency --quantization int4_g128 --input-len 1024 --output-len 256 --iterations 1 --batch-size 16",
     4.2e9 + 16 * 1.15e3 * 131072),
    ("8B bf16, 32 x 1k", "8b", "latency --input-len 1024 --output-len 256 --iterations 1 --batch-size 32",
     15.0e9 + 32 * 1.15e3 * 131072),
    ("8B bf16, prefill 8k", "8b", "latency --input-len 8000 --output-len 2 --iterations 3", None),
    ("8B bf16, 1000/1000", "8b", "throughput --input-len 1000 --output-len 1000 --num-prompts 512", None),
    ("8B bf16, 128/128", "8b", "throughput --input-len 128 --output-len 128 --num-prompts 1024", None),
    ("8B bf16, fp8 cache, 32 x 1k", "8b",
     "latency --kv-cache-dtype fp8 --input-len 1024 --output-len 128 --iterations 1 --batch-size 32",
     15.0e9 + 32 * 1.1e3 * 65536),
    ("8B fp8, prefill 8k", "8b", f"latency {FP8} --input-len 8000 --output-len 2 --iterations 3", None),
    ("8B fp8, 128/128", "8b", f"throughput {FP8} --input-len 128 --output-len 128 --num-prompts 4096", None),
    ("8B fp8, 128/2048", "8b", f"throughput {FP8} --input-len 128 --output-len 2048 --num-prompts 512", None),
    ("8B fp8, 1000/1000", "8b", f"throughput {FP8} --input-len 1000 --output-len 1000 --num-prompts 2048", None),
    ("8B fp8, 2048/2048", "8b",
     f"throughput {FP8} --input-len 2048 --output-len 2048 --num-prompts 896 --max-num-seqs 448", None),
    ("8B fp8, 20000/2000", "8b",
     f"throughput {FP8} --input-len 20000 --output-len 2000 --num-prompts 80 --max-num-seqs 80 --max-model-len 22528 "
     "--max-num-batched-tokens 16384", None),
    ("30B-A3B bf16, 1 sequence", "30b-a3b", "latency --input-len 128 --output-len 200 --iterations 3", 6.05e9),
    ("30B-A3B fp8, 1 sequence", "30b-a3b",
     "latency --quantization fp8 --input-len 128 --output-len 200 --iterations 3", 3.3e9),
    ("30B-A3B bf16, 32 x 1k", "30b-a3b",
     "latency --input-len 1024 --output-len 200 --iterations 1 --batch-size 32", None),
    ("30B-A3B fp8, 32 x 1k", "30b-a3b",
     "latency --quantization fp8 --input-len 1024 --output-len 200 --iterations 1 --batch-size 32", None),
    ("30B-A3B bf16, prefill 8k", "30b-a3b", "latency --input-len 8000 --output-len 2 --iterations 3", None),
    ("gpt-oss-20b, 1 sequence", "gpt-oss-20b", "latency --input-len 128 --output-len 200 --iterations 3", 3.7e9),
    ("gpt-oss-20b, 32 x 1k", "gpt-oss-20b",
     "latency --input-len 1024 --output-len 200 --iterations 1 --batch-size 32", None),
    ("gpt-oss-20b, prefill 8k", "gpt-oss-20b", "latency --input-len 8000 --output-len 2 --iterations 3", None),
    *[(f"8B bf16, 256 sequences, {constrained} constrained{' without jumps' if jumps else ''}", "8b",
       f"throughput --input-len 128 --output-len 512 --num-prompts 256 --max-num-seqs 256 --constrained {constrained} "
       f"{jumps}", None) for constrained, jumps in ((0, ""), (1, ""), (64, ""), (64, "--no-jump-ahead"))],
    *[(f"8B {kind}, {ranks} GPUs, {name}", "8b", f"{arguments} -tp {ranks} {options}", None)
      for kind, options in (("bf16", ""), ("fp8", "--quantization fp8")) for ranks in (1, 2)
      for name, arguments in (("1 sequence", "latency --input-len 128 --output-len 256 --iterations 3"),
                              ("prefill 8k", "latency --input-len 8000 --output-len 2 --iterations 3"),
                              ("32 x 1k", "latency --input-len 1024 --output-len 128 --iterations 1 --batch-size 32"),
                              ("1000/300", "throughput --input-len 1000 --output-len 300 --num-prompts 256"))],
    ("8B fp8, 10 requests/s of 1k", "8b",
     f"serve {FP8} --request-rate 10 --num-prompts 150 --input-len 1000 --output-len 200 --goodput ttft:60", None),
]

# Weights that a token is multiplied by, without the LM head, and the number of layers that attend to the whole text.
PREFILL = {"8B": (7.0e9, 32), "30B-A3B": (2.7e9, 48), "gpt-oss-20b": (3.0e9, 12)}


def groups(result):
    """Rates of the sequences without and with a grammar, and the largest gap of the former while all decode."""
    rates = [f'{group} {result[group]["output_tokens_per_second"]:.0f}/s' for group in ("plain", "constrained")
             if group in result]
    return f'{", ".join(rates)}, gap {result["plain"]["largest_decode_gap_ms"]:.1f} ms'


def row(name, result, bytes_per_step):
    tpot = result["tpot_ms"]["p50"]
    if result.get("batch_size", 1) > 1:
        tpot = result["itl_ms"]["p50"]  # leaves out the prefill of sequences that began later
    cells = [name, f'{result["ttft_ms"]["p50"]:.1f}', f"{tpot:.2f}"]
    if "goodput" in result:
        p99 = f'TTFT p99 {result["ttft_ms"]["p99"]:.1f}, TPOT p99 {result["tpot_ms"]["p99"]:.2f}'
        return cells + [f'{result["output_tokens_per_second"]:.0f}', p99]
    if "sequences" in name and "plain" in result:
        return cells + [f'{result["output_tokens_per_second"]:.0f}', groups(result)]
    if "output_tokens_per_second" in result:
        return cells + [f'{result["output_tokens_per_second"]:.0f}', ""]
    per_second = result["batch_size"] * 1000 / tpot
    share = f"{bytes_per_step / BANDWIDTH / (tpot / 1000):.0%}" if bytes_per_step else ""
    if name.endswith("prefill 8k"):  # plus causal attention over 4096 columns, as in all these models
        weights, layers = PREFILL[name.split()[0].rstrip(",")]
        operations = 8000 * 2 * weights + layers * 2 * 8000 * 8000 * 4096
        return cells + ["", f'{operations / (result["ttft_ms"]["p50"] / 1000) / 1e12:.0f} TFLOP/s']
    return cells + [f"{per_second:.0f}", share]


def transformers_row(folder):
    import torch
    from transformers import AutoModelForCausalLM, StaticCache

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, device_map="cuda")
    cache = StaticCache(config=model.config, max_cache_len=1024)
    step = torch.compile(lambda ids, position: model(ids, cache_position=position, past_key_values=cache).logits,
                         mode="reduce-overhead", fullgraph=True)
    with torch.no_grad():
        ids = torch.randint(0, 1000, (1, 128), device="cuda")
        model(ids, cache_position=torch.arange(128, device="cuda"), past_key_values=cache)
        times = []
        for i in range(128, 228):
            torch.cuda.synchronize()
            start = time.perf_counter()
            step(ids[:, :1], torch.tensor([i], device="cuda"))
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
    tpot = sorted(times[20:])[40] * 1000
    return ["8B bf16, 1 sequence, transformers compiled", "", f"{tpot:.2f}", f"{1000 / tpot:.0f}",
            f"{15.0e9 / BANDWIDTH / (tpot / 1000):.0%}"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sluice")
    parser.add_argument("tokenizer")
    parser.add_argument("--work", default="/dev/shm")
    parser.add_argument("--transformers", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--max-model-len", type=int, default=8192)
    args = parser.parse_args()
    work = Path(args.work)
    print("| case | TTFT ms | TPOT ms | tokens/s | share |\n| --- | --- | --- | --- | --- |", flush=True)
    with open(work / "measure.jsonl", "a") as log:
        for name, shape, arguments, bytes_per_step in CASES:
            if args.only not in name:
                continue
            folder = work / f"random-{shape}"
            if not (folder / "config.json").exists():
                subprocess.run([sys.executable, HERE / "make_checkpoint.py", shape, folder, args.tokenizer], check=True,
                               stdout=subprocess.DEVNULL)
            command = [args.sluice, "bench", arguments.split()[0], folder, *arguments.split()[1:]]
            if "--max-model-len" not in arguments:
                command += ["--max-model-len", str(args.max_model_len)]
            done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
            if done.returncode != 0:
                print(f"| {name} | failed: {done.stderr.strip().splitlines()[-1]} |", flush=True)
                continue
            result = json.loads(done.stdout.strip().splitlines()[-1])
            log.write(json.dumps({"case": name, **result}) + "\n")
            print("| " + " | ".join(row(name, result, bytes_per_step)) + " |", flush=True)
    if args.transformers:
        print("| " + " | ".join(transformers_row(work / "random-8b")) + " |", flush=True)


if __name__ == "__main__":
    main()
