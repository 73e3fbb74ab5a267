"""Tests chat completions over real HTTP with the official client."""

import asyncio
import json

import httpx
import pytest

STORY = [{"role": "user", "content": "Tell me a story about a clever mouse."}]


def ask(client, model, messages, **options):
    options = {"temperature": 0, "max_tokens": 128, **options}
    return client.chat.completions.create(model=model, messages=messages, **options)


def test_goldens_one_by_one(client, model, goldens):
    for golden in goldens:
        answer = ask(client, model, golden["messages"])
        assert answer.choices[0].message.content == golden["greedy_text"]
        assert answer.usage.prompt_tokens == len(golden["prompt_ids"])


def test_goldens_all_at_once(server, model, goldens):
    async def run():
        client = server.async_client()
        return await asyncio.gather(*(ask(client, model, golden["messages"]) for golden in goldens))

    for golden, answer in zip(goldens, asyncio.run(run()), strict=True):
        assert answer.choices[0].message.content == golden["greedy_text"]


def test_stream_equals_whole(client, model, goldens):
    for golden in goldens:
        stream = ask(client, model, golden["messages"], stream=True, stream_options={"include_usage": True})
        chunks = list(stream)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == golden["greedy_text"]
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-2].choices[0].finish_reason == "stop"
        assert chunks[-1].choices == [] and chunks[-1].usage.prompt_tokens == len(golden["prompt_ids"])
        assert chunks[-1].usage.completion_tokens == len(golden["greedy_ids"])
        assert all(c.usage is None for c in chunks[:-1])
        assert len({c.id for c in chunks}) == 1


def test_continuous_usage(client, model):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(ask(client, model, STORY, stream=True, max_tokens=5, stream_options=options))
    assert all(c.usage.prompt_tokens > 0 for c in chunks)
    counts = [c.usage.completion_tokens for c in chunks]
    assert counts == sorted(counts) and counts[-1] == 5


def test_shape(client, model):
    answer = ask(client, model, STORY, max_tokens=3)
    assert answer.id.startswith("chatcmpl-") and answer.object == "chat.completion" and answer.model == model
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage.completion_tokens == 3
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 3
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0
    assert answer.system_fingerprint


def test_prefix_cache_is_counted(client, model):
    long = [{"role": "user", "content": "Count with me: " + " ".join(str(i) for i in range(100))}]
    first, second = (ask(client, model, long, max_tokens=1) for _ in range(2))
    assert second.usage.prompt_tokens_details.cached_tokens > first.usage.prompt_tokens_details.cached_tokens
    salted = ask(client, model, long, max_tokens=1, extra_body={"cache_salt": "other"})
    assert salted.usage.prompt_tokens_details.cached_tokens == 0


def test_logprobs(client, model):
    answer = ask(client, model, STORY, max_tokens=8, logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert b"".join(bytes(t.bytes) for t in content).decode() == answer.choices[0].message.content
    for token in content:
        assert len(token.top_logprobs) == 3
        values = [t.logprob for t in token.top_logprobs]
        assert values == sorted(values, reverse=True) and values[0] <= 0
        assert token.logprob == pytest.approx(values[0], abs=1e-6)  # greedy sampling takes the most likely token
    streamed = ask(client, model, STORY, max_tokens=8, logprobs=True, top_logprobs=3, stream=True)
    tokens = [t for c in streamed if c.choices[0].logprobs for t in c.choices[0].logprobs.content]
    assert [t.token for t in tokens] == [t.token for t in content]


def test_choices_and_seeds(client, model):
    options = dict(temperature=1.2, max_tokens=24, n=4)
    first, again, other = (ask(client, model, STORY, seed=seed, **options) for seed in (7, 7, 8))
    texts = [c.message.content for c in first.choices]
    assert [c.index for c in first.choices] == [0, 1, 2, 3]
    assert len(set(texts)) > 1
    assert texts == [c.message.content for c in again.choices]
    assert texts != [c.message.content for c in other.choices]


def test_seed_does_not_depend_on_the_batch(server, model):
    async def run(count):
        client = server.async_client()
        jobs = [ask(client, model, STORY, temperature=1, seed=seed, max_tokens=20) for seed in range(count)]
        return [answer.choices[0].message.content for answer in await asyncio.gather(*jobs)]

    assert asyncio.run(run(1))[0] == asyncio.run(run(16))[0]


def test_stop(client, model):
    whole = ask(client, model, STORY, max_tokens=40).choices[0].message.content
    stop = whole.split()[4]
    answer = ask(client, model, STORY, max_tokens=40, stop=[stop, "never there"])
    assert answer.choices[0].message.content == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop" and answer.choices[0].stop_reason == stop
    kept = ask(client, model, STORY, max_tokens=40, stop=stop, extra_body={"include_stop_str_in_output": True})
    assert kept.choices[0].message.content == whole[: whole.index(stop) + len(stop)]
    streamed = ask(client, model, STORY, max_tokens=40, stop=stop, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in streamed) == whole[: whole.index(stop)]


def test_sampling_parameters_matter(client, model, goldens):
    golden = goldens[0]
    forbidden = {str(golden["greedy_ids"][0]): -100}
    answer = ask(client, model, golden["messages"], logit_bias=forbidden).choices[0].message.content
    assert answer != golden["greedy_text"]
    only = ask(client, model, STORY, max_tokens=5, extra_body={"allowed_token_ids": [220], "ignore_eos": True})
    assert only.usage.completion_tokens == 5 and only.choices[0].message.content.strip() == ""
    narrow = ask(client, model, golden["messages"], temperature=2, extra_body={"top_k": 1})
    assert narrow.choices[0].message.content == golden["greedy_text"]
    longer = ask(client, model, golden["messages"], extra_body={"min_tokens": 30}, max_tokens=40)
    assert longer.usage.completion_tokens >= 30
    by_token = ask(client, model, golden["messages"], extra_body={"stop_token_ids": [golden["greedy_ids"][1]]})
    assert by_token.choices[0].stop_reason == golden["greedy_ids"][1]


def test_tools_reach_the_template(server, client, model):
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]
    body = {"model": model, "messages": STORY, "tools": tools}
    with_tools = httpx.post(server.url + "/tokenize", json=body).json()
    text = httpx.post(server.url + "/detokenize", json={"tokens": with_tools["tokens"]}).json()["prompt"]
    assert '"weather"' in text
    answer = ask(client, model, STORY, tools=tools, tool_choice="auto", max_tokens=4)
    assert answer.usage.prompt_tokens == with_tools["count"]


def test_tokenize_agrees_with_the_reference(server, goldens):
    for golden in goldens:
        reply = httpx.post(server.url + "/tokenize", json={"messages": golden["messages"]}).json()
        assert reply["tokens"] == golden["prompt_ids"] and reply["count"] == len(golden["prompt_ids"])
    reply = httpx.post(server.url + "/tokenize", json={"prompt": "Hello!", "return_token_strs": True}).json()
    assert len(reply["token_strs"]) == reply["count"] and reply["max_model_len"] > 0
    text = httpx.post(server.url + "/detokenize", json={"tokens": reply["tokens"]}).json()
    assert text == {"prompt": "Hello!", "content": "Hello!", "text": "Hello!"}


def test_raw_stream_framing(server, model):
    body = {"model": model, "messages": STORY, "max_tokens": 4, "stream": True}
    with httpx.stream("POST", server.url + "/v1/chat/completions", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in events) and events[-1] == "data: [DONE]"
    for line in events[:-1]:
        assert json.loads(line[6:])["object"] == "chat.completion.chunk"
