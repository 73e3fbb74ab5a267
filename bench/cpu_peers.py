"""Compares Sluice with llama.cpp on the same weights and cores; prints the table of bench/results/2026-11-cpu.md.

usage: python bench/cpu_peers.py [--runs 5] [--threads N | --cpu-time] [--types q4_0,q4_k,q8_0] [--one-sequence]
                                 [--sluice build/release/bin/sluice]

Needs numpy, gguf and llama-cpp-python (built from source for this machine), and the random 1.1 B Llama that `sluice
bench cpu` creates under build/bench-models. This script converts it to GGUF and lets llama.cpp quantize all matrices to
one type. Both programs read that file and take turns. Each run times forward passes without sampling: one of 512 rows,
then steps of 1 to 32 sequences. "HTTP 32" is Sluice's server with 32 streaming clients (32 / their median time between
tokens), beside llama.cpp's bare steps of 32 sequences. Prints the medians of the runs and their ratios. Three types
take less than ten minutes on two idle cores once the files exist. With --cpu-time both programs use one thread and its
CPU clock, which is steady on a busy machine except for memory bandwidth that other programs use. With --one-sequence
they take turns every few seconds, with steps of one sequence only. On shared machines the bandwidth of memory changes
from minute to minute, so only programs that run right after each other can be compared. Prints the median ratio.
"""
import argparse
import json
import os
import pathlib
import socket
import statistics
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROMPT, CONTEXT, STEPS, BATCHES = 512, 16, 4, (1, 4, 16, 32)
NAMES = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
         "lm_head.weight": "output.weight"}
PARTS = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
FTYPES = {"q4_0": "LLAMA_FTYPE_MOSTLY_Q4_0", "q8_0": "LLAMA_FTYPE_MOSTLY_Q8_0", "q4_1": "LLAMA_FTYPE_MOSTLY_Q4_1",
          "q5_0": "LLAMA_FTYPE_MOSTLY_Q5_0", "q5_1": "LLAMA_FTYPE_MOSTLY_Q5_1", "q4_k": "LLAMA_FTYPE_MOSTLY_Q4_K_S",
          "q6_k": "LLAMA_FTYPE_MOSTLY_Q6_K"}


def gguf_name(name):
    if name in NAMES:
        return NAMES[name]
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{PARTS[part]}.weight"


def write_gguf(folder, path):
    """Writes the checkpoint as BF16 GGUF. Its values are random, so llama.cpp's order of rotated rows does not
    matter."""
    import gguf
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    vocab = config["vocab_size"]
    writer.add_vocab_size(vocab)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)] +
                          [f"w{i}" for i in range(vocab - 259)])
    writer.add_token_scores([0.0] * vocab)
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * (vocab - 259))
    file = np.memmap(folder / "model.safetensors", mode="r")
    (length,) = struct.unpack("<Q", bytes(file[:8]))
    header = json.loads(bytes(file[8:8 + length]))
    header.pop("__metadata__", None)
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        bits = file[begin:end].view(np.uint16).reshape(entry["shape"])
        if bits.ndim == 1:
            writer.add_tensor(gguf_name(name), (bits.astype(np.uint32) << 16).view(np.float32))
        else:
            writer.add_tensor(gguf_name(name), np.ascontiguousarray(bits).view(np.uint8),
                              raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def made(path, make):
    """Returns the file; calls make(path) if it is missing. An unfinished file keeps a temporary name."""
    if not path.exists():
        unfinished = path.with_suffix(".unfinished")
        make(unfinished)
        unfinished.rename(path)
    return path


def gguf_of(folder, type_name):
    import llama_cpp as llama
    full = made(folder.parent / "random-1b-bf16.gguf", lambda path: write_gguf(folder, path))
    if type_name == "bfloat16":
        return full

    def quantize(path):
        params = llama.llama_model_quantize_default_params()
        params.ftype = getattr(llama, FTYPES[type_name])
        params.pure = True
        if llama.llama_model_quantize(str(full).encode(), str(path).encode(), params) != 0:
            sys.exit(f"llama.cpp cannot quantize to {type_name}")

    return made(folder.parent / f"random-1b-{type_name}.gguf", quantize)


class LlamaCpp:
    """One model in llama.cpp. Rates are in tokens per second."""

    silence = None  # the library keeps a pointer to this callback

    def __init__(self, path, threads, clock):
        import llama_cpp as llama
        self.llama, self.clock = llama, clock
        LlamaCpp.silence = LlamaCpp.silence or llama.llama_log_callback(lambda level, text, data: None)
        llama.llama_log_set(LlamaCpp.silence, None)
        llama.llama_backend_init()
        self.model = llama.llama_model_load_from_file(str(path).encode(), llama.llama_model_default_params())
        params = llama.llama_context_default_params()
        params.n_ctx = max(BATCHES) * (CONTEXT + len(BATCHES) * (STEPS + 1)) + PROMPT
        params.n_batch, params.n_ubatch, params.n_seq_max = PROMPT, PROMPT, max(BATCHES)
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = True
        self.context = llama.llama_init_from_model(self.model, params)

    def close(self):
        self.llama.llama_free(self.context)
        self.llama.llama_model_free(self.model)

    def decode(self, rows):
        """Returns the seconds of one forward pass. `rows`: (position, sequence, wants logits)."""
        batch = self.llama.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for i, (position, sequence, logits) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = 300 + i, position, 1, logits
            batch.seq_id[i][0] = sequence
        start = self.clock()
        if self.llama.llama_decode(self.context, batch) != 0:
            sys.exit("llama_decode failed")
        self.llama.llama_synchronize(self.context)
        seconds = self.clock() - start
        self.llama.llama_batch_free(batch)
        return seconds

    def clear(self):
        self.llama.llama_memory_clear(self.llama.llama_get_memory(self.context), True)

    def rates(self):
        self.decode([(0, 0, True)])  # warm-up
        self.clear()
        rates = [PROMPT / self.decode([(p, 0, p + 1 == PROMPT) for p in range(PROMPT)])]
        self.clear()
        self.decode([(p, s, p + 1 == CONTEXT) for s in range(max(BATCHES)) for p in range(CONTEXT)])
        position = [CONTEXT] * max(BATCHES)
        for n in BATCHES:
            seconds = []
            for _ in range(STEPS + 1):
                seconds.append(self.decode([(position[s], s, True) for s in range(n)]))
                for s in range(n):
                    position[s] += 1
            rates.append(n / statistics.median(seconds[1:]))
        return rates


def bench_ops(sluice, path, threads, prompt, steps, batches):
    """Returns the results of `sluice bench ops`: one for the prompt, then one for each batch size."""
    command = [sluice, "bench", "ops", str(path), "--threads", str(threads), "--prompt", str(prompt),
               "--context", str(CONTEXT),
               "--max-model-len", str(PROMPT), "--steps", str(steps), "--batch-size", ",".join(map(str, batches))]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def sluice_rates(sluice, path, threads):
    results = bench_ops(sluice, path, threads, PROMPT, STEPS, BATCHES)
    return [r["rows"] / r["step_us"] * 1e6 for r in results], results[0]["machine"]


def sluice_http_rate(sluice, path, threads):
    """Tokens per second of max(BATCHES) streams from a server started for this purpose."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url, streams = f"http://127.0.0.1:{port}", max(BATCHES)
    server = subprocess.Popen([sluice, "serve", str(path), "--host", "127.0.0.1", "--port", str(port),
                               "--threads", str(threads),
                               "--max-model-len", str(PROMPT)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(url + "/health").close()
                break
            except urllib.error.URLError:
                if server.poll() is not None:
                    sys.exit(f"{sluice} serve {path} ended early")
                time.sleep(0.1)
        command = [sluice, "bench", "serve", "--base-url", url, "--num-prompts", str(streams),
                   "--max-concurrency", str(streams),
                   "--input-len", str(CONTEXT), "--output-len", "64"]
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
        results = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        return streams / results[-1]["tpot_ms"]["p50"] * 1000
    finally:
        server.terminate()
        server.wait()


def one_sequence(sluice, path, threads, runs, steps=32):
    """Steps of one sequence in turns. Returns the median rates, and the median of the ratios of the turns."""
    pairs = []
    for run in range(runs):
        result = bench_ops(sluice, path, threads, 64, steps, [1])[-1]
        peer = LlamaCpp(path, threads, time.perf_counter)
        peer.decode([(p, 0, p + 1 == CONTEXT) for p in range(CONTEXT)])
        seconds = [peer.decode([(CONTEXT + i, 0, True)]) for i in range(steps + 1)]
        peer.close()
        pairs.append((1e6 / result["step_us"], 1 / statistics.median(seconds[1:])))
        print(json.dumps({"run": run, "machine": result["machine"], "sluice": round(pairs[-1][0], 1),
                          "llama.cpp": round(pairs[-1][1], 1)}), file=sys.stderr, flush=True)
    ours, theirs = zip(*pairs)
    return statistics.median(ours), statistics.median(theirs), statistics.median(a / b for a, b in pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--types", default="q4_0,q4_k,q8_0")
    parser.add_argument("--one-sequence", action="store_true")
    parser.add_argument("--folder", default=str(ROOT / "build/bench-models/random-1b"))
    parser.add_argument("--sluice", default=str(ROOT / "build/release/bin/sluice"))
    arguments = parser.parse_args()
    threads, clock = (1, time.thread_time) if arguments.cpu_time else (arguments.threads, time.perf_counter)
    if arguments.one_sequence:
        for type_name in arguments.types.split(","):
            path = gguf_of(pathlib.Path(arguments.folder), type_name)
            ours, theirs, ratio = one_sequence(arguments.sluice, path, threads, arguments.runs)
            print(f"{type_name}: sluice {ours:.1f} tok/s, llama.cpp {theirs:.1f}, ratio {ratio:.2f}", flush=True)
        return
    columns = [f"prefill {PROMPT}"] + [f"decode {n}" for n in BATCHES]
    if not arguments.cpu_time:
        columns.append(f"HTTP {max(BATCHES)}")
    print(f"{'tok/s':<22}" + "".join(f"{c:>13}" for c in columns))
    for type_name in arguments.types.split(","):
        path = gguf_of(pathlib.Path(arguments.folder), type_name)
        ours, theirs = [], []
        for run in range(arguments.runs):
            rates, machine = sluice_rates(arguments.sluice, path, threads)
            if not arguments.cpu_time:
                rates.append(sluice_http_rate(arguments.sluice, path, threads))
            ours.append(rates)
            peer = LlamaCpp(path, threads, clock)
            theirs.append(peer.rates())
            theirs[-1] += [theirs[-1][-1]] * (len(columns) - len(theirs[-1]))
            peer.close()
            print(json.dumps({"type": type_name, "run": run, "load": os.getloadavg()[0], "machine": machine,
                              "sluice": [round(r, 1) for r in ours[-1]],
                               "llama.cpp": [round(r, 1) for r in theirs[-1]]}),
                  file=sys.stderr, flush=True)
        medians = [[statistics.median(r[i] for r in rows) for i in range(len(columns))] for rows in (ours, theirs)]
        ratios = [a / b for a, b in zip(*medians)]
        for who, row in (("sluice", medians[0]), ("llama.cpp", medians[1]), ("ratio", ratios)):
            cells = "".join(f"{v:>13.2f}" if who == "ratio" else f"{v:>13.1f}" for v in row)
            print(f"{type_name + ' ' + who:<22}" + cells, flush=True)


if __name__ == "__main__":
    main()
