#!/usr/bin/env python3
"""Runs a peer's tests against `sluice serve`.

usage: run.py PEER FOLDER [PYTEST ARGUMENTS]     PEER: openai, llama.cpp; FOLDER: the peer's source

bench/compat/README.md says what is needed, and has the results."""

import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

from serving import Server  # noqa: E402

# Why a test is left out, by a pattern of its name.
OPENAI = {
    r"chat/test_completions.*(method|response)_(retrieve|update|delete)(\[|$)": "asks for a stored answer that does not exist: 404",
    r"chat/test_completions.*list_with_all_params": "limit 0, which OpenAI's reference forbids",
    r"chat/test_completions.*with_all_params": "audio",
    r"test_completions.*with_all_params": "logit_bias has a key that is no token id",
    r"test_models.*(method|response)_delete": "deletes a fine-tuned model",
    r"test_embeddings.*create\[(strict|aiohttp)\]": "the client asks for base64 and then checks for numbers",
}
WORDS = "asserts on the words or the tokenizer of the peer's model"
LLAMA = {
    r"test_basic.*props": "the name of a GGUF file",
    r"test_basic.*slots": "an older version: /slots answered only when asked for at the start",
    r"test_basic.*(split_model|no_webui)": WORDS,
    r"test_completion\.py.*(test_completion\[|test_completion_stream\[|openai_library|parallel_slots)": WORDS,
    r"test_completion\.py.*(response_fields1|n_probs_post)": "a beginning-of-sequence token; probabilities of samplers",
    r"test_completion\.py.*stream_vs_non_stream": "--seed is the seed of every request there",
    r"test_completion\.py.*cancel": "a longer context than the model has",
    r"test_chat_completion.*(test_chat_completion\[|test_chat_completion_stream\[|openai_library|logprobs_stream)": WORDS,
    r"test_chat_completion.*(apply_)?chat_template$": "names of llama.cpp's own templates",
    r"test_tokenize.*bos": WORDS,
    r"test_security.*(/models|cors)": "keys protect /models; other origins need --allowed-origins",
    r"test_embedding.*(pooling_none|too_long|usage)": WORDS,
    r"test_embedding.*mixed_input\[(-F|input[37])": "an empty text; lists that mix texts and token ids",
    r"test_ctx_shift": "-c is the limit of each sequence, and is not divided by -np",
    r"test_infill\.py.*input_extra$": WORDS,
}


def pytest_run(folder, files, left_out, environment, more):
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files, *more],
        cwd=folder, capture_output=True, text=True, env={**os.environ, **environment},
    ).stdout.splitlines()
    names = [name for name in tests if "::" in name]
    skipped = {name: why for name in names for pattern, why in left_out.items() if re.search(pattern, name)}
    options = [word for name in skipped for word in ("--deselect", name)]
    print(f"{len(names)} tests, {len(skipped)} left out:", flush=True)
    for why in sorted(set(skipped.values())):
        print(f"  {sum(1 for other in skipped.values() if other == why):3} {why}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files, *options, *more]
    return subprocess.run(command, cwd=folder, env={**os.environ, **environment}).returncode


def openai(folder, more):
    names = ["gpt-3.5-turbo-instruct", "*"]
    resources = "tests/api_resources/"
    texts = [resources + name for name in ("chat/test_completions.py", "test_completions.py", "test_models.py")]
    with Server("--served-model-name", names[0], "--served-model-name", names[1]) as server:
        worst = pytest_run(folder, texts, OPENAI, {"TEST_API_BASE_URL": server.url + "/v1"}, ["-n0", *more])
    with Server("--task", "embed", "--matryoshka", "--served-model-name", "a", "--served-model-name", "*") as server:
        files = [resources + "test_embeddings.py"]
        return max(worst, pytest_run(folder, files, OPENAI, {"TEST_API_BASE_URL": server.url + "/v1"}, ["-n0", *more]))


def llama(folder, more):
    names = ("basic", "completion", "chat_completion", "tokenize", "security", "embedding", "ctx_shift", "infill")
    files = [f"unit/test_{name}.py" for name in names]
    environment = {"LLAMA_SERVER_BIN_PATH": str(HERE / "llama_server.py")}
    return pytest_run(pathlib.Path(folder) / "tools/server/tests", files, LLAMA, environment, ["--timeout=60", *more])


def main():
    peers = {"openai": openai, "llama.cpp": llama}
    if len(sys.argv) < 3 or sys.argv[1] not in peers:
        sys.exit(__doc__)
    sys.exit(peers[sys.argv[1]](sys.argv[2], sys.argv[3:]))


if __name__ == "__main__":
    main()
