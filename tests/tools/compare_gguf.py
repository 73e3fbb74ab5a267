"""Compares Sluice and llama.cpp with the goldens on GGUF files made from them: logits for tests/goldens/arch, vectors
and scores for tests/goldens/embedding.

usage: compare_gguf.py [--sluice build/release/bin/sluice] [NAME...]

Prints the largest error of each program, relative to the largest logit of its row. Fails if Sluice's error is above
1e-3. Needs numpy and gguf; llama.cpp's column needs llama-cpp-python. Imports hashed_weights.py from tools/, a sibling
of the folder that SLUICE_GOLDENS names.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

import make_gguf

ROOT = pathlib.Path(__file__).resolve().parents[2]


def llama_logits(path, ids):
    import llama_cpp as L
    L.llama_log_set(quiet(), None)
    model = L.llama_model_load_from_file(str(path).encode(), L.llama_model_default_params())
    if not model:
        return None
    params = L.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 256
    params.type_k = params.type_v = 0  # fp32
    params.flash_attn_type = 0
    context = L.llama_init_from_model(model, params)
    batch = L.llama_batch_init(len(ids), 0, 1)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(token), i, 1, 1
        batch.seq_id[i][0] = 0
    batch.n_tokens = len(ids)
    assert L.llama_decode(context, batch) == 0
    size = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
    rows = [np.ctypeslib.as_array(L.llama_get_logits_ith(context, i), shape=(size,)).copy() for i in range(len(ids))]
    L.llama_free(context)
    L.llama_model_free(model)
    return np.array(rows)


def llama_vector(path, ids):
    import llama_cpp as L
    L.llama_log_set(quiet(), None)
    model = L.llama_model_load_from_file(str(path).encode(), L.llama_model_default_params())
    if not model:
        return None
    params = L.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 256
    params.embeddings = True
    params.flash_attn_type = 0
    context = L.llama_init_from_model(model, params)
    batch = L.llama_batch_init(len(ids), 0, 1)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(token), i, 1, 1
        batch.seq_id[i][0] = 0
    batch.n_tokens = len(ids)
    assert L.llama_decode(context, batch) == 0
    scores = L.llama_pooling_type(context) == L.LLAMA_POOLING_TYPE_RANK
    size = L.llama_model_n_cls_out(model) if scores else L.llama_model_n_embd(model)
    vector = np.ctypeslib.as_array(L.llama_get_embeddings_seq(context, 0), shape=(size,)).copy()
    L.llama_free(context)
    L.llama_model_free(model)
    return vector[None]


def quiet(kept=[]):
    import llama_cpp
    if not kept:
        kept.append(llama_cpp.llama_log_callback(lambda level, text, data: None))
    return kept[0]


def read_any(path):
    import struct
    data = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    types = {"F32": np.float32, "I64": np.int64, "I32": np.int32}
    return {name: np.frombuffer(data[8 + size + row["data_offsets"][0]:8 + size + row["data_offsets"][1]],
                                types[row["dtype"]]).reshape(row["shape"])
            for name, row in json.loads(data[8:8 + size]).items() if name != "__metadata__"}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--sluice", default=str(ROOT / "build/release/bin/sluice"))
    a = parser.parse_args()
    sys.path.insert(0, str(pathlib.Path(os.environ["SLUICE_GOLDENS"]).parent / "tools"))
    import hashed_weights
    goldens, failed = ROOT / "tests/goldens", False
    with tempfile.TemporaryDirectory() as temporary:
        for folder in sorted((goldens / "arch").iterdir()) + sorted((goldens / "embedding").iterdir()):
            vectors = folder.parent.name == "embedding"
            config = json.loads((folder / "config.json").read_text())
            known = config["architectures"][0] in make_gguf.ARCHS
            if not known or (a.names and folder.name not in a.names):
                continue
            work = pathlib.Path(temporary) / folder.name
            hashed_weights.write_checkpoint(folder, work)
            path = work / "model.gguf"
            try:
                make_gguf.write(work, path, vocab=False)
            except (AssertionError, SystemExit) as e:
                print(f"{folder.name:20} cannot be converted: {e}")
                continue
            golden = read_any(folder / "golden.safetensors")
            text = next((i for i in "012" if not golden.get(f"types_{i}", np.zeros(1)).any()), None)
            if text is None:
                print(f"{folder.name:20} has token types in all texts")
                continue
            ids = golden[f"ids_{text}"].ravel()
            wanted = golden[f"mean_{text}" if vectors and "logits_0" not in golden else f"logits_{text}"]
            wanted = wanted.reshape(1 if vectors else len(ids), -1)

            def error(rows):
                return float((np.abs(rows - wanted) / np.abs(wanted).max(1, keepdims=True)).max())

            try:
                peer = (llama_vector if vectors else llama_logits)(path, ids)
                theirs = f"{error(peer):.1e}" if peer is not None else "refused"
            except ImportError:
                theirs = "-"
            run = subprocess.run([a.sluice, "logits", str(path), "--ids", " ".join(map(str, ids)), "-o",
                                  str(work / "out.safetensors"), "--kv-cache-dtype", "float32"],
                                 capture_output=True, text=True)
            if run.returncode != 0:
                ours, failed = run.stderr.strip()[-300:], True
            else:
                value = error(read_any(work / "out.safetensors")["vector" if vectors else "logits"])
                ours, failed = f"{value:.1e}", failed or value > 1e-3
            print(f"{folder.name:20} llama.cpp {theirs:8}  sluice {ours}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
