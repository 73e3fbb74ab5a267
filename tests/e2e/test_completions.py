"""Tests text completions: prompt forms, echo, log probabilities."""

import pytest


def complete(client, model, prompt, **options):
    options = {"temperature": 0, "max_tokens": 8, **options}
    return client.completions.create(model=model, prompt=prompt, **options)


def test_prompt_forms(client, model, goldens):
    ids = [golden["prompt_ids"] for golden in goldens[:3]]
    texts = [golden["greedy_text"] for golden in goldens[:3]]
    assert complete(client, model, ids[0], max_tokens=64).choices[0].text == texts[0]
    several = complete(client, model, ids, max_tokens=64, n=2)
    assert [c.index for c in several.choices] == list(range(6))
    assert [c.text for c in several.choices] == [text for text in texts for _ in range(2)]
    assert several.usage.prompt_tokens == sum(map(len, ids))
    strings = complete(client, model, ["Once upon a time", "The capital of France is"])
    prompts = ("Once upon a time", "The capital of France is")
    alone = [complete(client, model, prompt).choices[0].text for prompt in prompts]
    assert [c.text for c in strings.choices] == alone


def test_default_length(client, model):
    answer = client.completions.create(model=model, prompt="Once upon a time", extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 16 and answer.choices[0].finish_reason == "length"


def test_stream_equals_whole(client, model):
    whole = complete(client, model, ["Once upon a time", "There was"], max_tokens=20)
    texts = ["", ""]
    for chunk in complete(client, model, ["Once upon a time", "There was"], max_tokens=20, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [c.text for c in whole.choices]


def test_logprobs(client, model):
    choice = complete(client, model, "Once upon a time", logprobs=2, extra_body={"ignore_eos": True}).choices[0]
    scores = choice.logprobs
    assert len(scores.tokens) == len(scores.token_logprobs) == len(scores.top_logprobs) == len(scores.text_offset) == 8
    assert "".join(scores.tokens) == choice.text
    for token, logprob, top, offset in zip(scores.tokens, scores.token_logprobs, scores.top_logprobs,
                                           scores.text_offset):
        assert top[token] == pytest.approx(logprob, abs=1e-6) and len(top) == 2
        assert choice.text[offset:].startswith(token)


def test_echo_scores_the_prompt(client, model):
    prompt = "Once upon a time there was"
    scored = complete(client, model, prompt, echo=True, logprobs=0, max_tokens=0).choices[0]
    assert scored.text == prompt and "".join(scored.logprobs.tokens) == prompt
    assert scored.logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in scored.logprobs.token_logprobs[1:])
    more = complete(client, model, prompt, echo=True, logprobs=0, max_tokens=4).choices[0]
    assert more.text.startswith(prompt) and len(more.text) > len(prompt)
    count = len(scored.logprobs.tokens)
    assert more.logprobs.token_logprobs[1:count] == pytest.approx(scored.logprobs.token_logprobs[1:], abs=1e-4)
    assert more.logprobs.text_offset[count] == len(prompt)
    # Generated tokens must have the same scores when they are given as a prompt (teacher forcing).
    again = complete(client, model, more.text, echo=True, logprobs=0, max_tokens=0).choices[0]
    if again.logprobs.tokens == more.logprobs.tokens:
        assert again.logprobs.token_logprobs[1:] == pytest.approx(more.logprobs.token_logprobs[1:], abs=1e-3)
    streamed = list(complete(client, model, prompt, echo=True, logprobs=0, max_tokens=4, stream=True))
    assert "".join(c.choices[0].text for c in streamed) == more.text
    tokens = [t for c in streamed if c.choices[0].logprobs for t in c.choices[0].logprobs.tokens]
    assert tokens == more.logprobs.tokens


def test_prompt_logprobs(client, model):
    answer = complete(client, model, "Once upon a time", extra_body={"prompt_logprobs": 2})
    scores = answer.choices[0].prompt_logprobs
    assert scores[0] is None and len(scores) == answer.usage.prompt_tokens
    assert all(len(entry) >= 2 for entry in scores[1:])
