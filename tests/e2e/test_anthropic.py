"""Anthropic's client against the server: text, tools, counts and errors."""
import anthropic
import pytest

import serving

TOOLS = [
    {
        "name": "get_weather",
        "description": "Tells the weather of a city.",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
    {"name": "get_time", "input_schema": {"type": "object", "additionalProperties": False}},
]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
HELLO = [{"role": "user", "content": "Hello!"}]


def connect(server, key="none"):
    return anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def claude(server):
    return connect(server)


def ask(claude, model, stream, temperature=None, **options):
    options = {"model": model, "max_tokens": 120, **options}
    if temperature is not None:  # not all versions of the client have the field
        options["extra_body"] = {"temperature": temperature}
    if not stream:
        return claude.messages.create(**options)
    with claude.messages.stream(**options) as events:
        return events.get_final_message()


def test_a_stream_equals_the_whole_answer(claude, client, model):
    whole = ask(claude, model, False, messages=HELLO, temperature=0)
    streamed = ask(claude, model, True, messages=HELLO, temperature=0)
    assert whole.stop_reason == "end_turn" and whole.content[0].text
    assert [b.model_dump() for b in streamed.content] == [b.model_dump() for b in whole.content]
    assert streamed.stop_reason == whole.stop_reason and streamed.usage.output_tokens == whole.usage.output_tokens
    same = client.chat.completions.create(model=model, messages=HELLO, temperature=0, max_tokens=120)
    assert same.choices[0].message.content == whole.content[0].text


def test_a_system_prompt_and_stop_sequences(claude, model):
    options = {"system": [{"type": "text", "text": "You are Minnow."}], "messages": HELLO, "temperature": 0}
    text = ask(claude, model, False, **options).content[0].text
    stop = text[3:6]
    answer = ask(claude, model, False, stop_sequences=[stop], **options)
    assert answer.stop_reason == "stop_sequence" and answer.stop_sequence == stop
    assert answer.content == [] or answer.content[0].text == text[: text.index(stop)]
    assert ask(claude, model, True, **{**options, "max_tokens": 1}).stop_reason == "max_tokens"


@pytest.mark.parametrize("stream", [False, True])
def test_the_model_calls_a_tool_and_reads_the_result(claude, model, stream):
    answer = ask(claude, model, stream, messages=WEATHER, tools=TOOLS, temperature=0)
    assert answer.stop_reason == "tool_use"
    (call,) = answer.content
    assert (call.type, call.name, call.input) == ("tool_use", "get_weather", {"city": "Paris"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": '{"weather": "sunny"}'}
    turns = WEATHER + [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    answer = ask(claude, model, stream, messages=turns, tools=TOOLS, temperature=0)
    assert answer.stop_reason in ("end_turn", "tool_use", "max_tokens") and answer.content


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_time"}])
def test_a_call_can_be_demanded(claude, model, stream, choice):
    choice = {**choice, "disable_parallel_tool_use": True}
    answer = ask(claude, model, stream, messages=HELLO, tools=TOOLS, tool_choice=choice)
    (call,) = answer.content
    assert answer.stop_reason == "tool_use" and call.name in ("get_time", "get_weather")
    if choice["type"] == "tool":
        assert (call.name, call.input) == ("get_time", {})


def test_tokens_are_counted(claude, model):
    counted = claude.messages.count_tokens(model=model, messages=WEATHER, tools=TOOLS).input_tokens
    usage = ask(claude, model, False, messages=WEATHER, tools=TOOLS).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


def test_errors_have_the_classes_of_the_client(claude, model):
    with pytest.raises(anthropic.NotFoundError) as error:
        ask(claude, "no-such-model", False, messages=HELLO)
    assert model in error.value.message and error.value.request_id
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    with pytest.raises(anthropic.BadRequestError, match="image"):
        ask(claude, model, True, messages=[{"role": "user", "content": [image]}])
    with pytest.raises(anthropic.BadRequestError, match="exceed context limit"):
        ask(claude, model, False, messages=HELLO, max_tokens=10**6)


def test_keys():
    with serving.Server("--api-key", "secret") as server:
        assert ask(connect(server, "secret"), server.name, True, messages=HELLO).content
        with pytest.raises(anthropic.AuthenticationError):
            ask(connect(server, "wrong"), server.name, False, messages=HELLO)
        bearer = anthropic.Anthropic(base_url=server.url, api_key=None, auth_token="secret", max_retries=0)
        assert ask(bearer, server.name, False, messages=HELLO).content
