"""Constrained answers through OpenAI's client: every answer is in its language, streamed or not."""
import json
import re

import pytest

HI = [{"role": "user", "content": "Tell me about Paris."}]
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["capital", "village"]},
        "visits": {"type": "integer", "minimum": 0, "maximum": 9999},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,6}$"}, "maxItems": 2},
    },
    "required": ["city", "kind", "visits"],
    "additionalProperties": False,
}


def conforms(value):
    assert set(value) <= set(SCHEMA["properties"]) and {"city", "kind", "visits"} <= set(value)
    assert len(value["city"]) <= 12 and value["kind"] in ("capital", "village") and 0 <= value["visits"] <= 9999
    assert all(re.fullmatch("[a-z]{1,6}", tag) for tag in value.get("tags", [])) and len(value.get("tags", [])) <= 2


def texts(client, model, stream, **options):
    """The texts of all choices, and their finish reasons."""
    answer = client.chat.completions.create(model=model, messages=HI, stream=stream, **options)
    if not stream:
        return [(c.message.content, c.finish_reason) for c in answer.choices]
    pieces, reasons = {}, {}
    for chunk in answer:
        for choice in chunk.choices:
            pieces[choice.index] = pieces.get(choice.index, "") + (choice.delta.content or "")
            reasons[choice.index] = choice.finish_reason or reasons.get(choice.index)
    return [(pieces[i], reasons[i]) for i in sorted(pieces)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_json_schema(client, model, stream, seed):
    response_format = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": SCHEMA}}
    for text, reason in texts(client, model, stream, response_format=response_format, max_tokens=300, seed=seed, n=2):
        if reason == "length":  # only numbers and strings without a bound go on forever; there are none
            assert len(text) > 100
        else:
            assert reason == "stop"
            conforms(json.loads(text))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "fields, pattern",
    [
        ({"structured_outputs": {"choice": ["yes", "no", "perhaps"]}}, "yes|no|perhaps"),
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
        ({"guided_regex": "[A-Z][a-z]{2,5} [0-9]{3}"}, "[A-Z][a-z]{2,5} [0-9]{3}"),
        ({"structured_outputs": {"regex": "(ab|cd){3}"}}, "(ab|cd){3}"),
        ({"grammar": 'root ::= "<" [a-f]{4} ">" root?'}, "(<[a-f]{4}>)+"),
        ({"json_schema": {"type": "integer", "minimum": 10, "maximum": 99}}, r"[1-9][0-9](\.0)?"),
    ],
)
def test_languages(client, model, fields, pattern, stream):
    # Penalties, a bias, several choices and log-probabilities do not loosen the constraint.
    options = {"extra_body": {**fields, "repetition_penalty": 1.3}, "n": 3, "max_tokens": 200, "presence_penalty": 1.0}
    for text, reason in texts(client, model, stream, logit_bias={"17": 50}, logprobs=True, **options):
        if reason == "stop":
            assert re.fullmatch(pattern, text), text
    answers = texts(client, model, stream, **{**options, "temperature": 0})
    assert any(reason == "stop" for _, reason in answers)


def test_parse_with_the_client(client, model):
    completion = client.chat.completions.create(
        model=model, messages=HI, response_format={"type": "json_object"}, max_tokens=400, temperature=0
    )
    choice = completion.choices[0]
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)


def test_completions(client, model):
    answer = client.completions.create(
        model=model, prompt=["One: ", "Two: "], max_tokens=20, extra_body={"guided_regex": "[0-9]{2}-[0-9]{2}"}
    )
    assert len(answer.choices) == 2
    for choice in answer.choices:
        assert re.fullmatch("[0-9]{2}-[0-9]{2}", choice.text) and choice.finish_reason == "stop"


def test_stop_strings_end_a_constrained_answer(client, model):
    answer = client.chat.completions.create(
        model=model, messages=HI, stop=["b"], max_tokens=50, extra_body={"guided_regex": "(a{3}b){2}"}
    )
    assert answer.choices[0].message.content == "aaa" and answer.choices[0].finish_reason == "stop"
