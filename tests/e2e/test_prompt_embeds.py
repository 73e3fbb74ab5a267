"""vLLM's prompt_embeds: vectors in place of token ids, as torch.save files in base64."""

import base64
import collections
import io
import os
import struct

import numpy
import openai
import pytest

import serving
from torch_files import Storage, Tensor, read_safetensors, save, strides_of, torch

WIDTH = 256


@pytest.fixture(scope="module")
def server():
    with serving.Server("--enable-prompt-embeds", "--dtype", "float32") as running:
        yield running


@pytest.fixture(scope="module")
def table():
    shape, data = read_safetensors(serving.MODEL / "model.safetensors")["model.embed_tokens.weight"]
    bits = numpy.frombuffer(data, dtype=numpy.uint16).astype(numpy.uint32) << 16  # of bfloat16
    return bits.view(numpy.float32).reshape(shape)


def tensor_file(values, kind=None):
    """What torch.save writes of a float32 array; kind: of another one's bytes."""
    values = numpy.ascontiguousarray(values)
    storage = Storage("0", kind or torch.FloatStorage, values.tobytes(), values.itemsize)
    file = io.BytesIO()
    save(file, Tensor(storage, 0, tuple(values.shape), strides_of(values.shape)), [storage])
    return file.getvalue()


def encode(values):
    return base64.b64encode(tensor_file(values)).decode()


def complete(server, embeds, prompt="", **options):
    extra = {"prompt_embeds": embeds, "ignore_eos": True, **options.pop("extra", {})}
    options = {"temperature": 0, "max_tokens": 12, **options}
    return server.client().completions.create(model=server.name, prompt=prompt, extra_body=extra, **options)


def tokens(server, text):
    client = server.client()
    answer = client.completions.create(
        model=server.name, prompt=text, max_tokens=1, extra_body={"return_token_ids": True}
    )
    return answer.choices[0].prompt_token_ids


def by_ids(server, ids, **options):
    options = {"temperature": 0, "max_tokens": 12, "extra_body": {"ignore_eos": True}, **options}
    return server.client().completions.create(model=server.name, prompt=ids, **options)


def test_rows_of_the_table_are_answered_like_their_ids(server, table):
    for text in ("Once upon a time", "What is the capital of France?"):
        ids = tokens(server, text)
        expected, answer = by_ids(server, ids, logprobs=2), complete(server, encode(table[ids]), logprobs=2)
        assert answer.choices[0].text == expected.choices[0].text
        assert answer.choices[0].logprobs == expected.choices[0].logprobs
        assert answer.usage.prompt_tokens == len(ids)
        assert complete(server, encode(table[ids][None])).choices[0].text == expected.choices[0].text  # [1, rows, width]
        half = base64.b64encode(tensor_file(table[ids].view(numpy.uint16)[:, 1::2], torch.BFloat16Storage)).decode()
        assert complete(server, half).choices[0].text == expected.choices[0].text


def test_vectors_come_before_prompts(server, table):
    first, second = tokens(server, "Once upon a time"), tokens(server, "There was a boat")
    embeds = [encode(table[ids]) for ids in (first, second)]
    answer = complete(server, embeds, prompt="The capital", n=2)
    expected = [by_ids(server, ids).choices[0].text for ids in (first, second, tokens(server, "The capital"))]
    assert [c.text for c in answer.choices] == [text for text in expected for _ in range(2)]
    assert answer.usage.prompt_tokens == len(first) + len(second) + len(tokens(server, "The capital"))


def test_stream_equals_whole(server, table):
    embeds = encode(table[tokens(server, "Once upon a time")])
    whole = complete(server, embeds)
    chunks = complete(server, embeds, stream=True, stream_options={"include_usage": True})
    text, usage = "", None
    for chunk in chunks:
        text += chunk.choices[0].text if chunk.choices else ""
        usage = chunk.usage or usage
    assert text == whole.choices[0].text
    assert usage.prompt_tokens == whole.usage.prompt_tokens


def test_equal_vectors_share_blocks(server, table):
    ids = (tokens(server, "The clever mouse looked for cheese in the old house. ") * 5)[:50]
    embeds = encode(table[ids])
    other = table[ids].copy()
    other[0, 0] += 1
    cached = [
        answer.usage.prompt_tokens_details.cached_tokens
        for answer in (complete(server, embeds), complete(server, embeds), complete(server, encode(other)))
    ]
    assert cached == [0, 48, 0]


def refusal(server, embeds, **options):
    with pytest.raises(openai.BadRequestError) as error:
        complete(server, embeds, **options)
    return error.value.body


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.system, (f"touch {self.path}",))


def test_refusals_name_the_field(server, table):
    good = encode(table[[5, 6]])
    body = refusal(server, [good, "not base64!"])
    assert body["param"] == "prompt_embeds[1]" and "base64" in body["message"]
    assert "256" in refusal(server, encode(table[[5, 6], :100]))["message"]
    nan = table[[5, 6]].copy()
    nan[1, 3] = numpy.nan
    assert "row 1" in refusal(server, encode(nan))["message"]
    infinite = struct.pack("<e", float("inf")) * WIDTH
    assert "row 0" in refusal(server, base64.b64encode(tensor_file(
        numpy.frombuffer(infinite, dtype=numpy.uint16).reshape(1, WIDTH), torch.HalfStorage)).decode())["message"]
    assert "not a torch.save file" in refusal(server, "AAAA")["message"]
    assert refusal(server, good, echo=True)["param"] == "echo"
    for field, value in (("prompt_logprobs", 1), ("truncate_prompt_tokens", 1), ("context_shift", True)):
        assert refusal(server, good, extra={field: value})["param"] == field
    assert refusal(server, [7])["param"] == "prompt_embeds[0]"
    assert refusal(server, [])["param"] == "prompt"
    assert "maximum context length" in refusal(server, encode(numpy.zeros((2048, WIDTH), numpy.float32)))["message"]


def test_no_code_of_a_file_runs(server, tmp_path):
    file, trace = io.BytesIO(), tmp_path / "trace"
    save(file, Hostile(trace), [])
    assert "system" in refusal(server, base64.b64encode(file.getvalue()).decode())["message"]
    state = io.BytesIO()
    save(state, collections.OrderedDict(), [])
    assert "expected a tensor" in refusal(server, base64.b64encode(state.getvalue()).decode())["message"]
    assert not trace.exists()


def test_the_option_is_needed(table):
    with serving.Server() as without:
        body = refusal(without, encode(table[[5, 6]]))
        assert body["param"] == "prompt_embeds" and "--enable-prompt-embeds" in body["message"]


@pytest.mark.parametrize("option", ["--tensor-parallel-size", "--pipeline-parallel-size"])
def test_ranks(server, table, option):
    ids = tokens(server, "Once upon a time")
    with serving.Server("--enable-prompt-embeds", "--dtype", "float32", option, "2") as ranks:
        answer = complete(ranks, encode(table[ids]))
        assert answer.choices[0].text == by_ids(ranks, ids).choices[0].text
