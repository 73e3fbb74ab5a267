"""Ollama's client against the server: chat, prompts, tools, formats, listings and errors."""
import json

import ollama
import pytest

WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
HELLO = [{"role": "user", "content": "Hello!"}]
GREEDY = {"temperature": 0, "num_predict": 120}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Tells the weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


@pytest.fixture(scope="module")
def llama(server):
    return ollama.Client(host=server.url, timeout=120)


def test_a_stream_equals_the_whole_answer(llama, client, model):
    whole = llama.chat(model, HELLO, options=GREEDY)
    parts = list(llama.chat(model + ":latest", HELLO, options=GREEDY, stream=True))
    assert whole.done and whole.done_reason == "stop" and whole.message.content
    assert "".join(part.message.content for part in parts) == whole.message.content
    last = parts[-1]
    assert (last.eval_count, last.prompt_eval_count) == (whole.eval_count, whole.prompt_eval_count)
    assert whole.total_duration >= whole.eval_duration > 0 and whole.created_at.endswith("Z")
    same = client.chat.completions.create(model=model, messages=HELLO, temperature=0, max_tokens=120)
    assert same.choices[0].message.content == whole.message.content


def test_a_prompt_goes_through_the_template_unless_raw(llama, client, model):
    chat = llama.chat(model, [{"role": "system", "content": "Be kind."}, *HELLO], options=GREEDY)
    assert llama.generate(model, "Hello!", system="Be kind.", options=GREEDY).response == chat.message.content
    options = {"temperature": 0, "num_predict": 8}
    raw = "".join(part.response for part in llama.generate(model, "Hello", raw=True, options=options, stream=True))
    assert raw == client.completions.create(model=model, prompt="Hello", temperature=0, max_tokens=8).choices[0].text
    assert llama.generate(model).done_reason == "load"


@pytest.mark.parametrize("stream", [False, True])
def test_the_model_calls_a_tool_and_reads_the_result(llama, model, stream):
    answer = llama.chat(model, WEATHER, tools=TOOLS, options=GREEDY, stream=stream)
    messages = [part.message for part in answer] if stream else [answer.message]
    (call,) = [call for message in messages for call in message.tool_calls or []]
    assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Paris"})
    turns = [
        *WEATHER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "get_weather", "content": '{"weather": "sunny"}'},
    ]
    assert llama.chat(model, turns, tools=TOOLS, options=GREEDY).done


def test_formats(llama, model):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"]}
    answer = llama.chat(model, HELLO, format={**schema, "additionalProperties": False}, options={"num_predict": 60})
    assert 0 <= json.loads(answer.message.content)["n"] <= 9
    options = {"seed": 1, "num_predict": 4}
    assert llama.generate(model, "Hello!", format="json", options=options).response.lstrip()[:1] in ("{", "")


def test_listings(llama, model):
    (listed,) = llama.list().models
    assert listed.model == model and listed.size > 0 and listed.details.format == "safetensors"
    assert llama.ps().models[0].model == model
    shown = llama.show(model)
    assert "completion" in shown.capabilities and "tools" in shown.capabilities
    assert shown.modelinfo["general.parameter_count"] > 1e6


def test_errors(llama, model):
    with pytest.raises(ollama.ResponseError) as error:
        llama.chat("no-such-model", HELLO)
    assert error.value.status_code == 404 and model in error.value.error
    with pytest.raises(ollama.ResponseError, match="num_ctx"):
        llama.chat(model, HELLO, options={"num_ctx": 10**6})
    with pytest.raises(ollama.ResponseError, match="generate text|embeddings"):
        llama.embed(model, "text")
    with pytest.raises(ollama.ResponseError) as error:
        llama.pull("other")
    assert error.value.status_code == 403
