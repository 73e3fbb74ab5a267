"""Sluice beside llama.cpp on the same weights, same cores, one run: the table of docs/performance.md with ratios.

usage: python bench/cpu_peers.py [--runs 5] [--threads N] [--types q4_0,q8_0,bfloat16] [--sluice build/release/bin/sluice]

Needs numpy, gguf and llama-cpp-python (built from source for this machine). `sluice bench cpu` makes a random 1.1 B Llama
under build/bench-models; this script rewrites it as GGUF and lets llama.cpp quantize that, every matrix alike. The two
programs take turns; printed are medians and their ratios.
"""
import argparse
import json
import os
import pathlib
import statistics
import struct
import subprocess
import sys
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROMPT, SHORT, OUTPUT, BATCHES = 512, 32, 32, (4, 16, 32)
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
    """The checkpoint as BF16 GGUF. Its values are random, so the order of rows that llama.cpp rotates does not matter."""
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
    writer.add_token_list(["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)] + [f"w{i}" for i in range(vocab - 259)])
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
            writer.add_tensor(gguf_name(name), np.ascontiguousarray(bits).view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_of(folder, type_name):
    import llama_cpp as llama
    full = folder.parent / "random-1b-bf16.gguf"
    if not full.exists():
        write_gguf(folder, full)
    if type_name == "bfloat16":
        return full
    path = folder.parent / f"random-1b-{type_name}.gguf"
    if not path.exists():
        params = llama.llama_model_quantize_default_params()
        params.ftype = getattr(llama, FTYPES[type_name])
        params.pure = True
        if llama.llama_model_quantize(str(full).encode(), str(path).encode(), params) != 0:
            sys.exit(f"llama.cpp did not quantize to {type_name}")
    return path


class LlamaCpp:
    """One model in llama.cpp; rates are tokens per second."""

    def __init__(self, path, threads):
        import llama_cpp as llama
        self.llama = llama
        llama.llama_backend_init()
        self.model = llama.llama_model_load_from_file(str(path).encode(), llama.llama_model_default_params())
        params = llama.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = 32 * (SHORT + OUTPUT) + PROMPT, PROMPT, PROMPT, 32
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = True
        self.context = llama.llama_init_from_model(self.model, params)

    def close(self):
        self.llama.llama_free(self.context)
        self.llama.llama_model_free(self.model)

    def decode(self, rows):
        """rows: (token, position, sequence, wants logits)"""
        batch = self.llama.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, logits) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, logits
            batch.seq_id[i][0] = sequence
        if self.llama.llama_decode(self.context, batch) != 0:
            sys.exit("llama_decode failed")
        self.llama.llama_synchronize(self.context)
        self.llama.llama_batch_free(batch)

    def run(self, sequences, prompt):
        """Seconds of the prompts, seconds of OUTPUT - 1 steps."""
        self.llama.llama_memory_clear(self.llama.llama_get_memory(self.context), True)
        rng = np.random.default_rng(1)
        token = lambda: int(rng.integers(300, 32000))
        start = time.perf_counter()
        for s in range(sequences):
            self.decode([(token(), p, s, p + 1 == prompt) for p in range(prompt)])
        middle = time.perf_counter()
        for step in range(OUTPUT - 1):
            self.decode([(token(), prompt + step, s, True) for s in range(sequences)])
        return middle - start, time.perf_counter() - middle

    def rates(self):
        self.run(1, SHORT)  # warm
        prefill, decode = self.run(1, PROMPT)
        rates = [PROMPT / prefill, (OUTPUT - 1) / decode]
        return rates + [n * (OUTPUT - 1) / self.run(n, SHORT)[1] for n in BATCHES]


def sluice_rates(arguments, type_name):
    out = subprocess.run([arguments.sluice, "bench", "cpu", "--folder", arguments.folder, "--types", type_name, "--iterations", "1",
                          "--threads", str(arguments.threads)], check=True, capture_output=True, text=True).stdout
    results = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    print(json.dumps({k: results[0][k] for k in ("machine", "decode_share_of_bandwidth", "prefill_share_of_peak")}), file=sys.stderr)
    return [results[0]["prefill_tokens_per_second"]] + [r["decode_tokens_per_second"] for r in results]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--types", default="q4_0,q8_0,bfloat16")
    parser.add_argument("--folder", default=str(ROOT / "build/bench-models/random-1b"))
    parser.add_argument("--sluice", default=str(ROOT / "build/release/bin/sluice"))
    arguments = parser.parse_args()
    columns = [f"prefill {PROMPT}", "decode 1"] + [f"decode {n}" for n in BATCHES]
    print(f"{'tok/s':<22}" + "".join(f"{c:>13}" for c in columns))
    for type_name in arguments.types.split(","):
        ours, theirs = [], []
        for _ in range(arguments.runs):
            ours.append(sluice_rates(arguments, type_name))
            peer = LlamaCpp(gguf_of(pathlib.Path(arguments.folder), type_name), arguments.threads)
            theirs.append(peer.rates())
            peer.close()
        medians = [[statistics.median(r[i] for r in rows) for i in range(len(columns))] for rows in (ours, theirs)]
        ratios = [a / b for a, b in zip(*medians)]
        for who, row in (("sluice", medians[0]), ("llama.cpp", medians[1]), ("ratio", ratios)):
            print(f"{type_name + ' ' + who:<22}" + "".join(f"{v:>13.2f}" if who == "ratio" else f"{v:>13.1f}" for v in row), flush=True)


if __name__ == "__main__":
    main()
