"""Thoughts through OpenAI's client, with a template that opens them."""
import json
import subprocess

import pytest

import serving

TEMPLATE = """\
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}
{{- '<|im_start|>assistant\\n<think>\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{- '\\n</think>\\n\\n' }}{%- endif %}"""
MESSAGES = [{"role": "user", "content": "Count from 3 to 12."}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    template = tmp_path_factory.mktemp("template") / "think.jinja"
    template.write_text(TEMPLATE)
    options = ["--chat-template", str(template), "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    with serving.Server("--dtype", "float32", *options) as server:
        yield server
        assert server.process.poll() is None, "the server died:\n" + "".join(server.lines[-20:])


def ask(thinker, stream=False, extra=None, **options):
    """(thought, content, usage, finish_reason)"""
    options = {"max_tokens": 60, "seed": 3, **options}
    if stream:
        options["stream_options"] = {"include_usage": True}
    answer = thinker.client().chat.completions.create(
        model=thinker.name, messages=MESSAGES, stream=stream, extra_body=extra or {}, **options
    )
    if not stream:
        message = answer.choices[0].message
        thought = getattr(message, "reasoning_content", None)
        assert thought == getattr(message, "reasoning", None)
        return thought or "", message.content, answer.usage, answer.choices[0].finish_reason
    thought, content, usage, reason = "", "", None, None
    for chunk in answer:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            thought += getattr(choice.delta, "reasoning", None) or ""
            content += choice.delta.content or ""
            reason = choice.finish_reason or reason
    return thought, content, usage, reason


@pytest.mark.parametrize("stream", [False, True])
def test_a_budget_ends_the_thought(thinker, stream):
    thought, content, usage, _ = ask(thinker, stream, {"thinking_token_budget": 6})
    assert thought and content and "think" not in thought + content
    assert 0 < usage.completion_tokens_details.reasoning_tokens <= 6


def test_streams_equal_whole_answers(thinker):
    assert ask(thinker, False, {"reasoning_budget": 4})[:2] == ask(thinker, True, {"reasoning_budget": 4})[:2]


def test_without_a_budget_all_may_be_thought(thinker):
    thought, _, usage, reason = ask(thinker, max_tokens=3, logit_bias={"8181": -100})
    assert reason == "length" and usage.completion_tokens_details.reasoning_tokens == 3


def test_the_thought_may_be_left_out(thinker):
    thought, content, usage, _ = ask(thinker, extra={"thinking_token_budget": 5, "include_reasoning": False})
    assert not thought and content and usage.completion_tokens_details.reasoning_tokens > 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_schema_begins_after_the_thought(thinker, stream, seed):
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
    thought, content, _, reason = ask(
        thinker, stream, {"thinking_token_budget": 5}, response_format=form, seed=seed, max_tokens=200
    )
    assert reason == "stop" and len(json.loads(content)["city"]) <= 8
    assert thought


@pytest.mark.parametrize("extra", [{"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}])
def test_thoughts_can_be_turned_off(thinker, extra):
    thought, content, usage, _ = ask(thinker, extra=extra, temperature=0)
    assert not thought and content and usage.completion_tokens_details.reasoning_tokens == 0


def test_a_schema_without_a_thought(thinker):
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
    thought, content, _, _ = ask(thinker, extra={"reasoning_effort": "none"}, response_format=form, max_tokens=200)
    assert not thought and set(json.loads(content)) == {"city"}


def test_a_demanded_call_comes_after_the_thought(thinker):
    tool = {"type": "function", "function": {"name": "find", "parameters": SCHEMA}}
    answer = thinker.client().chat.completions.create(
        model=thinker.name, messages=MESSAGES, tools=[tool], tool_choice="required", parallel_tool_calls=False, seed=1,
        max_tokens=200, extra_body={"thinking_token_budget": 5},
    )
    message = answer.choices[0].message
    assert message.reasoning_content and not message.content and answer.choices[0].finish_reason == "tool_calls"
    assert [call.function.name for call in message.tool_calls] == ["find"]
    assert set(json.loads(message.tool_calls[0].function.arguments)) == {"city"}


@pytest.mark.parametrize("stream", [False, True])
def test_the_older_form_of_calls(client, model, stream):
    functions = [{"name": "find", "parameters": SCHEMA}]
    answer = client.chat.completions.create(
        model=model, messages=MESSAGES, functions=functions, function_call={"name": "find"}, stream=stream, seed=1,
        max_tokens=200,
    )
    if stream:
        deltas = [chunk.choices[0].delta.function_call for chunk in answer]
        name = "".join(delta.name or "" for delta in deltas if delta)
        arguments = "".join(delta.arguments or "" for delta in deltas if delta)
    else:
        assert answer.choices[0].finish_reason == "function_call"
        made = answer.choices[0].message.function_call
        name, arguments = made.name, made.arguments
    assert name == "find" and set(json.loads(arguments)) == {"city"}
    call = {"role": "assistant", "content": None, "function_call": {"name": name, "arguments": arguments}}
    result = {"role": "function", "name": "find", "content": "found"}
    more = client.chat.completions.create(
        model=model, messages=[*MESSAGES, call, result], functions=functions, max_tokens=20
    )
    assert more.choices[0].finish_reason in ("stop", "length", "function_call")


def parse(*lines):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    done = subprocess.run([serving.binary(), "parse", "--jsonl"], input=text, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("split", [False, True])
def test_parse_finds_thoughts_and_calls(split):
    call = '<tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call>'
    answers = parse(
        {"parser": "hermes", "reasoning_parser": "qwen3", "split": split, "text": f"<think>\nwhy é\n</think>\n\n{call}"},
        {"reasoning_parser": "qwen3", "split": split, "text": "Hello", "prompt": "assistant\n"},
        {"reasoning_parser": "qwen3", "split": split, "text": "Hello", "prompt": "assistant\n<think>\n"},
        {"parser": "hermes", "reasoning_parser": None, "split": split, "text": "a " + call},
        {"parser": "nothing", "text": "a"},
        {"text": 5},
    )
    calls = [{"name": "f", "arguments": {"x": "é"}}]
    assert answers[:4] == [
        {"content": None, "reasoning_content": "why é", "tool_calls": calls},
        {"content": "Hello", "reasoning_content": None, "tool_calls": []},
        {"content": None, "reasoning_content": "Hello", "tool_calls": []},
        {"content": "a", "reasoning_content": None, "tool_calls": calls},
    ]
    assert set(answers[4]) == set(answers[5]) == {"error"}
