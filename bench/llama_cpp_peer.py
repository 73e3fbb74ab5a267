"""Sluice beside llama.cpp on the same random model, same cores, one run.

usage: python bench/llama_cpp_peer.py [--runs 5] [--sluice build/release/bin/sluice]

Needs numpy, gguf and llama-cpp-python (built from source for this machine). Makes a random 1.1 B Llama (hidden 2048,
22 layers, 32 heads, 4 KV heads, ffn 5632, vocabulary 32000) once as bf16 safetensors and as BF16 GGUF, under
build/bench-models. The two programs take turns; printed are medians and their ratio.
"""
import argparse
import json
import pathlib
import statistics
import struct
import subprocess
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
HIDDEN, LAYERS, HEADS, KV_HEADS, FFN, VOCAB, HEAD_DIM = 2048, 22, 32, 4, 5632, 32000, 64
PROMPT, OUTPUT = 512, 64


def tensors():
    """(Hugging Face name, GGUF name, shape) of every tensor."""
    yield "model.embed_tokens.weight", "token_embd.weight", (VOCAB, HIDDEN)
    for i in range(LAYERS):
        hf, gguf = f"model.layers.{i}.", f"blk.{i}."
        yield hf + "input_layernorm.weight", gguf + "attn_norm.weight", (HIDDEN,)
        yield hf + "self_attn.q_proj.weight", gguf + "attn_q.weight", (HEADS * HEAD_DIM, HIDDEN)
        yield hf + "self_attn.k_proj.weight", gguf + "attn_k.weight", (KV_HEADS * HEAD_DIM, HIDDEN)
        yield hf + "self_attn.v_proj.weight", gguf + "attn_v.weight", (KV_HEADS * HEAD_DIM, HIDDEN)
        yield hf + "self_attn.o_proj.weight", gguf + "attn_output.weight", (HIDDEN, HEADS * HEAD_DIM)
        yield hf + "post_attention_layernorm.weight", gguf + "ffn_norm.weight", (HIDDEN,)
        yield hf + "mlp.gate_proj.weight", gguf + "ffn_gate.weight", (FFN, HIDDEN)
        yield hf + "mlp.up_proj.weight", gguf + "ffn_up.weight", (FFN, HIDDEN)
        yield hf + "mlp.down_proj.weight", gguf + "ffn_down.weight", (HIDDEN, FFN)
    yield "model.norm.weight", "output_norm.weight", (HIDDEN,)
    yield "lm_head.weight", "output.weight", (VOCAB, HIDDEN)


def bf16(shape, rng):
    """Random bf16 bits: norms near 1, matrices of deviation 0.02."""
    values = rng.standard_normal(int(np.prod(shape)), dtype=np.float32)
    values = 1 + 0.05 * values if len(shape) == 1 else 0.02 * values
    return (values.view(np.uint32) >> 16).astype(np.uint16).reshape(shape)


def make_models(folder):
    folder.mkdir(parents=True, exist_ok=True)
    hf, gguf_file = folder / "random-1b", folder / "random-1b-bf16.gguf"
    if (hf / "model.safetensors").exists() and gguf_file.exists():
        return hf, gguf_file
    import gguf
    hf.mkdir(exist_ok=True)
    (hf / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "intermediate_size": FFN, "vocab_size": VOCAB,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "hidden_act": "silu"}))
    writer = gguf.GGUFWriter(str(gguf_file), "llama")
    writer.add_context_length(2048)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("llama")
    words = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)] + [f"w{i}" for i in range(VOCAB - 259)]
    writer.add_token_list(words)
    writer.add_token_scores([0.0] * VOCAB)
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * (VOCAB - 259))
    rng = np.random.default_rng(0)
    header, at, data = {}, 0, []
    for name, gguf_name, shape in tensors():
        bits = bf16(shape, rng)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + bits.nbytes]}
        at += bits.nbytes
        data.append(bits)
        if len(shape) == 1:
            writer.add_tensor(gguf_name, (bits.astype(np.uint32) << 16).view(np.float32))
        else:
            writer.add_tensor(gguf_name, bits.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(hf / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for bits in data:
            out.write(bits.tobytes())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return hf, gguf_file


def run_sluice(binary, model):
    out = subprocess.run([binary, "bench", "latency", str(model), "--tokenizer", str(ROOT / "models/minnow-6m"), "--input-len",
                          str(PROMPT), "--output-len", str(OUTPUT), "--iterations", "1", "--max-num-batched-tokens", str(PROMPT)],
                         check=True, capture_output=True, text=True).stdout
    result = json.loads(out)
    return result["prefill_tokens_per_second"], result["decode_tokens_per_second"]


def run_llama_cpp(model, threads):
    from llama_cpp import Llama
    llm = Llama(str(model), n_ctx=PROMPT + OUTPUT + 8, n_batch=PROMPT, n_ubatch=PROMPT, n_threads=threads, n_threads_batch=threads,
                verbose=False)
    rng = np.random.default_rng(1)
    prompt = rng.integers(300, VOCAB, PROMPT).tolist()
    llm.eval(prompt[:32])  # warm
    llm.reset()
    start = time.perf_counter()
    llm.eval(prompt)
    middle = time.perf_counter()
    for i in range(OUTPUT - 1):
        llm.eval([300 + i])
    end = time.perf_counter()
    return PROMPT / (middle - start), (OUTPUT - 1) / (end - middle)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(__import__("os").sched_getaffinity(0)))
    parser.add_argument("--sluice", default=str(ROOT / "build/release/bin/sluice"))
    arguments = parser.parse_args()
    hf, gguf_file = make_models(ROOT / "build/bench-models")
    rows = {"sluice": [], "llama.cpp": []}
    for _ in range(arguments.runs):
        rows["sluice"].append(run_sluice(arguments.sluice, hf))
        rows["llama.cpp"].append(run_llama_cpp(gguf_file, arguments.threads))
    for i, what in enumerate((f"prefill {PROMPT}", "decode, 1 sequence")):
        ours, theirs = (statistics.median(r[i] for r in rows[name]) for name in ("sluice", "llama.cpp"))
        print(f"{what:<20} sluice {ours:8.1f} tok/s   llama.cpp {theirs:8.1f} tok/s   ratio {ours / theirs:.2f}")


if __name__ == "__main__":
    main()
