"""Makes tests/goldens/prompt_vectors: random vectors as inputs_embeds of models in tests/goldens/arch, and their logits.

Needs torch, transformers and safetensors. Run with names of architectures to make only these.
"""

import sys
import tempfile

import torch
from arch_models import GOLDENS, hash_of, load
from safetensors.torch import save_file

# One of each kind: embeddings that are used as they are, scaled by the embedding module (gemma2, xglm), scaled after
# it (granite), normed (bloom), projected (opt-2), with learned positions (gpt2), read again by later layers (zamba2-1).
CASES = ["bloom", "gemma2", "gpt2", "granite", "llama", "minicpm3-1", "opt-2", "recurrent_gemma", "xglm", "zamba2-1"]


def make(name):
    random = torch.Generator().manual_seed(hash_of(name) % 2**32)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        model = load(name, folder)
        embedding = model.get_input_embeddings()
        ids = torch.randint(model.config.vocab_size, (1, 9), generator=random)
        # About as large as the model's own embeddings.
        size = embedding(ids).std()
        vectors = torch.randn((1, 9, embedding.weight.shape[1]), generator=random) * size
        logits = model(inputs_embeds=vectors).logits[0]
    folder = GOLDENS / "prompt_vectors"
    folder.mkdir(exist_ok=True)
    save_file({"vectors": vectors[0].contiguous(), "logits": logits.contiguous()}, folder / f"{name}.safetensors")


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        make(case)
