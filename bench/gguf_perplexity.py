"""Compares the demo model's perplexity in Sluice and llama.cpp for every type that llama.cpp can quantize to.

usage: python bench/gguf_perplexity.py [--sluice build/release/bin/sluice] [--documents 40] [--types q4_0,q4_k_m,...]

Both programs read the same file. Needs numpy, gguf and llama-cpp-python. Creates files under build/bench-models. Prints
a table and fails if a pair differs by more than half a percent.
"""
import argparse
import ctypes
import json
import pathlib
import subprocess
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/tools"))
import make_gguf  # noqa: E402

# llama.cpp's file type numbers (llama_ftype).
TYPES = {"f32": 0, "f16": 1, "bf16": 32, "q4_0": 2, "q4_1": 3, "q5_0": 8, "q5_1": 9, "q8_0": 7, "q2_k": 10,
         "q3_k_m": 12,
         "q4_k_m": 15, "q5_k_m": 17, "q6_k": 18, "iq4_nl": 25, "iq4_xs": 30, "iq3_s": 26, "iq3_xxs": 23, "iq2_s": 28,
         "iq2_xs": 20, "iq2_xxs": 19, "iq1_m": 31, "iq1_s": 24, "tq1_0": 36, "tq2_0": 37, "mxfp4": 7, "nvfp4": 7}
# llama.cpp writes these only with an importance matrix. An all-ones matrix weighs all inputs equally.
NEEDS_IMPORTANCE = {"iq3_xxs", "iq2_s", "iq2_xs", "iq2_xxs", "iq1_m", "iq1_s"}
# q8_0 files whose layer matrices have another type (ggml_type); llama.cpp's own file types use it only for experts.
IN_LAYERS = {"mxfp4": 39, "nvfp4": 40}


def load_llama(path):
    import llama_cpp as L
    L.llama_log_set(quiet, None)
    model = L.llama_model_load_from_file(str(path).encode(), L.llama_model_default_params())
    params = L.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 2048
    params.n_threads = params.n_threads_batch = 2
    return L, model, L.llama_init_from_model(model, params)


def llama_perplexity(path, documents):
    L, model, context = load_llama(path)
    vocab = L.llama_model_get_vocab(model)
    size, total, scored = L.llama_vocab_n_tokens(vocab), 0.0, 0
    for text in documents:
        raw = text.encode()
        ids = (ctypes.c_int32 * (len(raw) + 8))()
        n = L.llama_tokenize(vocab, raw, len(raw), ids, len(ids), True, True)
        batch = L.llama_batch_init(n, 0, 1)
        for i in range(n):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = ids[i], i, 1, 1
            batch.seq_id[i][0] = 0
        batch.n_tokens = n
        L.llama_memory_clear(L.llama_get_memory(context), True)
        assert L.llama_decode(context, batch) == 0
        rows = np.stack([np.ctypeslib.as_array(L.llama_get_logits_ith(context, i), shape=(size,))
                             for i in range(n - 1)])
        rows = rows.astype(np.float64)
        top = rows.max(1)
        log_sum = top + np.log(np.exp(rows - top[:, None]).sum(1))
        total -= (rows[np.arange(n - 1), list(ids[1:n])] - log_sum).sum()
        scored += n - 1
        L.llama_batch_free(batch)
    L.llama_free(context)
    L.llama_model_free(model)
    return float(np.exp(total / scored)), scored


def importance_of_ones(L, source):
    import gguf
    rows = [(t.name.encode(), np.ones(t.shape[0], np.float32)) for t in gguf.GGUFReader(source).tensors]
    entries = (L.llama_model_imatrix_data * (len(rows) + 1))()
    for entry, (name, ones) in zip(entries, rows):
        entry.name, entry.size = name, ones.size
        entry.data = ones.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    return entries, rows


def quantize(source, path, kind):
    import llama_cpp as L
    L.llama_log_set(quiet, None)
    params = L.llama_model_quantize_default_params()
    params.ftype, params.nthread = TYPES[kind], 2
    if kind in NEEDS_IMPORTANCE:
        params.imatrix, keep = importance_of_ones(L, source)  # noqa: F841, its arrays are used below
    if kind in IN_LAYERS:
        params.tt_overrides = (L.llama_model_tensor_override * 2)(
            L.llama_model_tensor_override(rb"blk\.\d+\.(attn|ffn)_.*weight", IN_LAYERS[kind]))
    return L.llama_model_quantize(str(source).encode(), str(path).encode(), ctypes.byref(params)) == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sluice", default=str(ROOT / "build/release/bin/sluice"))
    parser.add_argument("--documents", type=int, default=40)
    parser.add_argument("--types", default=",".join(TYPES))
    a = parser.parse_args()
    folder = ROOT / "build/bench-models"
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "minnow-6m-f32.gguf"
    make_gguf.write(ROOT / "models/minnow-6m", source)
    lines = (ROOT / "tests/goldens/minnow/chat-test.jsonl").read_text().splitlines()[:a.documents]
    (folder / "documents.jsonl").write_text("\n".join(lines) + "\n")
    documents = [json.loads(line)["text"] + "<|endoftext|>" for line in lines]
    failed = False
    print("| type | file, KiB | Sluice | llama.cpp | difference |\n| --- | --- | --- | --- | --- |")
    for kind in a.types.split(","):
        path = folder / f"minnow-6m-{kind}.gguf"
        if kind != "f32" and not quantize(source, path, kind):
            print(f"| {kind} | | | llama.cpp cannot write it | |")
            continue
        run = subprocess.run([a.sluice, "bench", "perplexity", str(path), "--file",
                              str(folder / "documents.jsonl")], capture_output=True, text=True)
        if run.returncode != 0:
            sys.exit(f"{kind}: {run.stderr}")
        ours = json.loads(run.stdout.strip().splitlines()[-1])
        theirs, scored = llama_perplexity(path, documents)
        assert scored == ours["scored_tokens"], (scored, ours)
        difference = ours["perplexity"] / theirs - 1
        failed |= abs(difference) > 0.005
        print(f"| {kind} | {path.stat().st_size >> 10} | {ours['perplexity']:.4f} | {theirs:.4f} | {difference:+.2%} |",
              flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    import llama_cpp

    @llama_cpp.llama_log_callback
    def quiet(level, text, data):
        pass

    main()
