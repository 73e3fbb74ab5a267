"""Runs vLLM's own tests of its server against `sluice serve`, without vLLM, torch or a GPU.

It takes the place of vLLM's tests/utils.py, whose RemoteOpenAIServer starts `vllm serve` with a model of a hub: here it
starts `sluice serve` with a model of this repository under that model's name. For packages that are not installed there
are stand-ins. What tests of the server need of them is defined here; a test that calls anything else of them fails."""

import importlib.abc
import importlib.machinery
import json
import os
import pathlib
import re
import shutil
import struct
import sys
import tempfile
import types

import anthropic
import numpy
import openai
import pytest
from transformers import AutoTokenizer

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

from serving import MODEL, Server  # noqa: E402

SCRATCH = tempfile.TemporaryDirectory(prefix="sluice-compat-")
TOKENIZER = AutoTokenizer.from_pretrained(MODEL)
LONGEST = 32768  # tokens: more than any of the tests asks for
GREEDY = ["--override-generation-config", '{"temperature": 0}']  # every run of the tests gets the same answers
LABELS = {"apeach": ["Default", "Spoiled"], "reranker": ["relevant"]}  # by what the model's name has
# Options that Sluice refuses, and one that would take all that the demo model writes for thoughts; how many values they
# have. Tests of what they do fail, the others of the same file need not.
LEFT_OUT = {
    "--enable-per-request-metrics": 0,
    "--hf_overrides": 1,
    "--max-logprobs": 1,
    "--reasoning-parser": 1,
    "--return-tokens-as-token-ids": 0,
}


def derived(name, changes, tensors):
    """Returns a folder with a copy of minnow-6m that has other entries in its JSON files and further tensors."""
    folder = pathlib.Path(SCRATCH.name) / name
    if folder.exists():
        return folder
    shutil.copytree(MODEL, folder)
    for file, entries in changes.items():
        (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | entries))
    data = (MODEL / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header, data = json.loads(data[8 : 8 + size]), data[8 + size :]
    for tensor, values in tensors.items():
        added = values.astype("<f4").tobytes()
        offsets = [len(data), len(data) + len(added)]
        header[tensor] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": offsets}
        data += added
    head = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    return folder


def model_for(name):
    """Returns a folder and options. vLLM learns from a model's files what it is for, here its name tells."""
    if re.search(r"e5-|MiniLM|arctic-embed", name):
        return MODEL, ["--task", "embed", "--matryoshka"]
    config = {"max_position_embeddings": LONGEST}
    changes = {"config.json": config, "tokenizer_config.json": {"model_max_length": LONGEST}}
    for kind, labels in LABELS.items():
        if kind in name:
            config |= {"architectures": ["LlamaForSequenceClassification"], "id2label": dict(enumerate(labels))}
            weight = numpy.random.default_rng(0).normal(size=(len(labels), 256)) / 4
            return derived(kind, changes, {"score.weight": weight}), []
    if re.search("/completion/|test_metrics", os.environ["PYTEST_CURRENT_TEST"]):
        # The demo model has learned to end every text at once that is no chat. Here another token ends a text.
        config |= {"eos_token_id": 8191}
        return derived("completion", changes | {"generation_config.json": {"eos_token_id": 8191}}, {}), GREEDY
    return derived("chat", changes, {}), GREEDY


class RemoteOpenAIServer:
    DUMMY_API_KEY = "token-abc123"
    show_hidden_metrics = False

    def __init__(self, model, vllm_serve_args, *, env_dict=None, seed=0, **_):
        folder, options = model_for(model)
        if "--served-model-name" not in vllm_serve_args:
            options = [*options, "--served-model-name", model]
        if env_dict and "VLLM_ALLOW_RUNTIME_LORA_UPDATING" in env_dict:
            options = [*options, "--lora-root", "/"]
        given = iter(vllm_serve_args)
        for word in given:
            if word not in LEFT_OUT:
                options.append(word)
            elif LEFT_OUT[word]:
                next(given)
        self.server = Server(*options, "--seed", str(seed), model=folder, env=env_dict)
        self.url_root = self.server.url

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.kill()

    def url_for(self, *parts):
        return "/".join([self.url_root, *(part.strip("/") for part in parts if part)])

    def get_async_client(self, **more):
        options = {"timeout": 60, "max_retries": 0, "api_key": self.DUMMY_API_KEY, **more}
        return openai.AsyncOpenAI(base_url=self.url_for("v1"), **options)

    def get_async_client_anthropic(self):
        return anthropic.AsyncAnthropic(base_url=self.url_root, api_key=self.DUMMY_API_KEY, max_retries=0)


class Missing:
    """What no stand-in has. It can be named when a file of tests is imported; calling it is an error."""

    def __init__(self, name):
        self.missing = name

    def __call__(self, *_, **__):
        raise NotImplementedError(f"{self.missing} is code of vLLM or torch")

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return KNOWN[name] if name in KNOWN else Missing(f"{self.missing}.{name}")

    __bool__ = __or__ = __ror__ = __call__


class Answer(types.SimpleNamespace):
    """A body of the server as an object. To read a field that it does not have is an error."""

    @classmethod
    def model_validate(cls, body):
        return json.loads(json.dumps(body), object_hook=lambda fields: cls(**fields))


def check_embeddings_close(embeddings_0_lst, embeddings_1_lst, **_):
    assert numpy.allclose(embeddings_0_lst, embeddings_1_lst, atol=1e-3)


KNOWN = {
    "float_embeddings": lambda answer: [one.embedding for one in answer.data],
    "check_embeddings_close": check_embeddings_close,
    "RemoteOpenAIServer": RemoteOpenAIServer,
    "ROCM_EXTRA_ARGS": [],
    "EMBED_DTYPES": {"float32": 4, "float16": 2},
    "ENDIANNESS": ["little", "big"],
    "is_rocm": lambda: False,
    "snapshot_download": lambda *_, **__: str(ROOT / "models" / "minnow-6m-lora-pirate"),
    "hf_api": lambda: Missing("hf_api"),
    "get_tokenizer": lambda *_, **__: TOKENIZER,
    "ModelConfig": lambda **_: types.SimpleNamespace(get_vocab_size=lambda: len(TOKENIZER)),
    "_prev_minor_version": lambda: "0.0",
    "tensor": numpy.array,
    "allclose": numpy.allclose,
    "softmax": lambda values, dim: numpy.exp(values) / numpy.exp(values).sum(axis=dim, keepdims=True),
    "sigmoid": lambda values: 1 / (1 + numpy.exp(-values)),
    "normalize": lambda values, p, dim: values / numpy.linalg.norm(values, ord=p, axis=dim, keepdims=True),
}


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    PACKAGES = re.compile(r"(vllm|torch|fastapi)(\.|$)|tests\.(utils|conftest|models)(\.|$)")

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if self.PACKAGES.match(name) else None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = Missing(spec.name).__getattr__
        for name in ("EmbeddingResponse", "PoolingResponse", "ClassificationResponse", "ScoreResponse", "RerankResponse"):
            setattr(module, name, Answer)
        return module

    def exec_module(self, module):
        module.__version__ = "of vLLM"


@pytest.fixture
def local_asset_server():
    """Serves images, which tests of text do not ask for."""


def pytest_collection_modifyitems(items):
    for module in {item.module for item in items}:
        if hasattr(module, "input_tokens"):
            module.input_tokens = TOKENIZER.encode(module.input_text)


AutoTokenizer.from_pretrained = lambda *_, **__: TOKENIZER
sys.meta_path.insert(0, StandIns())
