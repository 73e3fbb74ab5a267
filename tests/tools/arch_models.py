"""Models of tests/goldens/arch in transformers, with the weights that tests/support/hashed_weights.h describes."""

import json
import pathlib
import shutil

import numpy
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

GOLDENS = pathlib.Path(__file__).parent.parent / "goldens"


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
