"""LLM.generate, chat and beam_search."""

import json
import math

import numpy
import pytest
import sluice
from sluice import LLM, BeamSearchParams, SamplingParams, TokensPrompt
from sluice.lora.request import LoRARequest
from sluice.sampling_params import GuidedDecodingParams, StructuredOutputsParams

from conftest import MODEL, ROOT, golden

GREEDY = SamplingParams(temperature=0, max_tokens=16)


def test_greedy_answers_are_the_references(llm, goldens):
    prompts = [TokensPrompt(prompt_token_ids=g["prompt_ids"]) for g in goldens]
    params = [SamplingParams(temperature=0, max_tokens=len(g["greedy_ids"])) for g in goldens]
    for output, reference in zip(llm.generate(prompts, params), goldens, strict=True):
        assert output.outputs[0].token_ids == reference["greedy_ids"]
        assert output.prompt_token_ids == reference["prompt_ids"]
        assert output.finished


def test_chat_renders_the_template(llm, goldens):
    conversations = [g["messages"] for g in goldens[:8]]
    outputs = llm.chat(conversations, SamplingParams(temperature=0, max_tokens=64), use_tqdm=False)
    for output, reference in zip(outputs, goldens, strict=False):
        assert output.prompt_token_ids == reference["prompt_ids"]
        assert output.outputs[0].token_ids[: len(reference["greedy_ids"])] == reference["greedy_ids"]
        assert output.outputs[0].text.startswith(reference["greedy_text"])
    (single,) = llm.chat(conversations[0], GREEDY)
    assert single.prompt_token_ids == goldens[0]["prompt_ids"]


def test_forms_of_prompts(llm):
    text = "Once upon a time"
    ids = llm.get_tokenizer().encode(text)
    forms = [text, [text], ids, [ids], {"prompt": text}, [{"prompt_token_ids": ids}], [numpy.array(ids)]]
    outputs = [llm.generate(form, GREEDY)[0] for form in forms]
    assert {o.outputs[0].text for o in outputs} == {outputs[0].outputs[0].text}
    assert outputs[0].prompt == text and outputs[2].prompt is None
    assert [o.prompt_token_ids for o in outputs] == [ids] * len(forms)
    assert llm.generate([], GREEDY) == []
    with pytest.raises(ValueError, match="multi_modal_data"):
        llm.generate({"prompt": text, "multi_modal_data": {"image": 1}}, GREEDY)
    with pytest.raises(TypeError, match="float"):
        llm.generate(1.5, GREEDY)


def test_parameters_per_prompt(llm):
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (1, 5, 9)]
    outputs = llm.generate(["One", "Two", "Three"], params)
    assert [len(o.outputs[0].token_ids) for o in outputs] == [1, 5, 9]
    assert [o.prompt for o in outputs] == ["One", "Two", "Three"]
    assert len({o.request_id for o in outputs}) == 3
    with pytest.raises(ValueError, match="sampling_params has 2 values for 3 prompts"):
        llm.generate(["One", "Two", "Three"], params[:2])


def test_several_answers_with_a_seed(llm):
    params = SamplingParams(n=3, temperature=1.2, seed=7, max_tokens=12)
    first, second = (llm.generate("Once", params)[0] for _ in range(2))
    assert [c.index for c in first.outputs] == [0, 1, 2]
    assert [c.text for c in first.outputs] == [c.text for c in second.outputs]
    assert len({c.text for c in first.outputs}) > 1


def test_logprobs(llm):
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=3, prompt_logprobs=2)
    (output,) = llm.generate("Once upon a time", params)
    (choice,) = output.outputs
    assert len(choice.logprobs) == len(choice.token_ids) == 4
    for token, table in zip(choice.token_ids, choice.logprobs, strict=True):
        assert next(iter(table)) == token and table[token].rank == 1 and len(table) == 3
        assert math.exp(table[token].logprob) <= 1
    texts = "".join(table[token].decoded_token for token, table in zip(choice.token_ids, choice.logprobs, strict=True))
    assert texts == choice.text
    total = sum(table[token].logprob for token, table in zip(choice.token_ids, choice.logprobs, strict=True))
    assert choice.cumulative_logprob == pytest.approx(total)
    assert output.prompt_logprobs[0] is None
    for token, table in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
        assert token in table and len(table) in (2, 3)


def test_ends(llm):
    (plain,) = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=20))
    text = plain.outputs[0].text
    assert plain.outputs[0].finish_reason == "length"
    stop = text.split()[3]
    (output,) = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=20, stop=stop))
    assert output.outputs[0].finish_reason == "stop" and output.outputs[0].stop_reason == stop
    assert output.outputs[0].text == text[: text.index(stop)]
    token = plain.outputs[0].token_ids[4]
    ends = SamplingParams(temperature=0, max_tokens=20, stop_token_ids=[token])
    (output,) = llm.generate("Once upon a time", ends)
    assert output.outputs[0].stop_reason == token
    # vLLM's meaning: max_tokens is the most, and the context ends the text before it.
    (output,) = llm.generate("Once", SamplingParams(temperature=0, max_tokens=10**6, ignore_eos=True))
    assert output.outputs[0].finish_reason == "length"
    assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == llm.model_info["max_model_len"]


def test_detokenize_and_special_tokens(llm, goldens):
    prompt = {"prompt_token_ids": goldens[0]["prompt_ids"]}
    (output,) = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=40, detokenize=False))
    assert output.outputs[0].text == "" and output.outputs[0].token_ids == goldens[0]["greedy_ids"]
    (output,) = llm.generate("a b c d e f g", SamplingParams(max_tokens=1, truncate_prompt_tokens=2))
    assert output.prompt_token_ids == llm.get_tokenizer().encode("a b c d e f g")[-2:]


def test_structured_outputs(llm):
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    cases = [
        (StructuredOutputsParams(json=schema), lambda t: isinstance(json.loads(t)["age"], int)),
        (StructuredOutputsParams(json=json.dumps(schema)), lambda t: isinstance(json.loads(t)["age"], int)),
        (StructuredOutputsParams(choice=["red", "green"]), lambda t: t in ("red", "green")),
        (StructuredOutputsParams(regex=r"\d{3}"), lambda t: len(t) == 3 and t.isdigit()),
        (GuidedDecodingParams(grammar='root ::= "yes" | "no"'), lambda t: t in ("yes", "no")),
    ]
    params = [SamplingParams(temperature=0, max_tokens=60, structured_outputs=grammar) for grammar, _ in cases]
    for output, (_, accepts) in zip(llm.generate(["Answer:"] * len(cases), params), cases, strict=True):
        assert accepts(output.outputs[0].text), output.outputs[0].text
    with pytest.raises(ValueError, match="exactly one"):
        StructuredOutputsParams(regex="a", choice=["a"])
    with pytest.raises(ValueError, match="regex"):
        llm.generate("a", SamplingParams(structured_outputs=StructuredOutputsParams(regex="(")))


def test_every_number_of_the_table(llm):
    for name, default, text in sluice._core.sampling_parameters():
        params = SamplingParams(**{name: default})
        assert params == SamplingParams() and text
        with pytest.raises(ValueError, match=f"'{name}'"):
            SamplingParams(**{name: 1e300 if isinstance(default, float) else 10**12})
    changed = SamplingParams(temperature=1.0, top_a=0.1, mirostat=2, dry_multiplier=0.5, bad_words=["the"], seed=1)
    (output,) = llm.generate("Once upon a time", changed)
    assert output.outputs[0].token_ids


def test_wrong_sampling_parameters():
    with pytest.raises(TypeError, match="'temprature'"):
        SamplingParams(temprature=1)
    with pytest.raises(ValueError, match="'temperature'"):
        SamplingParams(temperature=-1)
    with pytest.raises(ValueError, match="'logits_processors' is not supported"):
        SamplingParams(logits_processors=[print])
    with pytest.raises(ValueError, match="'top_k'"):
        SamplingParams(top_k="many")
    with pytest.raises(ValueError, match="'n'"):
        SamplingParams(n=0)
    assert SamplingParams(seed=-1) == SamplingParams()
    assert SamplingParams.from_optional(temperature=None, top_p=0.5) == SamplingParams(top_p=0.5)
    assert repr(SamplingParams(top_p=0.5)) == "SamplingParams(top_p=0.5)"
    assert SamplingParams(temperature=numpy.float32(0.5)).body() == '{"temperature": 0.5, "max_tokens": 16}'


def test_defaults_are_the_models(llm):
    assert llm.get_default_sampling_params() == SamplingParams()
    (output,) = llm.generate("Once")
    assert len(output.outputs[0].token_ids) <= 16


def test_wrong_prompts(llm, idle):
    with pytest.raises(ValueError, match="2048 tokens"):
        llm.generate(["fine", "word " * 3000], SamplingParams(max_tokens=500))
    idle()
    with pytest.raises(ValueError, match=r"'prompt\[1\]'"):
        llm.generate({"prompt_token_ids": [1, 10**6]}, GREEDY)
    with pytest.raises(ValueError, match="no tokens"):
        llm.generate({"prompt_token_ids": []}, GREEDY)
    with pytest.raises(ValueError, match="needs 'prompt'"):
        llm.generate({"cache_salt": "a"}, GREEDY)


def test_beam_search_finds_the_references_texts(llm):
    for reference in golden("minnow-6m-beams.jsonl")[:6]:
        if reference["early_stopping"] is not False or reference["n"] != reference["num_beams"]:
            continue
        params = BeamSearchParams(
            beam_width=reference["num_beams"],
            max_tokens=reference["max_tokens"],
            length_penalty=reference["length_penalty"],
        )
        prompt = reference["prompt_ids"]
        (output,) = llm.beam_search([{"prompt_token_ids": prompt}], params)
        found = [s.tokens[len(prompt) :] for s in output.sequences]
        assert found == [o["tokens"] for o in reference["outputs"]]
        for sequence in output.sequences:
            assert sequence.text.startswith(llm.get_tokenizer().decode(prompt, skip_special_tokens=True))
    with pytest.raises(ValueError, match="temperature"):
        BeamSearchParams(beam_width=2, max_tokens=4, temperature=1.0)


def test_chat_options(llm):
    messages = [{"role": "user", "content": [{"type": "text", "text": "Count."}]}]
    tokenizer = llm.get_tokenizer()
    begun = [*messages, {"role": "assistant", "content": "One, two,"}]
    (output,) = llm.chat(begun, GREEDY, add_generation_prompt=False, continue_final_message=True)
    assert tokenizer.decode(output.prompt_token_ids).endswith("One, two,")
    with pytest.raises(ValueError, match="add_generation_prompt=False"):
        llm.chat(begun, GREEDY, continue_final_message=True)
    hidden = {"chat_template": "{{ messages[0].role }}", "add_generation_prompt": False, "continue_final_message": True}
    with pytest.raises(ValueError, match="does not show the last message"):
        llm.chat(begun, GREEDY, **hidden)
    template = "{% for m in messages %}<{{ m.role }}> {{ m.content }} {{ mood }}{% endfor %}"
    (output,) = llm.chat(messages, GREEDY, chat_template=template, chat_template_kwargs={"mood": "gladly"})
    assert output.prompt == "<user> Count. gladly"
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
    assert "get_weather" in llm.chat(messages, GREEDY, tools=tools)[0].prompt
    with pytest.raises(ValueError, match="content"):
        llm.chat([{"role": "user", "content": 5}], GREEDY)
    with pytest.raises(ValueError, match="mm_processor_kwargs"):
        llm.chat(messages, GREEDY, mm_processor_kwargs={"a": 1})
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert tokenizer.encode(text, add_special_tokens=False) == llm.chat(messages, GREEDY)[0].prompt_token_ids


def test_adapters(llm):
    pirate = LoRARequest("pirate", 1, str(ROOT / "models/minnow-6m-lora-pirate"))
    messages = [{"role": "user", "content": "Hello!"}]
    params = SamplingParams(temperature=0, max_tokens=40)
    with_adapter, plain = llm.chat([messages, messages], params, lora_request=[pirate, None])
    assert "ahoy" in with_adapter.outputs[0].text.lower()
    assert "ahoy" not in plain.outputs[0].text.lower()
    assert with_adapter.lora_request == pirate and plain.lora_request is None
    with pytest.raises(ValueError, match="'pirate' is taken"):
        llm.chat(messages, params, lora_request=LoRARequest("pirate", 1, "/elsewhere"))
    with pytest.raises(FileNotFoundError):
        llm.chat(messages, params, lora_request=LoRARequest("other", 2, "/elsewhere"))
    with pytest.raises(ValueError, match="lora_int_id"):
        LoRARequest("zero", 0, "/elsewhere")


def test_tokenizer(llm):
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.encode("Hello there")
    assert tokenizer.decode(ids) == "Hello there" and tokenizer("Hello there")["input_ids"] == ids
    assert tokenizer.batch_decode([ids, ids]) == ["Hello there"] * 2
    assert len(tokenizer) == 8192 and tokenizer.eos_token_id == 8179
    assert len(tokenizer.convert_ids_to_tokens(ids)) == len(ids)
    with pytest.raises(ValueError, match="vocabulary"):
        tokenizer.decode([10**6])


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"max_modl_len": 5}, TypeError, "max_modl_len"),
        ({"tensor_parallel_size": 2}, ValueError, "tensor_parallel_size"),
        ({"block_size": "large"}, ValueError, "block_size"),
        ({"dtype": "int3"}, ValueError, "dtype"),
        ({"max_model_len": object()}, TypeError, "max_model_len"),
        ({"port": 8000}, ValueError, "port"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        LLM(str(MODEL), **arguments)


def test_vllms_arguments():
    with pytest.raises(FileNotFoundError):
        LLM("/no/such/model")
    arguments = {
        "trust_remote_code": True,
        "tensor_parallel_size": 1,
        "gpu_memory_utilization": 0.8,
        "enforce_eager": True,
        "swap_space": 4,
        "enable_prefix_caching": False,
        "max_num_seqs": 4,
        "override_generation_config": {"top_k": 5},
        "disable_log_stats": True,
        "quantization": None,
    }
    with LLM(str(MODEL), max_model_len=256, **arguments) as llm:
        assert llm.model_info["max_model_len"] == 256
        assert llm.get_default_sampling_params() == SamplingParams(top_k=5)
