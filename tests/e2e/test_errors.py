"""Tests how the official client reports refusals: exception class, .param, .code, and no retry for client errors."""

import openai
import pytest

HI = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("options", "param", "code"),
    [
        ({"messages": []}, "messages", "empty_array"),
        ({"messages": [{"role": "", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user", "content": [{}]}]}, "messages[0].content[0].type",
         "missing_required_parameter"),
        ({"n": 129}, "n", "integer_above_max_value"),
        ({"temperature": 3}, "temperature", "decimal_above_max_value"),
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"max_tokens": 0}, "max_tokens", "integer_below_min_value"),
        ({"max_tokens": 1 << 20}, "max_tokens", "context_length_exceeded"),
        ({"messages": [{"role": "user", "content": "word " * 5000}]}, "messages", "context_length_exceeded"),
        ({"stop": ["a"] * 1025}, "stop", "array_above_max_length"),
        ({"logit_bias": {"99999": 1}}, "logit_bias.99999", "invalid_value"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing_required_parameter"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "unsupported_parameter"),
        ({"extra_body": {"guided_regex": "(a"}}, "guided_regex", "invalid_grammar"),
        ({"extra_body": {"grammar": "root ::= x"}}, "grammar", "invalid_grammar"),
        (
            {"extra_body": {"guided_json": {"type": "array", "uniqueItems": True}}},
            "guided_json",
            "invalid_grammar",
        ),
        ({"extra_body": {"stop_token_ids": [8192]}}, "stop_token_ids[0]", "invalid_value"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests(client, model, options, param, code, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": model, "messages": HI, "stream": stream, **options})
    assert caught.value.param == param and caught.value.code == code
    assert caught.value.type == "invalid_request_error" and caught.value.request_id


def test_token_ids_outside_the_vocabulary(client, model):
    for prompt, param in (([8192], "prompt[0]"), ([1, -1], "prompt[1]"), ([[1], [2, 1 << 31]], "prompt[1][1]")):
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(model=model, prompt=prompt)
        assert caught.value.param == param and caught.value.code == "invalid_value"


def test_unknown_model(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-9", messages=HI)
    assert caught.value.code == "model_not_found" and caught.value.param is None
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


def test_models(client, model):
    assert [card.id for card in client.models.list()] == [model]
    assert client.models.retrieve(model).id == model


def test_unknown_fields_warn(client, model):
    reply = client.chat.completions.with_raw_response.create(
        model=model, messages=HI, max_tokens=1, extra_body={"not_a_field": 1}
    )
    assert reply.headers["x-sluice-warning"] == "unknown fields ignored: not_a_field"
