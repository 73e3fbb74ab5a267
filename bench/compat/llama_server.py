#!/usr/bin/env python3
"""Takes the place of llama-server: runs `sluice serve` with its arguments, but with a model of this repository.

llama.cpp's tests start the program that LLAMA_SERVER_BIN_PATH names, with models of a hub."""

import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLUICE = os.environ.get("SLUICE_BIN", str(ROOT / "build" / "release" / "bin" / "sluice"))
MODEL = str(ROOT / "models" / "minnow-6m")
LEFT_OUT = {"--hf-repo", "--hf-file", "--model-url", "--model", "--pooling"}  # with their values


def main():
    arguments, given = [], iter(sys.argv[1:])
    for word in given:
        if word in LEFT_OUT:
            next(given)
        else:
            arguments.append(word)
    # The tests name models that are not served; llama-server takes any name.
    arguments += ["--served-model-name", *([] if "--alias" in arguments else ["minnow-6m"]), "*"]
    os.execv(SLUICE, [SLUICE, "serve", MODEL, *arguments])


if __name__ == "__main__":
    main()
