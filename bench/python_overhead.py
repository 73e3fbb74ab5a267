"""Compares LLM.generate of the Python package with `sluice bench throughput`: the same requests, in turns.

PYTHONPATH=build/release/python .venv/bin/python bench/python_overhead.py [--rounds 7] [MODEL]
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import time

OPTIONS = ["num-prompts", "input-len", "output-len", "threads", "max-num-seqs"]


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="models/minnow-6m")
    parser.add_argument("--sluice", default="build/release/bin/sluice")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--num-prompts", type=int, default=128)
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--max-num-seqs", type=int, default=0)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def child(a):
    """One run of the package; prints output tokens per second."""
    from sluice import LLM, SamplingParams

    llm = LLM(a.model, threads=a.threads, max_num_seqs=a.max_num_seqs)
    vocabulary = llm.model_info["vocab_size"]
    rng = random.Random(0)

    def prompts(count):
        ids = [[rng.randrange(vocabulary) for _ in range(a.input_len)] for _ in range(count)]
        return [{"prompt_token_ids": prompt} for prompt in ids]

    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=a.output_len)
    llm.generate(prompts(1), params, use_tqdm=False)
    batch = prompts(a.num_prompts)
    begin = time.monotonic()
    outputs = llm.generate(batch, params, use_tqdm=False)
    seconds = time.monotonic() - begin
    print(sum(len(o.outputs[0].token_ids) for o in outputs) / seconds)


def program(a):
    words = [word for name in OPTIONS for word in (f"--{name}", str(getattr(a, name.replace("-", "_"))))]
    command = [a.sluice, "bench", "throughput", a.model, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])["output_tokens_per_second"]


def package(a):
    done = subprocess.run([sys.executable, *sys.argv, "--child"], capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def main():
    a = parse()
    if a.child:
        return child(a)
    rates = {"program": [], "package": []}
    for round_ in range(a.rounds):
        for name in sorted(rates, reverse=round_ % 2 == 0):  # neither is always the first
            rates[name].append({"program": program, "package": package}[name](a))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    for name, values in rates.items():
        print(f"{name}: {medians[name]:.0f} output tokens/s (of {', '.join(f'{v:.0f}' for v in values)})")
    # Other work on the machine only makes runs slower, so that the best ones have least of it.
    best = max(rates["package"]) / max(rates["program"])
    print(f"package / program: {best:.3f} of the best runs, {medians['package'] / medians['program']:.3f} of the medians")


if __name__ == "__main__":
    main()
