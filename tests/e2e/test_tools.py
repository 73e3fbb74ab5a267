"""Calls of tools through OpenAI's client, streamed and not."""
import json

import openai
import pytest

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Tells the weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 20}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "additionalProperties": False}}},
]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]


def calls(client, model, stream, **options):
    """(content, [(id, name, arguments)], finish_reason)"""
    answer = client.chat.completions.create(model=model, tools=TOOLS, stream=stream, max_tokens=120, **options)
    if not stream:
        choice = answer.choices[0]
        found = [(c.id, c.function.name, c.function.arguments) for c in choice.message.tool_calls or []]
        return choice.message.content, found, choice.finish_reason
    content, found, reason = "", [], None
    for chunk in answer:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reason = choice.finish_reason or reason
            for call in choice.delta.tool_calls or []:
                if call.id is not None:
                    assert call.index == len(found) and call.function.arguments == ""
                    found.append([call.id, call.function.name, ""])
                else:
                    found[call.index][2] += call.function.arguments
    return content or None, [tuple(call) for call in found], reason


@pytest.mark.parametrize("stream", [False, True])
def test_the_model_calls_a_tool(client, model, stream):
    content, found, reason = calls(client, model, stream, messages=WEATHER, temperature=0)
    assert reason == "tool_calls" and not content
    assert [(name, json.loads(arguments)) for _, name, arguments in found] == [("get_weather", {"city": "Paris"})]
    assert found[0][0].startswith("call_")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_required_gives_a_valid_call(client, model, stream, seed):
    messages = [{"role": "user", "content": "Hello!"}]
    _, found, reason = calls(
        client, model, stream, messages=messages, tool_choice="required", parallel_tool_calls=False, seed=seed
    )
    assert reason == "tool_calls" and len(found) == 1
    _, name, arguments = found[0]
    value = json.loads(arguments)
    assert (name == "get_time" and value == {}) or (name == "get_weather" and len(value["city"]) <= 20)


@pytest.mark.parametrize("stream", [False, True])
def test_a_named_tool_is_called(client, model, stream):
    choice = {"type": "function", "function": {"name": "get_time"}}
    _, found, reason = calls(client, model, stream, messages=WEATHER, tool_choice=choice)
    assert reason == "tool_calls" and [(name, json.loads(arguments)) for _, name, arguments in found] == [("get_time", {})]


def test_a_conversation_goes_on_with_the_result(client, model):
    _, found, _ = calls(client, model, False, messages=WEATHER, temperature=0)
    call_id, name, arguments = found[0]
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    messages = WEATHER + [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": '{"weather": "sunny"}'},
    ]
    answer = client.chat.completions.create(model=model, messages=messages, tools=TOOLS, max_tokens=40, temperature=0)
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")


def test_none_gives_text(client, model):
    content, found, _ = calls(client, model, False, messages=WEATHER, tool_choice="none", temperature=0)
    assert content and not found


def test_an_answer_has_one_grammar(client, model):
    with pytest.raises(openai.BadRequestError) as caught:
        calls(client, model, False, messages=WEATHER, tool_choice="required", response_format={"type": "json_object"})
    assert caught.value.param == "tool_choice" and caught.value.code == "invalid_parameter_combination"
    assert "'tool_choice' and 'response_format'" in caught.value.message
