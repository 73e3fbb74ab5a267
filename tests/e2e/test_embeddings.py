"""Tests embeddings with OpenAI's client: the demo model, pooled by its last token."""

import base64
import json
import math
import struct
import subprocess

import httpx
import openai
import pytest

import serving


@pytest.fixture(scope="module")
def embedder():
    with serving.Server("--task", "embed", "--dtype", "float32", "--matryoshka") as running:
        yield running


def test_float_equals_base64(embedder):
    client, model = embedder.client(), embedder.name
    texts = ["Once upon a time", "The capital of France is", "x"]
    default = client.embeddings.create(model=model, input=texts)  # the client asks for base64 and decodes it
    floats = client.embeddings.create(model=model, input=texts, encoding_format="float")
    assert [row.index for row in floats.data] == [0, 1, 2]
    for one, other in zip(default.data, floats.data):
        assert struct.pack(f"<{len(one.embedding)}f", *one.embedding) == struct.pack(
            f"<{len(other.embedding)}f", *other.embedding
        )
        assert math.isclose(math.hypot(*other.embedding), 1, rel_tol=1e-5)
    raw = httpx.post(
        f"{embedder.url}/v1/embeddings", json={"model": model, "input": texts[0], "encoding_format": "base64"}
    ).json()
    assert struct.unpack("<f", base64.b64decode(raw["data"][0]["embedding"])[:4])[0] == default.data[0].embedding[0]
    assert floats.usage.prompt_tokens == floats.usage.total_tokens > 3


def test_forms_give_the_same(embedder):
    client, model = embedder.client(), embedder.name
    text = "Once upon a time"
    ids = httpx.post(f"{embedder.url}/tokenize", json={"prompt": text}).json()["tokens"]
    forms = [text, [text], ids, [ids], ["other words before it", text]]
    answers = [client.embeddings.create(model=model, input=form).data[-1].embedding for form in forms]
    assert all(answer == answers[0] for answer in answers)


def test_dimensions(embedder):
    client, model = embedder.client(), embedder.name
    whole = client.embeddings.create(model=model, input="a").data[0].embedding
    first = client.embeddings.create(model=model, input="a", dimensions=16).data[0].embedding
    length = math.hypot(*whole[:16])
    assert len(first) == 16
    assert all(math.isclose(a, b / length, rel_tol=1e-4, abs_tol=1e-6) for a, b in zip(first, whole))


def test_too_long_is_never_cut_silently(embedder):
    client, model = embedder.client(), embedder.name
    limit = client.models.list().data[0].max_model_len
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model=model, input="word " * limit * 2)
    assert caught.value.code == "context_length_exceeded" and str(limit) in caught.value.message
    cut = client.embeddings.create(model=model, input="word " * limit * 2, extra_body={"truncate_prompt_tokens": -1})
    assert cut.usage.prompt_tokens == limit


def test_tasks(embedder, client, model):
    with pytest.raises(openai.BadRequestError) as caught:
        embedder.client().chat.completions.create(model=embedder.name, messages=[{"role": "user", "content": "hi"}])
    assert caught.value.code == "unsupported_task"
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model=model, input="a")
    assert caught.value.code == "unsupported_task"


def test_rerank_by_vectors(embedder):
    texts = ["The sea was calm.", "What is 17 + 25?", "A calm sea."]
    answer = httpx.post(f"{embedder.url}/rerank", json={"query": texts[0], "documents": texts}).json()
    scores = [row["relevance_score"] for row in answer["results"]]
    assert answer["results"][0]["index"] == 0 and math.isclose(scores[0], 1, rel_tol=1e-5)
    assert scores == sorted(scores, reverse=True)


def test_metrics_count_prompts(embedder):
    before = embedder.metrics()["vllm:prompt_tokens_total"]
    usage = embedder.client().embeddings.create(model=embedder.name, input="Once upon a time").usage
    assert embedder.metrics()["vllm:prompt_tokens_total"] == before + usage.prompt_tokens


def test_lines_of_json(embedder):
    command = [str(serving.binary()), "embed", str(serving.MODEL), "--task", "embed", "--dtype", "float32"]
    lines = '"Once upon a time"\n{"text": "x"}\nnonsense\n'
    done = subprocess.run(command, input=lines, capture_output=True, text=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1 and "error" in rows[2]
    want = embedder.client().embeddings.create(model=embedder.name, input=["Once upon a time", "x"])
    for row, data in zip(rows, want.data):
        assert all(math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-7) for a, b in zip(row["embedding"], data.embedding))
