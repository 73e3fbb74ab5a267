"""Answers beyond the context, over HTTP: streams have no gap, counts are right, and llama-server's names are known."""

import httpx
import openai
import pytest

import serving

PROMPT = "The clever mouse looked for cheese in the old house."
EXTRA = {"ignore_eos": True, "skip_special_tokens": False}


@pytest.fixture(scope="module")
def server():
    options = ("--dtype", "float32", "--context-shift", "--keep", "8", "--ctx-size", "96")  # llama-server's names
    with serving.Server(*options) as running:
        yield running


def options(**more):
    return {"prompt": PROMPT, "max_tokens": 300, "temperature": 0, "logprobs": 0, "extra_body": EXTRA | more}


def test_a_stream_is_the_whole_answer(server):
    client = server.client()
    whole = client.completions.create(model=server.name, **options())
    assert whole.usage.completion_tokens == 300
    assert whole.choices[0].finish_reason == "length"
    assert len(whole.choices[0].logprobs.tokens) == 300
    assert "".join(whole.choices[0].logprobs.tokens) == whole.choices[0].text
    text = ""
    with client.completions.create(
        model=server.name, stream=True, stream_options={"include_usage": True}, **options()
    ) as stream:
        for chunk in stream:
            text += chunk.choices[0].text if chunk.choices else ""
            usage = chunk.usage
    assert text == whole.choices[0].text
    assert usage == whole.usage
    assert server.metrics()["sluice:context_shifts_total"] >= 8


def test_the_request_decides(server):
    client = server.client()
    kept = client.completions.create(model=server.name, **options())
    other = client.completions.create(model=server.name, **options(n_keep=-1))
    assert other.usage.completion_tokens == 300
    assert other.choices[0].text != kept.choices[0].text
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        client.completions.create(model=server.name, **options(context_shift=False))


def test_llama_server_says_whether_tokens_were_dropped(server):
    for tokens, truncated in ((10, False), (300, True)):
        body = {"prompt": PROMPT, "n_predict": tokens, "temperature": 0, "ignore_eos": True, "n_keep": 4}
        answer = httpx.post(server.url + "/completion", json=body, timeout=120).json()
        assert answer["tokens_predicted"] == tokens
        assert answer["truncated"] is truncated
