"""Prints rows of tests/goldens/contrastive.jsonl: texts of contrastive searches of transformers.

Needs torch and transformers 4.49: later releases do not have this search in their library, and that release has none
for models with recurrent layers. plain_search() takes its place there, with any release that has the model.

    python make_contrastive_goldens.py minnow-6m llama mistral
    python make_contrastive_goldens.py mamba2
"""

import json
import pathlib
import shutil
import sys
import tempfile

import torch
from arch_models import GOLDENS, weight
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from transformers.generation import utils

MODELS = GOLDENS.parent.parent / "models"
RECURRENT = {"mamba2"}
MOST_TOKENS = 20
LIBRARY_RANKING = getattr(utils, "_ranking_fast", None)
LEAST_MARGIN = 2e-4  # between the best scores of a step, and around the last candidate: others may come out either way


def load(name, folder):
    path = MODELS / name
    if not path.exists():
        path = GOLDENS / "arch" / name
        shutil.copy(path / "config.json", folder)
        rows = json.loads((path / "weights.json").read_text())
        save_file({row["name"]: weight(row) for row in rows}, f"{folder}/model.safetensors", metadata={"format": "pt"})
        path = folder
    return AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").float().eval()


def prompts(name):
    if name == "minnow-6m":
        lines = (GOLDENS / "minnow" / "minnow-6m-beams.jsonl").read_text().splitlines()
        return [json.loads(line)["prompt_ids"] for line in lines[::3]]
    random = torch.Generator().manual_seed(7)
    return [torch.randint(3, 300, (length,), generator=random).tolist() for length in (9, 21, 40, 13, 27, 33)]


def processed(logits, ids, penalty):
    """The logits with transformers' repetition penalty."""
    logits = logits.float().clone()
    if penalty != 1:
        seen = torch.tensor(sorted(set(ids)))
        logits[seen] = torch.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
    return logits


def plain_search(model, prompt, alpha, top_k, most, penalty, ends):
    """Contrastive search without a cache. Also returns the least margin of a choice."""
    ids, margin = list(prompt), 1.0

    def run(text):
        out = model(torch.tensor([text]), output_hidden_states=True)
        states = out.hidden_states[-1][0]
        return out.logits[0, -1], states / states.norm(dim=-1, keepdim=True)

    logits, _ = run(ids)
    for _ in range(most):
        probabilities = processed(logits, ids, penalty).softmax(-1)
        top = probabilities.topk(top_k + 1)
        margin = min(margin, (top.values[-2] / top.values[-1] - 1).item() / 10)
        best, runner_up = None, None
        for p, token in list(zip(top.values.tolist(), top.indices.tolist()))[:top_k]:
            after, states = run([*ids, token])
            score = (1 - alpha) * p - alpha * (states[:-1] @ states[-1]).max().item()
            if best is None or score > best[0]:
                best, runner_up = (score, token, after), best
            elif runner_up is None or score > runner_up[0]:
                runner_up = (score, token, after)
        margin = min(margin, best[0] - runner_up[0])
        ids.append(best[1])
        logits = best[2]
        if best[1] in ends:
            break
    return ids[len(prompt) :], margin


def library_search(model, prompt, alpha, top_k, most, penalty, ends):
    """That of transformers. Its margin does not look at the last candidate."""
    margins = []

    def ranking(*args):
        context, state, probabilities, _, alpha, width = args
        context, state = (x / x.norm(dim=2, keepdim=True) for x in (context, state))
        score = (1 - alpha) * probabilities.view(-1) - alpha * (context @ state.transpose(1, 2)).amax(dim=(1, 2))
        best = score.topk(2).values
        margins.append((best[0] - best[1]).item())
        return LIBRARY_RANKING(*args)

    utils._ranking_fast = ranking
    out = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones((1, len(prompt)), dtype=torch.long),
        penalty_alpha=alpha,
        top_k=top_k,
        max_new_tokens=most,
        repetition_penalty=float(penalty),
        do_sample=False,
        eos_token_id=ends,
        pad_token_id=0,
    )
    return out[0, len(prompt) :].tolist(), min(margins)


def settings():
    for alpha in (0.2, 0.6, 1.0):
        for top_k in (2, 4, 8):
            yield alpha, top_k, 1.0
    yield 0.6, 4, 1.3


def ends_of(name, model):
    ends = model.generation_config.eos_token_id if name == "minnow-6m" else 2
    return ends if isinstance(ends, list) else [ends]


def main():
    for name in sys.argv[1:]:
        search = plain_search if name in RECURRENT else library_search
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            model = load(name, folder)
            ends, texts = ends_of(name, model), prompts(name)
            for number, (alpha, top_k, penalty) in enumerate(settings()):
                first = number % len(texts)
                for prompt in texts[first:] + texts[:first]:
                    tokens, margin = search(model, prompt, alpha, top_k, MOST_TOKENS, penalty, ends)
                    if margin < LEAST_MARGIN:
                        continue
                    row = {"model": name, "alpha": alpha, "top_k": top_k, "repetition_penalty": penalty}
                    print(json.dumps({**row, "prompt": prompt, "tokens": tokens}), flush=True)
                    break


if __name__ == "__main__":
    main()
