"""Prompts with modules, over HTTP: what is cached in which combination, streams, chats, ranks, and what is refused."""

import openai
import pytest

import serving

DOCUMENTS = [" ".join(f"Finn of house {n} baked bread on day {day}." for day in range(3 + n)) for n in range(4)]


@pytest.fixture(scope="module")
def server():
    with serving.Server("--dtype", "float32") as running:
        yield running


def modules(numbers):
    return [{"prompt": DOCUMENTS[n], "position": 300 * n} for n in numbers]


def ask(server, numbers, question, **more):
    extra = {"prompt_modules": modules(numbers), "ignore_eos": True}
    return server.client().completions.create(
        model=server.name, prompt=question, max_tokens=12, temperature=0, extra_body=extra, **more
    )


def cached(answer):
    return answer.usage.prompt_tokens_details.cached_tokens


def test_any_combination_is_cached(server):
    first = ask(server, [0, 1, 2, 3], "Who baked?")
    assert cached(first) == 0
    for numbers in ([3, 1], [2], [0, 2, 3], [1, 0]):
        answer = ask(server, numbers, "Where was Finn?")
        own = ask(server, [], "Where was Finn?").usage.prompt_tokens
        assert cached(answer) >= answer.usage.prompt_tokens - own > 0
        assert answer.choices[0].text == ask(server, numbers[::-1], "Where was Finn?").choices[0].text
    assert server.metrics()["sluice:prompt_modules_total"] == 4 + 2 * 8


def test_streams_and_choices_are_the_whole_answer(server):
    whole = ask(server, [1, 2], "And then").choices[0].text
    with ask(server, [1, 2], "And then", stream=True) as stream:
        assert "".join(chunk.choices[0].text for chunk in stream) == whole
    assert [choice.text for choice in ask(server, [2, 1], "And then", n=3).choices] == [whole] * 3


def test_chats_have_modules_before_the_template(server):
    client = server.client()

    def chat(**extra):
        messages = [{"role": "user", "content": "Who is Finn?"}]
        return client.chat.completions.create(
            model=server.name, messages=messages, max_tokens=8, temperature=0, extra_body=extra
        )

    plain, given = chat(), chat(prompt_modules=modules([2, 3]))
    texts = [ask(server, [n], "a").usage.prompt_tokens - ask(server, [], "a").usage.prompt_tokens for n in (2, 3)]
    assert given.usage.prompt_tokens == plain.usage.prompt_tokens + sum(texts)
    assert given.usage.prompt_tokens_details.cached_tokens >= sum(texts)


def test_ranks_give_the_same_answer(server):
    with serving.Server("--dtype", "float32", "--tensor-parallel-size", "2") as ranks:
        for numbers in ([0, 3, 1], [1, 3]):
            expected = ask(server, numbers, "What happened?").choices[0].text
            assert ask(ranks, numbers, "What happened?").choices[0].text == expected


def test_what_is_wrong_is_refused_by_name(server):
    client = server.client()
    for given, field in (
        ([{"prompt": "a", "position": 5}, {"prompt": "b", "position": 5}], r"prompt_modules\[1\].position"),
        ([{"prompt": "a", "position": 100000}], "maximum context length"),
        ([{"text": "a"}], r"prompt_modules\[0\].text"),
        ([{"prompt": "a"}] * 200, "prompt_modules"),
    ):
        with pytest.raises(openai.BadRequestError, match=field):
            client.completions.create(model=server.name, prompt="a", extra_body={"prompt_modules": given})
