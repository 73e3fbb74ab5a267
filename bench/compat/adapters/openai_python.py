"""openai-python: its tests of resources ask the server that TEST_API_BASE_URL names, which conftest.py reads at once."""
import os

import sluice

PORT = sluice.free_port()
os.environ["TEST_API_BASE_URL"] = f"http://127.0.0.1:{PORT}/v1"
OPTIONS = {"openai_python_embeddings": ["--task", "embed", "--matryoshka"]}.get(os.environ["COMPAT_PEER"], [])
server = None


def pytest_configure(config):
    global server
    server = sluice.Server("--served-model-name", "gpt-4o-mini", "*", *OPTIONS, port=PORT)


def pytest_unconfigure(config):
    server.stop()
