#!/usr/bin/env python3
"""Writes a checkpoint of random bfloat16 weights in a published shape: what speed is measured on.

usage: make_checkpoint.py SHAPE FOLDER TOKENIZER_FOLDER

Weights are normal with a spread of 0.02, norms are one. The tokenizer is copied; random token ids do not need it. Needs
torch; uses its GPU where there is one. A folder below /dev/shm is written and read at memory speed.
"""
import json
import shutil
import struct
import sys
from pathlib import Path

import torch

SHAPES = {  # hidden, layers, heads, kv heads, inner, vocabulary, tied head
    "8b": (4096, 32, 32, 8, 14336, 128256, False),  # Llama 3.1 8B
    "1b": (2048, 16, 32, 8, 8192, 128256, True),  # Llama 3.2 1B
}


def main():
    shape, folder, tokenizer = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    hidden, layers, heads, kv_heads, inner, vocab, tied = SHAPES[shape]
    head_dim = 128 if shape == "8b" else 64
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": head_dim, "intermediate_size": inner, "vocab_size": vocab, "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "max_position_embeddings": 131072, "tie_word_embeddings": tied,
        "attention_bias": False, "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2,
        "rope_theta": 500000.0,
    }
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (tokenizer / name).exists():
            shutil.copy(tokenizer / name, folder / name)

    tensors = [("model.embed_tokens.weight", (vocab, hidden)), ("model.norm.weight", (hidden,))]
    if not tied:
        tensors.append(("lm_head.weight", (vocab, hidden)))
    for layer in range(layers):
        at = f"model.layers.{layer}."
        tensors += [
            (at + "input_layernorm.weight", (hidden,)), (at + "post_attention_layernorm.weight", (hidden,)),
            (at + "self_attn.q_proj.weight", (heads * head_dim, hidden)),
            (at + "self_attn.k_proj.weight", (kv_heads * head_dim, hidden)),
            (at + "self_attn.v_proj.weight", (kv_heads * head_dim, hidden)),
            (at + "self_attn.o_proj.weight", (hidden, heads * head_dim)),
            (at + "mlp.gate_proj.weight", (inner, hidden)), (at + "mlp.up_proj.weight", (inner, hidden)),
            (at + "mlp.down_proj.weight", (hidden, inner)),
        ]
    header, at = {}, 0
    for name, dims in tensors:
        size = 2 * torch.Size(dims).numel()
        header[name] = {"dtype": "BF16", "shape": list(dims), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    with open(folder / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, dims in tensors:
            values = torch.ones(dims) if len(dims) == 1 else torch.randn(dims, device=device, dtype=torch.bfloat16) * 0.02
            out.write(values.to("cpu", torch.bfloat16).view(torch.uint8).numpy().data)
    print(f"{folder}: {at / 2**30:.1f} GiB")


if __name__ == "__main__":
    main()
