"""Makes tests/goldens/mtp: logits and drafts of the layer behind the last one that predicts further tokens.

The models are those of tests/goldens/arch with one layer less, whose last layer becomes the predicting one. Its other
tensors are in weights.json. The decoder layer and the norms are transformers' own; the wiring is that of DeepSeek-V3's
report (arXiv:2412.19437, section 2.2). Two things follow vLLM (deepseek_mtp.py, glm4_moe_mtp.py): the hidden states are
those behind the model's final norm, and the layer goes on from its own result before shared_head.norm.
Needs torch, transformers and safetensors.
"""

import json
import tempfile

import torch
from arch_models import GOLDENS, hash_of, load, weight
from safetensors.torch import save_file

CASES = ["deepseek_v3", "glm4_moe"]
TOKENS = 14
DRAFTED = 4


def rms_norm(like, rows):
    norm = type(like)(like.weight.shape[0], eps=like.variance_epsilon)
    norm.weight.data = rows.float()
    return norm


class Predictor:
    def __init__(self, model):
        rows = json.loads((GOLDENS / "mtp" / "weights.json").read_text())
        tensors = {row["name"].removeprefix("model.layers.2.").removesuffix(".weight"): weight(row) for row in rows}
        self.model = model.model
        self.head = model.lm_head
        self.block = self.model.layers[2]
        self.model.layers = self.model.layers[:2]
        self.enorm = rms_norm(self.model.norm, tensors["enorm"])
        self.hnorm = rms_norm(self.model.norm, tensors["hnorm"])
        self.norm = rms_norm(self.model.norm, tensors["shared_head.norm"])
        self.eh_proj = tensors["eh_proj"].float()

    # Row i has hidden state i and token i + 1.
    def __call__(self, tokens, hidden):
        embeddings = self.model.embed_tokens(tokens)
        x = torch.cat([self.enorm(embeddings), self.hnorm(hidden)], -1) @ self.eh_proj.T
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
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        model = load(name, folder)
        predictor = Predictor(model)
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
    for case in CASES:
        make(case)
