#!/usr/bin/env python3
"""Stands for the program llama-server in llama.cpp's tests: becomes `sluice serve` with the bundled model and with the
same options. Only the options that name the test's model are dropped."""
import os
import sys

# The bundled model pools by the last token, whatever the test's model does.
NAMES_OF_MODELS = ("--pooling", "--model", "--model-url", "--hf-repo", "--hf-file", "--mmproj-url")


def translate(args: list[str]) -> list[str]:
    out, slots = [], 1
    if "--parallel" in args and "--kv-unified" not in args:
        slots = int(args[args.index("--parallel") + 1])
    at = 0
    while at < len(args):
        name, value = args[at], args[at + 1] if at + 1 < len(args) else ""
        at += 1
        if name in NAMES_OF_MODELS:
            at += 1
        elif name == "--ctx-size":  # of all slots together; Sluice's is of one sequence
            out += [name, str(min(int(value) // slots, int(os.environ["COMPAT_CONTEXT"])))]
            at += 1
        elif name == "--reranking":  # the bundled model has no head that scores: it ranks by its vectors
            out.append("--embedding")
        elif name != "--offline":
            out.append(name)
    return out


if __name__ == "__main__":
    binary = os.environ["COMPAT_BINARY"]
    options = translate(sys.argv[1:])
    name = [] if "--alias" in options else ["minnow-6m"]
    options += ["--served-model-name", *name, "*"]  # any name, as llama-server
    os.execv(binary, [binary, "serve", os.environ["COMPAT_MODEL"], *options])
