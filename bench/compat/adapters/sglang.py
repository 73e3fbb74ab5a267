"""SGLang: puts a function of our own where its tests import popen_launch_server, which starts SGLang's server."""
import os
import pathlib
import unittest

import sluice
import stubs

KEPT = {"--context-length": "--max-model-len", "--context-len": "--max-model-len", "--served-model-name": None,
        "--max-running-requests": "--max-num-seqs", "--tool-call-parser": None, "--reasoning-parser": None}
running = {}


def options(other_args) -> list[str]:
    args, out = [str(arg) for arg in other_args], []
    for at, arg in enumerate(args):
        if arg in KEPT:
            value = args[at + 1]
            out += [KEPT[arg] or arg, sluice.context(value) if "context" in arg else value]
        elif arg == "--is-embedding":
            out += ["--task", "embed"]
    return out


def popen_launch_server(model, base_url, timeout=0, api_key=None, other_args=(), env=None, **_):
    args = options(other_args)
    if "--served-model-name" not in args:
        args += ["--served-model-name", model]
    if api_key:
        args += ["--api-key", api_key]
    # Tests of chat streams expect a token in every chunk, also in the last one: no token ends an answer.
    ending = "::TestOpenAIServer::" not in os.environ["PYTEST_CURRENT_TEST"]
    server = sluice.Server(*args, "--served-model-name", "*", "--block-size", "8",
                           "--override-generation-config.max_new_tokens", "512", port=int(base_url.rsplit(":", 1)[1]),
                           model=sluice.MODEL if ending else sluice.ENDLESS)
    running[server.pid] = server
    return server.process


def kill_process_tree(pid, *args, **kwargs):
    if server := running.pop(pid, None):
        server.stop()


def nothing(*args, **kwargs):
    pass


names = {
    "DEFAULT_SMALL_MODEL_NAME_FOR_TEST": "meta-llama/Llama-3.2-1B-Instruct",
    "DEFAULT_MODEL_NAME_FOR_TEST": "meta-llama/Llama-3.1-8B-Instruct",
    "DEFAULT_SMALL_EMBEDDING_MODEL_NAME_FOR_TEST": "Alibaba-NLP/gte-Qwen2-1.5B-instruct",
    "DEFAULT_TIMEOUT_FOR_SERVER_LAUNCH": 60,
    "DEFAULT_URL_FOR_TEST": f"http://127.0.0.1:{sluice.free_port()}",
}
kits = pathlib.Path(os.environ["COMPAT_CHECKOUT"]) / "python" / "sglang" / "test" / "kits"
stubs.install("sglang", own={
    "sglang.test.test_utils": {
        **names, "popen_launch_server": popen_launch_server, "CustomTestCase": unittest.TestCase,
        "is_in_ci": lambda: False, "is_in_amd_ci": lambda: False,
    },
    "sglang.test.ci.ci_register": {"register_cuda_ci": nothing, "register_amd_ci": nothing},
    "sglang.srt.utils": {"kill_process_tree": kill_process_tree},
    "sglang.srt.utils.hf_transformers_utils": {"get_tokenizer": lambda *args, **kwargs: sluice.tokenizer()},
}, real={f"sglang.test.kits.{path.stem}": path for path in kits.glob("*.py")})
stubs.install("torch")
