"""Runs the examples on the demo model. Those of other packages need a served model and the package."""

import asyncio
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import types

import pytest

from conftest import MODEL, ROOT

EXAMPLES = ROOT / "examples" / "python"


def run(name, *arguments):
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments], capture_output=True, text=True, timeout=120, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "name, expected",
    [
        ("basic.py", r"'Once upon a time' -> '.+'"),
        ("chat.py", r"Subtract 46 from 95\. -> 95 - 46 = 49"),
        ("embedding.py", r"\(256 numbers\)"),
        ("scoring.py", r"\d\.\d{3}  The capital of France is Paris\."),
        ("streaming.py", r"story 2: \+'.+'"),
        ("embeddings_search.py", r"sofa\.\n  \d\.\d+  The cat sleeps on the warm sofa\."),
        ("s2a.py", r"rewritten: .+\nanswer: .+"),
        ("beam_search.py", r"-\d+\.\d{3}  'The sea was .+'"),
        ("structured_outputs.py", r"regex: .+\d{4}-\d\d-\d\d\njson: .+'legs': \d.+\ngrammar: .+please bring \d"),
        ("lora.py", r"pirate: .+Ahoy"),
    ],
)
def test_example(name, expected):
    assert re.search(expected, run(name), re.S)


def test_example_of_classes(classifiers):
    assert len(re.findall(r"class [012] of 3 \(\d\.\d{3}\): ", run("classify.py", classifiers(3)))) == 3


@pytest.fixture(scope="module")
def served():
    if "SLUICE_BIN" not in os.environ:
        pytest.skip("SLUICE_BIN does not name a program to serve with")
    sys.path.append(str(ROOT / "tests" / "e2e"))
    serving = importlib.import_module("serving")
    with serving.Server() as server:
        yield server


@pytest.mark.parametrize(
    "name, package, path",
    [("langchain_app.py", "langchain_openai", "/v1"), ("llamaindex_app.py", "llama_index", "")],
)
def test_app(name, package, path, served):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    assert len(run(name, served.url + path, served.name).strip()) > 5


class Serve:
    """Stands for ray.serve, which is larger than all other packages of the tests together."""

    def deployment(self, **options):
        def decorate(cls):
            cls.deployment_options = options
            cls.options = classmethod(lambda c, **more: type(c.__name__, (c,), {"deployment_options": options | more}))
            cls.bind = classmethod(lambda c, *arguments: (c, arguments))
            return cls

        return decorate


def test_ray_serve(monkeypatch):
    """The file of Ray Serve is imported and its replica answers, under a stand-in for the package."""
    starlette = pytest.importorskip("starlette.requests")
    ray = types.ModuleType("ray")
    ray.serve = Serve()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    module = importlib.import_module("ray_serve_app")  # "ray_serve_app.py"
    cls, arguments = module.app({"model": str(MODEL), "replicas": "3", "threads": "1"})
    assert cls.deployment_options["num_replicas"] == 3
    assert cls.deployment_options["ray_actor_options"] == {"num_cpus": 1}
    replica = cls(*arguments)

    async def ask(body):
        async def receive():
            return {"type": "http.request", "body": json.dumps(body).encode()}

        response = await replica(starlette.Request({"type": "http", "method": "POST", "headers": []}, receive))
        if response.status_code != 200:
            return response.status_code, response.body.decode()
        return 200, "".join([piece async for piece in response.body_iterator])

    async def run():
        await replica.check_health()
        return await asyncio.gather(
            ask({"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}),
            ask({"prompt": "Once", "temperature": -1}),
            ask({"prompt": "Once", "max_tokenz": 1}),
            ask({}),
        )

    good, range_, unknown, empty = asyncio.run(run())
    assert good[0] == 200 and good[1].startswith(",")
    assert range_[0] == 400 and "temperature" in range_[1]
    assert unknown[0] == 400 and "max_tokenz" in unknown[1]
    assert empty == (400, "KeyError: 'prompt'")
    replica.engine.shutdown()


def test_every_example_is_tested():
    text = pathlib.Path(__file__).read_text()
    assert all(f'"{path.name}"' in text for path in EXAMPLES.glob("*.py"))
