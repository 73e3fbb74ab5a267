"""Makes tests/goldens/lora: random adapters by peft of models in tests/goldens/arch, and their logits.

Needs torch, transformers, peft and safetensors. Each adapter has a name of its own below; run with names to make only
these.
"""

import shutil
import sys
import tempfile

import peft
import torch
from arch_models import GOLDENS, hash_of, load
from safetensors.torch import save_file

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
