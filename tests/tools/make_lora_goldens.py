"""Makes tests/goldens/lora: random adapters by peft of models in tests/goldens/arch, and their logits.

Needs torch, transformers, peft and safetensors; for adapters in GGUF also the package gguf and llama.cpp's sources, in
the folder that the variable LLAMA_CPP names. Each adapter has a name of its own below; run with names to make only these.
For some adapters, scaled.safetensors has their logits with another scale; `--scaled` makes only these files.
"""

import os
import shutil
import subprocess
import sys
import tempfile

import peft
import torch
from arch_models import GOLDENS, hash_of, load
from safetensors.torch import load_file, save_file

BOTH = ["experts.gate_up_proj", "experts.down_proj"]
ATTENTION = ["q_proj", "o_proj"]
INVOCATION = [11, 12]

# By name: the architecture and the LoraConfig. Names that end in "gguf" are converted.
CASES = {
    "qwen3_moe-experts": ("qwen3_moe", {"target_modules": ATTENTION, "target_parameters": [*BOTH, "gate.weight"]}),
    "mixtral-patterns": (
        "mixtral",
        {
            "target_modules": [],
            "target_parameters": BOTH,
            "use_rslora": True,
            "rank_pattern": {r"layers\.1\..*\.down_proj": 3},
            "alpha_pattern": {"gate_up_proj": 9},
        },
    ),
    "gpt_oss-experts": ("gpt_oss-2", {"target_modules": [], "target_parameters": BOTH}),
    "llama4-experts": ("llama4_text-1", {"target_modules": ATTENTION, "target_parameters": BOTH}),
    "deepseek_v3-down": ("deepseek_v3", {"target_modules": [], "target_parameters": BOTH[1:]}),
    "deepseek_v2-latent": ("deepseek_v2-2", {"target_modules": ["kv_b_proj", "kv_a_proj_with_mqa", "o_proj"]}),
    "nemotron_h-experts": (
        "nemotron_h-moe",
        {"target_modules": [], "target_parameters": ["experts.up_proj", "experts.down_proj"]},
    ),
    "llama-tokens": (
        "llama",
        {"target_modules": ["v_proj"], "trainable_token_indices": {"embed_tokens": [300, 7, 8], "lm_head": [5, 6, 319]}},
    ),
    "gemma2-tokens": ("gemma2", {"target_modules": ["v_proj"], "trainable_token_indices": [3, 40, 41]}),
    "gemma2-dora": ("gemma2", {"target_modules": ["v_proj", "embed_tokens"], "use_dora": True}),
    "llama-alora": (
        "llama",
        {"target_modules": ATTENTION, "alora_invocation_tokens": INVOCATION, "task_type": "CAUSAL_LM"},
    ),
    "llama-gguf": ("llama", {"target_modules": ["q_proj", "k_proj", "down_proj", "embed_tokens", "lm_head"]}),
    "qwen3_moe-gguf": ("qwen3_moe", {"target_modules": ATTENTION, "target_parameters": BOTH}),
}

# Factors of the scales of adapters, which have logits with them, too.
SCALES = {"qwen3_moe-experts": -1.5, "deepseek_v2-latent": 2.5, "llama-alora": 0.25}


def separate(name, pair):
    """The matrices of each expert's projections, which llama.cpp's converter expects, from those of all experts."""
    module = name.removesuffix(".base_layer")
    a, b = pair["A"], pair["B"]
    if not module.endswith(".experts"):
        return {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}
    out = {}
    for e in range(a.shape[0] // 2):
        one_a, one_b = a[2 * e : 2 * e + 2], b[:, e :: a.shape[0] // 2]
        rows = {"down_proj": one_b}
        if name != module:  # the inner one
            rows = dict(zip(("gate_proj", "up_proj"), one_b.chunk(2)))
        for projection, part in rows.items():
            out[f"{module}.{e}.{projection}.lora_A.weight"] = one_a.clone()
            out[f"{module}.{e}.{projection}.lora_B.weight"] = part.clone().contiguous()
    return out


def to_gguf(folder, base):
    """Replaces the tensors of a folder by adapter.gguf."""
    file = folder / "adapter_model.safetensors"
    pairs, tensors = {}, {}
    for key, value in load_file(file).items():
        if ".lora_embedding_" in key:
            tensors[key] = value
        else:
            module, matrix = key.removesuffix(".weight").rsplit(".lora_", 1)
            pairs.setdefault(module, {})[matrix] = value
    for module, pair in pairs.items():
        tensors.update(separate(module, pair))
    save_file(tensors, file)
    converter = os.path.join(os.environ["LLAMA_CPP"], "convert_lora_to_gguf.py")
    out = ["--outfile", folder / "adapter.gguf", "--outtype", "f16"]
    subprocess.run([sys.executable, converter, "--base", base, *out, folder], check=True)
    file.unlink()


def make(name, arch, settings):
    random = torch.Generator().manual_seed(hash_of(name) % 2**32)
    with tempfile.TemporaryDirectory() as folder:
        model = peft.get_peft_model(load(arch, folder), peft.LoraConfig(r=2, lora_alpha=3, **settings)).eval()
        for key, parameter in model.named_parameters():
            if "lora_magnitude" in key:
                parameter.data *= 1 + 0.3 * torch.randn(parameter.shape, generator=random)
            elif "lora_" in key:
                scale = parameter.shape[1] ** -0.5 if "lora_A" in key else 0.3
                parameter.data = torch.randn(parameter.shape, generator=random) * scale
                if name.endswith("gguf"):
                    parameter.data = parameter.data.half().float()
            if "trainable_tokens" in key:
                own = parameter.data.std()
                parameter.data = torch.randn(parameter.shape, generator=random) * 2 * own
        ids = torch.randint(model.config.vocab_size, (1, 11), generator=random)
        if "trainable_token_indices" in settings:
            ids[0, :4] = torch.tensor([7, 8, 40, 41])
        if "alora_invocation_tokens" in settings:  # from the last one on
            ids[0, 1:3] = ids[0, 6:8] = torch.tensor(INVOCATION)
        with torch.no_grad():
            logits = model(ids).logits[0]
        out = GOLDENS / "lora" / name
        shutil.rmtree(out, ignore_errors=True)
        model.peft_config["default"].base_model_name_or_path = arch
        model.save_pretrained(out, save_embedding_layers=False)
        if name.endswith("gguf"):
            to_gguf(out, folder)
    (out / "README.md").unlink(missing_ok=True)
    save_file({"ids": ids[0].to(torch.int32), "logits": logits.contiguous()}, out / "golden.safetensors")


def make_scaled(name):
    out = GOLDENS / "lora" / name
    config = peft.PeftConfig.from_pretrained(str(out))
    config.lora_alpha *= SCALES[name]
    ids = load_file(out / "golden.safetensors")["ids"].long()
    with tempfile.TemporaryDirectory() as folder:
        model = peft.PeftModel.from_pretrained(load(CASES[name][0], folder), str(out), config=config).eval()
        with torch.no_grad():
            logits = model(ids[None]).logits[0]
    scale = torch.tensor([SCALES[name]])
    save_file({"logits": logits.contiguous(), "scale": scale}, out / "scaled.safetensors")


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        if name != "--scaled":
            make(name, *CASES[name])
    for name in SCALES:
        if len(sys.argv) == 1 or name in sys.argv or "--scaled" in sys.argv:
            make_scaled(name)
