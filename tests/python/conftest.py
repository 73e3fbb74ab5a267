"""Fixtures of the Python package's tests. They run against the package of the build, or against an installed one."""

import functools
import json
import pathlib
import shutil
import struct
import time

import numpy
import pytest
import sluice

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "minnow-6m"


def pytest_terminal_summary(terminalreporter):
    for report in terminalreporter.stats.get("skipped", []):
        terminalreporter.write_line(f"skipped {report.nodeid}: {report.longrepr[2]}")


@pytest.fixture(scope="session")
def llm():
    """The demo model in float32: greedy answers must equal the reference's exactly."""
    with sluice.LLM(str(MODEL), dtype="float32", enable_lora=True) as model:
        yield model


@pytest.fixture(scope="session")
def embedder():
    with sluice.LLM(str(MODEL), task="embed", matryoshka=True, dtype="float32") as model:
        yield model


def golden(name):
    return [json.loads(line) for line in (ROOT / "tests/goldens/minnow" / name).read_text().splitlines()]


@pytest.fixture(scope="session")
def goldens():
    return golden("minnow-6m-greedy.jsonl")


@pytest.fixture(scope="session")
def idle(llm):
    """Waits until no request of the model runs or waits."""

    def wait(model=None, timeout_s=10):
        core = (model or llm)._session.core
        end = time.monotonic() + timeout_s
        calm = 0
        while calm < 15:  # a request that was just taken may not be counted yet
            calm = calm + 1 if core.unfinished() == 0 else 0
            assert calm > 0 or time.monotonic() < end, f"{core.unfinished()} sequences still run"
            time.sleep(0.01)

    return wait


@pytest.fixture(scope="session")
def classifiers(tmp_path_factory):
    """Makes the demo model a model with so many classes: a head of random weights, the labels of its architecture."""

    @functools.cache
    def make(labels):
        folder = tmp_path_factory.mktemp(f"classifier{labels}")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(MODEL / name, folder)
        config = json.loads((MODEL / "config.json").read_text())
        config["architectures"] = ["LlamaForSequenceClassification"]
        config["id2label"] = {str(i): f"LABEL_{i}" for i in range(labels)}
        (folder / "config.json").write_text(json.dumps(config))
        header, data = _read_safetensors(MODEL / "model.safetensors")
        header.pop("__metadata__", None)
        head = numpy.random.default_rng(1).normal(size=(labels, config["hidden_size"])).astype("<f4").tobytes()
        header["score.weight"] = {
            "dtype": "F32",
            "shape": [labels, config["hidden_size"]],
            "data_offsets": [len(data), len(data) + len(head)],
        }
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data + head)
        return folder

    return make


def _read_safetensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]
