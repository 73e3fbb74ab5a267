"""OpenAI's Responses API through its client: text, tools, formats, and going on from a stored response."""
import json
import time

import openai
import pytest

TOOLS = [
    {
        "type": "function",
        "name": "get_weather",
        "description": "Tells the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "strict": False,
    }
]
WEATHER = "What is the weather in Paris?"


def ask(client, model, stream, **options):
    options = {"model": model, "temperature": 0, "max_output_tokens": 120, **options}
    if not stream:
        return client.responses.create(**options)
    with client.responses.stream(**options) as events:
        for number, event in enumerate(events):
            assert event.sequence_number == number or event.type.endswith((".delta", ".done"))
        return events.get_final_response()


@pytest.mark.parametrize("stream", [False, True])
def test_text(client, model, stream):
    answer = ask(client, model, stream, input="Hello!")
    same = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Hello!"}], temperature=0, max_tokens=120
    )
    assert answer.status == "completed" and answer.output_text == same.choices[0].message.content
    assert answer.usage.output_tokens == same.usage.completion_tokens


def test_an_answer_that_is_cut_off(client, model):
    cut = ask(client, model, False, input="Hello!", max_output_tokens=1)
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"
    *_, last = client.responses.create(
        model=model, input="Hello!", max_output_tokens=1, temperature=0, stream=True
    )
    assert last.type == "response.incomplete" and last.response.output_text == cut.output_text


@pytest.mark.parametrize("stream", [False, True])
def test_the_model_calls_a_tool_and_reads_the_result(client, model, stream):
    answer = ask(client, model, stream, input=WEATHER, tools=TOOLS)
    (call,) = answer.output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "get_weather", {"city": "Paris"})
    result = {"type": "function_call_output", "call_id": call.call_id, "output": '{"weather": "sunny"}'}
    whole = [{"role": "user", "content": WEATHER}, call.model_dump(exclude_none=True), result]
    sent = ask(client, model, stream, input=whole, tools=TOOLS)
    stored = ask(client, model, stream, input=[result], tools=TOOLS, previous_response_id=answer.id)
    assert sent.usage.input_tokens == stored.usage.input_tokens and sent.output_text == stored.output_text


def test_a_schema(client, model):
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    text = {"format": {"type": "json_schema", "name": "number", "schema": schema, "strict": True}}
    assert json.loads(ask(client, model, True, input="Hello!", text=text).output_text)["n"] in (1, 2)


def test_stored_responses(client, model):
    answer = ask(client, model, False, input="Hello!")
    assert client.responses.retrieve(answer.id).output_text == answer.output_text
    assert client.responses.input_items.list(answer.id).data[0].content[0].text == "Hello!"
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(answer.id)
    client.responses.delete(answer.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)
    with pytest.raises(openai.NotFoundError, match="previous_response|not found"):
        ask(client, model, False, input="Hello!", previous_response_id=answer.id)


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities(client, model, stream):
    options = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    answer = ask(client, model, stream, input="Hello!", **options)
    tokens = answer.output[0].content[0].logprobs
    assert "".join(token.token for token in tokens) == answer.output_text
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in tokens)
    assert all(token.top_logprobs[0].token == token.token for token in tokens), "the likeliest is taken"


def finished(client, response):
    for _ in range(500):
        response = client.responses.retrieve(response.id)
        if response.status not in ("queued", "in_progress"):
            return response
        time.sleep(0.02)
    raise AssertionError(response)


def test_in_the_background(client, model):
    begun = client.responses.create(model=model, input="Hello!", temperature=0, background=True)
    assert begun.status == "queued" and begun.background and not begun.output
    answer = finished(client, begun)
    assert answer.status == "completed"
    assert answer.output_text == ask(client, model, False, input="Hello!").output_text
    assert client.responses.cancel(answer.id).status == "completed", "it had ended"


def test_fields_that_choose_tokens_and_ends(client, model):
    def tokens(**fields):
        answer = client.responses.with_raw_response.create(
            model=model, input="Hello!", temperature=0, max_output_tokens=40, extra_body=fields
        )
        assert "X-Sluice-Warning" not in answer.headers
        return answer.parse()

    plain = tokens()
    assert plain.usage.output_tokens < 30
    assert tokens(ignore_eos=True).usage.output_tokens == 40
    assert tokens(min_tokens=30).usage.output_tokens >= 30
    word = plain.output_text.split()[1]
    assert word not in tokens(stop=[word]).output_text
    assert tokens(seed=7).output_text == plain.output_text


def test_cancelled_in_the_background(client, model):
    endless = {"extra_body": {"ignore_eos": True}, "max_output_tokens": 1900, "background": True}
    begun = client.responses.create(model=model, input="Hello!", **endless)
    assert client.responses.cancel(begun.id).status == "cancelled"
    assert finished(client, begun).status == "cancelled"
    client.responses.delete(begun.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(begun.id)
