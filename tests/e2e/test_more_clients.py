"""Clients that need another version of OpenAI's package than the other tests, in an environment of their own."""

import os
import pathlib
import subprocess

import pytest

import serving

CLIENTS = pathlib.Path(__file__).parent / "clients"
PYTHON = serving.ROOT / ".venv-clients" / "bin" / "python"
ENVIRONMENT = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1"}


def run(name, *arguments):
    assert PYTHON.exists(), f"{PYTHON} does not exist; ./dev setup makes it"
    done = subprocess.run(
        [PYTHON, CLIENTS / f"{name}_client.py", *arguments], capture_output=True, text=True, timeout=300, env=ENVIRONMENT
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["llama_index", "lm_eval"])
def test_client(server, name):
    run(name, server.url, server.name)


def test_litellm(server):
    with serving.Server("--task", "embed", "--dtype", "float32") as embedder:
        run("litellm", server.url, server.name, embedder.url)
