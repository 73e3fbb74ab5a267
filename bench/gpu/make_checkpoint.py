#!/usr/bin/env python3
"""Writes a checkpoint of random weights in a published shape, for measuring speed.

usage: make_checkpoint.py SHAPE FOLDER TOKENIZER_FOLDER [--layers N] [--adapters N] [--rank R]

Weights are bfloat16, normal with a standard deviation of 0.02. Norm weights are one; gpt-oss's experts are random MXFP4.
--layers sets the number of layers, if not that of the published model. The tokenizer is copied from TOKENIZER_FOLDER;
random token ids do not need it. --adapters N also writes N adapters (LoRA) of all linear layers, FOLDER-adapters/0
and so on. Needs torch, and uses its GPU if there is one. A folder below /dev/shm is written and
read at memory speed.
"""
import argparse
import json
import shutil
import struct
from pathlib import Path

import torch

COMMON = {"dtype": "bfloat16", "hidden_act": "silu", "max_position_embeddings": 131072, "attention_bias": False,
          "bos_token_id": 1, "eos_token_id": 2}
SHAPES = {
    # Llama 3.1 8B
    "8b": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
           "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336,
           "vocab_size": 128256, "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "mlp_bias": False,
           "rope_theta": 500000.0},
    # Llama 3.2 1B
    "1b": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16,
           "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192,
           "vocab_size": 128256, "tie_word_embeddings": True, "rms_norm_eps": 1e-5, "mlp_bias": False,
           "rope_theta": 500000.0},
    # Qwen3-30B-A3B
    "30b-a3b": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
                "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
                "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
                "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 151936,
                "tie_word_embeddings": False, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
                "use_sliding_window": False},
    # gpt-oss-20b
    "gpt-oss-20b": {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880,
                    "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
                    "intermediate_size": 2880, "num_local_experts": 32, "num_experts_per_tok": 4,
                    "attention_bias": True, "sliding_window": 128, "swiglu_limit": 7.0, "vocab_size": 201088,
                    "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "initial_context_length": 4096,
                    "rope_theta": 150000.0,
                    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                                     "truncate": False, "original_max_position_embeddings": 4096},
                    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
                        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}},
}
# BF16: random values; BYTES: random codes, or powers of two if the name ends in "scales".
BF16, BYTES = "BF16", "U8"


def attention(config, at):
    hidden, heads, kv_heads = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    dim, kind = config["head_dim"], config["model_type"]
    yield at + "self_attn.q_proj.weight", (heads * dim, hidden), BF16
    yield at + "self_attn.k_proj.weight", (kv_heads * dim, hidden), BF16
    yield at + "self_attn.v_proj.weight", (kv_heads * dim, hidden), BF16
    yield at + "self_attn.o_proj.weight", (hidden, heads * dim), BF16
    if kind == "qwen3_moe":
        for name in ("q_norm", "k_norm"):
            yield f"{at}self_attn.{name}.weight", (dim,), BF16
    if kind == "gpt_oss":
        for name, size in (("q", heads * dim), ("k", kv_heads * dim), ("v", kv_heads * dim), ("o", hidden)):
            yield f"{at}self_attn.{name}_proj.bias", (size,), BF16
        yield at + "self_attn.sinks", (heads,), BF16


def feed_forward(config, at):
    hidden, inner, kind = config["hidden_size"], config["intermediate_size"], config["model_type"]
    if kind == "gpt_oss":
        experts, groups = config["num_local_experts"], hidden // 32
        yield at + "mlp.router.weight", (experts, hidden), BF16
        yield at + "mlp.router.bias", (experts,), BF16
        for name, outputs, inputs in (("gate_up_proj", 2 * inner, groups), ("down_proj", hidden, inner // 32)):
            yield f"{at}mlp.experts.{name}_blocks", (experts, outputs, inputs, 16), BYTES
            yield f"{at}mlp.experts.{name}_scales", (experts, outputs, inputs), BYTES
            yield f"{at}mlp.experts.{name}_bias", (experts, outputs), BF16
        return
    places = [at + "mlp."]
    if kind == "qwen3_moe":
        yield at + "mlp.gate.weight", (config["num_experts"], hidden), BF16
        places = [f"{at}mlp.experts.{i}." for i in range(config["num_experts"])]
        inner = config["moe_intermediate_size"]
    for place in places:
        yield place + "gate_proj.weight", (inner, hidden), BF16
        yield place + "up_proj.weight", (inner, hidden), BF16
        yield place + "down_proj.weight", (hidden, inner), BF16


def tensors_of(config):
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    yield "model.embed_tokens.weight", (vocab, hidden), BF16
    yield "model.norm.weight", (hidden,), BF16
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (vocab, hidden), BF16
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", (hidden,), BF16
        yield at + "post_attention_layernorm.weight", (hidden,), BF16
        yield from attention(config, at)
        yield from feed_forward(config, at)


def values_of(name, dims, dtype, device):
    if dtype == BYTES:
        low, high = (118, 122) if name.endswith("scales") else (0, 256)
        return torch.randint(low, high, dims, device=device, dtype=torch.uint8)
    if name.endswith("norm.weight"):
        return torch.ones(dims, dtype=torch.bfloat16)
    return torch.randn(dims, device=device, dtype=torch.bfloat16) * 0.02


def write_tensors(file, tensors, values):
    """Writes a safetensors file of tensors (name, dims, dtype); values(name, dims, dtype) makes one. Returns its bytes."""
    header, at = {}, 0
    for name, dims, dtype in tensors:
        size = torch.Size(dims).numel() * (1 if dtype == BYTES else 2)
        header[name] = {"dtype": dtype, "shape": list(dims), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(file, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name, dims, dtype in tensors:
            out.write(values(name, dims, dtype).cpu().contiguous().view(torch.uint8).numpy().data)
    return at


def write_adapter(config, folder, rank, device):
    tensors = []
    for name, dims, _ in tensors_of(config):
        if not name.endswith("_proj.weight"):
            continue
        module = "base_model.model." + name.removesuffix(".weight")
        tensors += [(module + ".lora_A.weight", (rank, dims[1]), BF16), (module + ".lora_B.weight", (dims[0], rank), BF16)]
    folder.mkdir(parents=True, exist_ok=True)
    modules = sorted({name.split(".")[-3] for name, _, _ in tensors})
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": modules}))
    write_tensors(folder / "adapter_model.safetensors", tensors, lambda *tensor: values_of(*tensor, device))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--adapters", type=int, default=0)
    parser.add_argument("--rank", type=int, default=16)
    args = parser.parse_args()
    folder, config = args.folder, {**COMMON, **SHAPES[args.shape]}
    if args.layers is not None:
        config["num_hidden_layers"] = args.layers
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (args.tokenizer / name).exists():
            shutil.copy(args.tokenizer / name, folder / name)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    size = write_tensors(folder / "model.safetensors", list(tensors_of(config)),
                         lambda *tensor: values_of(*tensor, device))
    for i in range(args.adapters):
        write_adapter(config, Path(f"{folder}-adapters") / str(i), args.rank, device)
    print(f"{folder}: {size / 2**30:.1f} GiB")


if __name__ == "__main__":
    main()
