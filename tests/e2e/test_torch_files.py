"""Tests the program with torch.save files (torch_files.py). They must give the same logits as the same weights in
safetensors, and hostile files must not run any code."""

import collections
import json
import os
import shutil
import subprocess

import pytest

import serving
from torch_files import Storage, Tensor, read_safetensors, save, strides_of, torch


def transposed(data, rows, columns):
    """Returns bf16 [rows, columns] in column-major order."""
    values = [data[i : i + 2] for i in range(0, len(data), 2)]
    return b"".join(values[r * columns + c] for c in range(columns) for r in range(rows))


def state_dict(tensors):
    state, storages = collections.OrderedDict(), []
    for i, (name, (shape, data)) in enumerate(tensors.items()):
        strides = strides_of(shape)
        if name.endswith("layers.0.self_attn.k_proj.weight"):  # one tensor is stored transposed, as .t() leaves it
            data, strides = transposed(data, *shape), (1, shape[0])
        storages.append(Storage(str(i), torch.BFloat16Storage, data, 2))
        state[name] = Tensor(storages[-1], 0, tuple(shape), strides)
    state._metadata = collections.OrderedDict({"": {"version": 1}})
    return state, storages


def logits(folder, out, *options):
    subprocess.run(
        [serving.binary(), "logits", str(folder), "--ids", "5 6 7 8 9 10", "-o", str(out), *options],
        check=True, capture_output=True, text=True,
    )
    return read_safetensors(out)["logits"]


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "model"
    shutil.copytree(serving.MODEL, made, ignore=shutil.ignore_patterns("*.safetensors"))
    return made


@pytest.mark.parametrize("protocol", [2, 4])
def test_same_logits_as_safetensors(folder, tmp_path, protocol):
    tensors = read_safetensors(serving.MODEL / "model.safetensors")
    save(folder / "pytorch_model.bin", *state_dict(tensors), protocol)
    refused = subprocess.run([serving.binary(), "inspect", str(folder)], capture_output=True, text=True)
    assert refused.returncode == 1 and "--allow-bin" in refused.stderr
    assert logits(folder, tmp_path / "a", "--allow-bin") == logits(serving.MODEL, tmp_path / "b")


def test_shards(folder, tmp_path):
    tensors = read_safetensors(serving.MODEL / "model.safetensors")
    names = list(tensors)
    weight_map = {}
    for i, part in enumerate((names[: len(names) // 2], names[len(names) // 2 :])):
        shard = f"pytorch_model-{i + 1:05}-of-00002.bin"
        save(folder / shard, *state_dict({name: tensors[name] for name in part}))
        weight_map |= {name: shard for name in part}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    assert logits(folder, tmp_path / "a", "--allow-bin") == logits(serving.MODEL, tmp_path / "b")


def test_nothing_is_run(folder, tmp_path):
    canary = tmp_path / "canary"

    class Hostile:
        def __reduce__(self):
            return (os.system, (f"touch {canary}",))

    save(folder / "pytorch_model.bin", {"model.embed_tokens.weight": Hostile()}, [])
    answer = subprocess.run([serving.binary(), "inspect", str(folder), "--allow-bin"], capture_output=True, text=True)
    assert answer.returncode == 1 and "posix.system" in answer.stderr and not canary.exists()
