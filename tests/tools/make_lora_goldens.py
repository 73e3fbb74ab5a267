"""Makes tests/goldens/lora: random adapters by peft of models in tests/goldens/arch, and their logits.

Needs torch, transformers, peft and safetensors. Each adapter has a name of its own below; run with names to make only
these.
"""

import json
import pathlib
import shutil
import sys
import tempfile

import numpy
import peft
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

GOLDENS = pathlib.Path(__file__).parent.parent / "goldens"
BOTH = ["experts.gate_up_proj", "experts.down_proj"]
ATTENTION = ["q_proj", "o_proj"]

# By name: the architecture and the LoraConfig.
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
}


def hash_of(name):
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def weight(row):
    """The tensor of a row of weights.json (tests/support/hashed_weights.h)."""
    if "values" in row:
        return torch.tensor(row["values"], dtype=torch.float32).reshape(row["shape"]).to(torch.bfloat16)
    with numpy.errstate(over="ignore"):
        z = numpy.arange(numpy.prod(row["shape"]), dtype=numpy.uint64)
        z += numpy.uint64((hash_of(row["name"]) + 0x9E3779B97F4A7C15) % 2**64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            z = (z ^ (z >> numpy.uint64(shift))) * numpy.uint64(factor)
        z ^= z >> numpy.uint64(31)
    lanes = sum((z >> numpy.uint64(16 * i) & numpy.uint64(0xFFFF)).astype(numpy.int64) for i in range(4))
    unit = (lanes - 131070).astype(numpy.float32) * numpy.float32(2.6429e-5)
    values = numpy.float32(row["mean"]) + numpy.float32(row["std"]) * unit
    return torch.from_numpy(values).reshape(row["shape"]).to(torch.bfloat16)


def load(arch, folder):
    source = GOLDENS / "arch" / arch
    shutil.copy(source / "config.json", folder)
    rows = json.loads((source / "weights.json").read_text())
    save_file({row["name"]: weight(row) for row in rows}, f"{folder}/model.safetensors", metadata={"format": "pt"})
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def make(name, arch, settings):
    random = torch.Generator().manual_seed(hash_of(name) % 2**32)
    with tempfile.TemporaryDirectory() as folder:
        model = peft.get_peft_model(load(arch, folder), peft.LoraConfig(r=2, lora_alpha=3, **settings)).eval()
        for key, parameter in model.named_parameters():
            if "lora_" in key:
                scale = parameter.shape[1] ** -0.5 if "lora_A" in key else 0.3
                parameter.data = torch.randn(parameter.shape, generator=random) * scale
        ids = torch.randint(model.config.vocab_size, (1, 11), generator=random)
        with torch.no_grad():
            logits = model(ids).logits[0]
        out = GOLDENS / "lora" / name
        shutil.rmtree(out, ignore_errors=True)
        model.peft_config["default"].base_model_name_or_path = arch
        model.save_pretrained(out)
    (out / "README.md").unlink(missing_ok=True)
    save_file({"ids": ids[0].to(torch.int32), "logits": logits.contiguous()}, out / "golden.safetensors")


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        make(name, *CASES[name])
