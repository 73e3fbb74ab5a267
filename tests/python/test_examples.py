"""Runs the examples on the demo model. Those of other packages need a served model and the package."""

import importlib
import os
import pathlib
import re
import subprocess
import sys

import pytest

from conftest import ROOT

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
    ],
)
def test_example(name, expected):
    assert re.search(expected, run(name), re.S)


@pytest.fixture(scope="module")
def served():
    if "SLUICE_BIN" not in os.environ:
        pytest.skip("SLUICE_BIN does not name a program to serve with")
    sys.path.append(str(ROOT / "tests" / "e2e"))
    serving = importlib.import_module("serving")
    with serving.Server() as server:
        yield server


@pytest.mark.parametrize(
    "name, package", [("langchain_app.py", "langchain_openai"), ("llamaindex_app.py", "llama_index.llms.openai_like")]
)
def test_app(name, package, served):
    try:
        importlib.import_module(package)
    except ImportError:
        pytest.skip(f"{package} is not installed")
    assert len(run(name, served.url + "/v1", served.name).strip()) > 5


def test_every_example_is_tested():
    text = pathlib.Path(__file__).read_text()
    assert all(f'"{path.name}"' in text for path in EXAMPLES.glob("*.py"))
