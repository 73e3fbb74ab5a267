"""Makes tests/goldens/mtp: logits and drafts of the layer behind the last one that predicts further tokens.

The models are those of tests/goldens/arch with one layer less, whose last layer becomes the predicting one. Its other
tensors are in weights.json. The decoder layer and the norms are transformers' own; the wiring is that of DeepSeek-V3's
report (arXiv:2412.19437, section 2.2), of MiMo's modeling_mimo.py and, for ERNIE, of FastDeploy's ernie4_5_mtp.py.
Two things follow vLLM (deepseek_mtp.py,
glm4_moe_mtp.py): the hidden states are those behind the model's final norm, and the layer goes on from its own result
before shared_head.norm. Needs torch, transformers and safetensors. Run with names of models to make only these.
"""

import json
import pathlib
import sys
import tempfile

import torch
from arch_models import GOLDENS, hash_of, weight
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

# The layer that transformers calls layer 2, and where the checkpoint has its tensors.
LAST = "model.layers.2."
CASES = {
    "deepseek_v3": LAST,
    "deepseek_v32-1": LAST,
    "ernie4_5_moe": "model.mtp_block.0.",
    "glm4_moe": LAST,
    "glm4_moe_lite-1": LAST,
    "mimo-1": "model.mtp_layers.0.",
}
# Models of the same graph, as far as Sluice computes it.
SAME_GRAPH = {
    "deepseek_v32": {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"]},
    "mimo": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
}
TOKENS = 14
DRAFTED = 4


def weights(name, own):
    """The checkpoint's tensors; the predicting layer's are below `own`. ERNIE's has no experts, but the first MLP."""
    ernie = name.startswith("ernie")
    rows = []
    for row in json.loads((GOLDENS / "arch" / name / "weights.json").read_text()):
        if (own != LAST and row["name"].startswith(own)) or (ernie and row["name"].startswith(LAST + "mlp.")):
            continue
        if ernie and row["name"].startswith("model.layers.0.mlp."):
            rows.append(row | {"name": row["name"].replace("model.layers.0.", own)})
        rows.append(row | {"name": row["name"].replace(LAST, own)})
    hidden = json.loads((GOLDENS / "arch" / name / "config.json").read_text())["hidden_size"]
    extra = []
    for row in json.loads((GOLDENS / "mtp" / "weights.json").read_text()):
        beside = row["name"].startswith("model.mtp_") and ".mtp_layers." not in row["name"]
        if beside if ernie else row["name"].startswith(own):
            extra.append(row | {"shape": [hidden] if len(row["shape"]) == 1 else [hidden, 2 * hidden]})
    return {row["name"]: weight(row) for row in rows}, {row["name"]: weight(row) for row in extra}


def load(name, tensors, folder):
    config = json.loads((GOLDENS / "arch" / name / "config.json").read_text())
    if config["model_type"] in SAME_GRAPH:
        config |= SAME_GRAPH[config["model_type"]]
        tensors = {key: value for key, value in tensors.items() if ".indexer." not in key}
        for key in ("auto_map", "layer_types", "mlp_layer_types"):
            config.pop(key, None)
    if config["model_type"] == "ernie4_5_moe":
        config["moe_layer_end_index"] = 1  # the predicting layer has no experts
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def rms_norm(like, rows):
    norm = type(like)(like.weight.shape[0], eps=like.variance_epsilon)
    norm.weight.data = rows.float()
    return norm


class Predictor:
    def __init__(self, model, tensors):
        self.model = model.model
        self.head = model.lm_head
        self.block = self.model.layers[2]
        self.model.layers = self.model.layers[:2]

        def tensor(*names):
            found = [value for key, value in tensors.items() if any(name in key for name in names)]
            return found[0] if found else None

        self.enorm = rms_norm(self.model.norm, tensor("enorm", "token_layernorm", "emb_norm"))
        self.hnorm = rms_norm(self.model.norm, tensor("hnorm", "hidden_layernorm", "hidden_norm"))
        norm = tensor("shared_head.norm", "final_layernorm")
        self.norm = self.model.norm if norm is None else rms_norm(self.model.norm, norm)
        self.proj = tensor("_proj").float()
        self.hidden_first = any("mtp_layers" in key for key in tensors)

    # Row i has hidden state i and token i + 1.
    def __call__(self, tokens, hidden):
        embeddings = self.model.embed_tokens(tokens)
        parts = [self.enorm(embeddings), self.hnorm(hidden)]
        x = torch.cat(parts[::-1] if self.hidden_first else parts, -1) @ self.proj.T
        count = x.shape[0]
        positions = torch.arange(count)[None]
        mask = torch.full((count, count), float("-inf")).triu(1)[None, None]
        rotations = self.model.rotary_emb(x[None], positions)
        out = self.block(x[None], attention_mask=mask, position_ids=positions, position_embeddings=rotations)
        return (out[0] if isinstance(out, tuple) else out)[0]

    def logits(self, out):
        return self.head(self.norm(out))


def make(name):
    random = torch.Generator().manual_seed(hash_of(name) % 2**32)
    own = CASES[name]
    tensors, extra = weights(name, own)
    tensors = {key.replace(own, LAST): value for key, value in tensors.items()}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        model = load(name, tensors, pathlib.Path(folder))
        predictor = Predictor(model, extra)
        ids = torch.randint(3, model.config.vocab_size, (TOKENS,), generator=random)
        hidden = predictor.model(ids[None]).last_hidden_state[0]
        out = predictor(ids[1:], hidden[:-1])
        gold = {"ids": ids.int(), "logits": predictor.logits(out)}
        tokens, states, drafted = ids[1:], hidden[:-1], []
        for _ in range(DRAFTED):
            last = out[-1:]
            drafted.append(predictor.logits(last))
            tokens = torch.cat([tokens, drafted[-1].argmax(-1)])
            states = torch.cat([states, last])
            out = predictor(tokens, states)
        gold["draft"] = tokens[TOKENS - 1 :].int()
        gold["draft_logits"] = torch.cat(drafted[1:])
    save_file({key: value.contiguous() for key, value in gold.items()}, GOLDENS / "mtp" / f"{name}.safetensors")
    print(name, "deviation of logits", float(gold["logits"].std()), "draft", gold["draft"].tolist())


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        make(case)
