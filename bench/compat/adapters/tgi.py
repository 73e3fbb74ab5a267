"""Text Generation Inference: stands for the fixtures of its conftest.py, which start the server in a container.

The tests compare answers with stored ones, which are another model's. Here an answer must have the stored one's shape:
the same fields with the same types. A test that fails since it asks for another model's words is looked at, too: if its
variable `response` has the shape, it counts as "other model's words"."""
import contextlib
import json
import os
import pathlib

import pytest
from text_generation import AsyncClient

import sluice

SNAPSHOTS = pathlib.Path(os.environ["COMPAT_CHECKOUT"]) / "integration-tests" / "models" / "__snapshots__"
# Fields whose type depends on what a model says.
FREE = {"text", "content", "generated_text", "tool_calls", "arguments", "finish_reason", "logprobs", "seed"}


class Handle:
    def __init__(self, server):
        self.client = AsyncClient(server.url, timeout=60)

    async def health(self, timeout=0):
        await self.client.generate("test")


@pytest.fixture(scope="session")
def launcher():
    @contextlib.contextmanager
    def launch(model_id, *args, **options):
        server = sluice.Server("--served-model-name", model_id, "*")
        try:
            yield Handle(server)
        finally:
            server.stop()

    return launch


@pytest.fixture(scope="module")
def generate_load():
    import asyncio

    async def load(client, prompt, max_new_tokens, n, **options):
        calls = [client.generate(prompt, max_new_tokens=max_new_tokens, decoder_input_details=True) for _ in range(n)]
        return await asyncio.gather(*calls)

    return load


def plain(answer):
    """An answer of the client, of another library, or a list of such, as JSON."""
    if isinstance(answer, list):
        return [plain(item) for item in answer]
    for method in ("model_dump", "dict"):
        if hasattr(answer, method) and not isinstance(answer, dict):
            return json.loads(json.dumps(getattr(answer, method)(), default=str))
    return json.loads(json.dumps(answer, default=str))


def differences(stored, answer, path=""):
    if isinstance(stored, dict) and isinstance(answer, dict):
        for key in stored.keys() | answer.keys():
            if stored.get(key) is not None and key not in FREE:
                if answer.get(key) is None:
                    yield f"{path}.{key} is missing"
                else:
                    yield from differences(stored[key], answer[key], f"{path}.{key}")
    elif isinstance(stored, list) and isinstance(answer, list):
        if stored and answer:
            yield from differences(stored[0], answer[0], path + "[0]")
        elif stored:
            yield f"{path} is empty"
    elif isinstance(stored, (int, float)) != isinstance(answer, (int, float)) or isinstance(stored, str) != isinstance(
        answer, str
    ):
        yield f"{path} is {answer!r}, and was {stored!r}"


def stored_answer(request):
    name = request.node.name.split("[")[0]
    path = SNAPSHOTS / pathlib.Path(request.node.path).stem / f"{name}.json"
    return json.loads(path.read_text())


class Shape:
    def __init__(self, stored):
        self.stored = stored

    def __eq__(self, answer):
        self.found = list(differences(self.stored, plain(answer)))
        return not self.found

    def __repr__(self):
        return f"the stored shape; {self.found}"


@pytest.fixture
def response_snapshot(request):
    return Shape(stored_answer(request))


generous_response_snapshot = ignore_logprob_response_snapshot = response_snapshot


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if call.excinfo is None or not call.excinfo.errisinstance(AssertionError):
        return
    for entry in call.excinfo.traceback:
        local = entry.frame.f_locals
        answer = local.get("response", local.get("responses"))
        if answer is not None and isinstance(shape := local.get("response_snapshot"), Shape):
            if shape == answer:
                report.user_properties.append(("shape", "the same"))
