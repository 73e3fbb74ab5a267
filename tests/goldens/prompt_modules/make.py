"""Makes the goldens of prompts with modules with transformers: NAME.safetensors for each architecture, and minnow.json.

usage: make.py FOLDER_OF_HASHED_WEIGHTS_PY

Each text is computed in one piece, without a cache. `position_ids` are given, and a mask lets the tokens of a module
see only each other; the rest of the text sees everything before it. Runs where torch and transformers are installed.
"""
import json, pathlib, random, sys, tempfile
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[2]
NEW = 8  # generated tokens
# Lengths and positions of modules, in the order of their positions, and the length of the text behind them.
CASES = [([(19, 0), (5, 40), (32, 64), (13, 100)], 9), ([(16, 8), (1, 24), (47, 31)], 1), ([(37, 0)], 6)]


def logits_of(model, ids, modules):
    """Logits of every token. `modules` are pairs of length and position."""
    count, first, positions = len(ids), 0, []
    sees = torch.ones(count, count, dtype=torch.bool).tril()
    for length, position in modules:
        sees[first:first + length, :first] = False
        positions += range(position, position + length)
        first += length
    end = max(p + n for n, p in modules)
    positions += range(end, end + count - first)
    mask = torch.zeros(count, count).masked_fill(~sees, torch.finfo(torch.float32).min)
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), position_ids=torch.tensor([positions]),
                     attention_mask=mask[None, None], use_cache=False).logits[0].float()


def generate(model, ids, modules):
    """The generated ids, and the logits that each one was chosen from."""
    ids, rows = list(ids), []
    for _ in range(NEW):
        rows.append(logits_of(model, ids, modules)[-1])
        ids.append(int(rows[-1].argmax()))
    return ids[-NEW:], torch.stack(rows)


def architecture(name, write_checkpoint):
    golden = {}
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(ROOT / "tests/goldens/arch" / name, folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    draw = random.Random(7)
    for number, (modules, own) in enumerate(CASES):
        ids = [draw.randrange(3, model.config.vocab_size) for _ in range(sum(n for n, _ in modules) + own)]
        generated, rows = generate(model, ids, modules)
        golden |= {f"ids_{number}": torch.tensor(ids).int(), f"modules_{number}": torch.tensor(modules).int().flatten(),
                   f"gen_{number}": torch.tensor(generated).int(), f"logits_{number}": rows[:1].contiguous()}
    save_file(golden, HERE / f"{name}.safetensors")


def minnow():
    folder = ROOT / "models/minnow-6m"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    texts = ["Once upon a time there was a fox named Finn who baked bread. ",
             "The capital of France is Paris. The capital of Italy is Rome.",
             "Mia had a red boat. She sailed to the island every Sunday with her brother Tom, and they looked for shells. ",
             "A dog"]
    cases = []
    for order, positions, own in [((0, 1, 2), (0, 100, 200), "One day, Finn"), ((2, 0), (200, 0), "One day, Finn"),
                                  ((3, 2, 1, 0), (None,) * 4, "What is the capital of"), ((1,), (0,), " The")]:
        modules, end = [], 0
        for text, position in zip(order, positions):
            ids = tokenizer(texts[text])["input_ids"]
            position = end if position is None else position
            end = position + len(ids)
            modules.append({"text": texts[text], "ids": ids, "position": position})
        placed = sorted(modules, key=lambda m: m["position"])
        prompt = [id for m in placed for id in m["ids"]] + tokenizer(own)["input_ids"]
        generated, rows = generate(model, prompt, [(len(m["ids"]), m["position"]) for m in placed])
        top = rows.log_softmax(-1).topk(4)
        cases.append({"modules": [{"prompt": m["text"], "position": m["position"]} for m in modules], "prompt": own,
                      "tokens": len(prompt), "generated": generated,
                      "top": [[[int(i), round(float(v), 5)] for v, i in zip(*row)] for row in zip(top.values, top.indices)]})
    (HERE / "minnow.json").write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    from hashed_weights import write_checkpoint
    for each in ("gpt2", "qwen3", "deepseek_v2"):
        architecture(each, write_checkpoint)
    minnow()
