"""Tests the routes of other servers beside OpenAI's with the demo model: SGLang, TEI, TGI, and what vLLM adds."""

import json
import math

import httpx
import huggingface_hub
import openai
import pytest

import serving

TEXT = "Once upon a time, there was a little girl who lived in a village and had a dog. " * 4


@pytest.fixture(scope="module")
def embedder():
    with serving.Server("--task", "embed", "--dtype", "float32") as running:
        yield running


def sglang(server, **body):
    response = httpx.post(f"{server.url}/generate", json=body, timeout=120)
    assert response.status_code == 200, response.text
    return response.json()


def test_sglang_equals_completions(server, client, model):
    greedy = {"max_new_tokens": 12, "temperature": 0}
    expected = client.completions.create(
        model=model, prompt=TEXT, max_tokens=12, temperature=0, logprobs=2, extra_body={"return_token_ids": True}
    ).choices[0]
    answer = sglang(
        server, text=TEXT, sampling_params=greedy, return_logprob=True, top_logprobs_num=2, return_text_in_logprobs=True
    )
    assert answer["text"] == expected.text
    assert answer["output_ids"] == expected.token_ids
    logprobs = answer["meta_info"]["output_token_logprobs"]
    for ours, theirs in zip(logprobs, expected.logprobs.token_logprobs):
        assert math.isclose(ours[0], theirs, rel_tol=1e-6)
    assert [entry[2] for entry in logprobs][: len(expected.logprobs.tokens)] == expected.logprobs.tokens
    both = sglang(server, text=[TEXT, "The dog"], sampling_params=greedy)
    assert both[0]["text"] == expected.text and both[1]["text"] != expected.text
    with httpx.stream(
        "POST", f"{server.url}/generate", json={"text": TEXT, "sampling_params": greedy, "stream": True}, timeout=120
    ) as stream:
        data = [line[6:] for line in stream.iter_lines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    texts = [json.loads(event)["text"] for event in data[:-1]]
    assert texts[-1] == expected.text and all(b.startswith(a) for a, b in zip(texts, texts[1:]))


def test_sglang_scores_a_prompt(server, client, model):
    ids = httpx.post(f"{server.url}/tokenize", json={"prompt": TEXT}).json()["tokens"]
    answer = sglang(
        server, input_ids=ids, sampling_params={"max_new_tokens": 0}, return_logprob=True, logprob_start_len=len(ids) - 5
    )
    scored = answer["meta_info"]["input_token_logprobs"]
    assert [entry[1] for entry in scored] == ids[-5:] and scored[0][0] is None
    echo = client.completions.create(model=model, prompt=ids, max_tokens=0, logprobs=0, echo=True).choices[0]
    for ours, theirs in zip(scored[1:], echo.logprobs.token_logprobs[-4:]):
        assert math.isclose(ours[0], theirs, rel_tol=1e-5)


def test_cached_prefixes_are_forgotten(server):
    def cached():
        return sglang(server, text=TEXT, sampling_params={"max_new_tokens": 1})["meta_info"]["cached_tokens"]

    cached()
    assert cached() > 16
    assert httpx.post(f"{server.url}/reset_prefix_cache").status_code == 200
    assert cached() == 0
    assert cached() > 16
    assert httpx.post(f"{server.url}/flush_cache").text == "Cache flushed.\n"
    assert cached() == 0


def test_vllm_attributes_are_there(client, model):
    messages = [{"role": "user", "content": "Hello"}]
    assert client.chat.completions.create(model=model, messages=messages, max_tokens=1).prompt_logprobs is None
    assert client.completions.create(model=model, prompt="a", max_tokens=1).choices[0].prompt_logprobs is None


def test_too_many_tokens_name_their_field(client, model):
    messages = [{"role": "user", "content": "Hello"}]
    for name in ("max_tokens", "max_completion_tokens"):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=model, messages=messages, **{name: 1 << 20})
        assert caught.value.param == name and caught.value.code == "context_length_exceeded"


def test_tokenizer_info_is_the_file_with_the_template(server):
    info = httpx.get(f"{server.url}/tokenizer_info").json()
    stored = json.loads((serving.MODEL / "tokenizer_config.json").read_text())
    assert {key: value for key, value in info.items() if key != "chat_template"} == {
        key: value for key, value in stored.items() if key != "chat_template"
    }
    assert "messages" in info["chat_template"]


def test_invocations(server, embedder):
    def invoke(where, **body):
        return httpx.post(f"{where.url}/invocations", json=body, timeout=120).json()

    assert invoke(server, messages=[{"role": "user", "content": "Hi"}], max_tokens=2)["object"] == "chat.completion"
    assert invoke(server, prompt="Once", max_tokens=2)["object"] == "text_completion"
    assert invoke(embedder, input="a")["data"][0]["object"] == "embedding"
    assert invoke(embedder, query="a", documents=["b"])["results"][0]["index"] == 0
    assert invoke(embedder, queries="a", documents=["b"])["data"][0]["object"] == "score"


def test_tgi_with_its_client(server):
    client = huggingface_hub.InferenceClient(model=f"{server.url}/generate")
    answer = client.text_generation(TEXT, max_new_tokens=8, details=True)
    assert answer.details.generated_tokens <= 8 and answer.generated_text
    tokens = httpx.post(
        f"{server.url}/chat_tokenize", json={"messages": [{"role": "user", "content": "Hello there"}]}
    ).json()
    text = tokens["templated_text"]
    placed = [token for token in tokens["tokenize_response"] if token["stop"]]
    assert "".join(text[token["start"] : token["stop"]] for token in placed) == text
    assert all(text[token["start"] : token["stop"]] == token["text"] for token in placed)


def test_tei_with_its_client(embedder):
    vectors = huggingface_hub.InferenceClient(model=f"{embedder.url}/embed").feature_extraction("Hello there")
    expected = embedder.client().embeddings.create(model=embedder.name, input="Hello there").data[0].embedding
    assert all(math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-6) for a, b in zip(vectors[0], expected))
    similarity = huggingface_hub.InferenceClient(model=f"{embedder.url}/similarity")
    alike, unlike = similarity.sentence_similarity("Hello there", other_sentences=["Hello there", "bread"])
    assert math.isclose(alike, 1, rel_tol=1e-4) and unlike < alike
    ids = httpx.post(f"{embedder.url}/tokenize", json={"inputs": "Hello there", "add_special_tokens": False}).json()[0]
    assert "".join("Hello there"[token["start"] : token["stop"]] for token in ids) == "Hello there"
    decoded = httpx.post(f"{embedder.url}/decode", json={"ids": [token["id"] for token in ids]}).json()
    assert decoded == ["Hello there"]


def test_sleep_and_wake_up():
    with serving.Server("--load-models-on-demand") as server:
        client = server.client()

        def asleep():
            return httpx.get(f"{server.url}/is_sleeping").json()["is_sleeping"]

        assert asleep()
        assert httpx.post(f"{server.url}/wake_up", timeout=120).status_code == 200
        assert not asleep()
        client.completions.create(model=server.name, prompt="a", max_tokens=1)
        assert httpx.post(f"{server.url}/sleep?level=1").status_code == 200
        client.completions.create(model=server.name, prompt="a", max_tokens=1)
        assert not asleep()


def test_infill(server):
    body = {"input_prefix": "Once upon", "input_suffix": " time", "n_predict": 4, "temperature": 0}
    response = httpx.post(f"{server.url}/infill", json=body)
    assert response.status_code == 200 and isinstance(response.json()["content"], str)
    assert httpx.post(f"{server.url}/infill", json={"input_prefix": "a"}).status_code == 400
