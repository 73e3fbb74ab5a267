"""Tests the program's options as a whole: exit status, messages, and what options of other servers change."""

import json
import os
import subprocess
import time

import httpx
import jsonschema
import openai
import openapi_spec_validator
import pytest

from serving import MODEL, Server, binary


def run(*arguments, env=None, **options):
    options = {"capture_output": True, "text": True, "timeout": 60, **options}
    return subprocess.run([binary(), *map(str, arguments)], env={**os.environ, **(env or {})}, **options)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["srve"], "did you mean 'serve'?"),
        (["serve", "--prot", "1"], "did you mean '--port'?"),
        (["serve", MODEL, "--port", "-1"], "--port: -1 is out of range (expected 0 to 65535)"),
        (["serve", MODEL, "--data-parallel-size-local", "2"], "--data-parallel-size-local 2: not supported: one server"),
        (["serve", MODEL, "--quantization", "awq", "--port", "0"], "the checkpoint's method is none"),
        (["serve", MODEL, "--override-generation-config", '{"a": 1}', "--port", "0"], "unknown key 'a'"),
        (["serve", MODEL, "--ssl-certfile", "x"], "need each other"),
        (["serve", MODEL, "-ngl", "20"], "-ngl: '20' is not supported (expected all, auto or at least 99"),
        (["serve", MODEL, "--temp", "3"], "--temp: expected a number of at least 0 and at most 2, but got 3"),
        (["serve", MODEL, "--draft-p-split", "0.1"], "--draft-p-split 0.1: not supported: leave the option out"),
        (["serve", MODEL, "--dtype", "int3"], "--dtype: int3 not in"),
        (["pull"], "model is required"),
    ],
)
def test_unusable_options_end_with_status_2(arguments, message):
    done = run(*arguments)
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert done.stderr.splitlines()[-1].startswith("sluice: ")


def test_help_and_version_succeed():
    for arguments in (["--version"], ["--help"], ["serve", "--help"]):
        done = run(*arguments)
        assert done.returncode == 0 and done.stdout and not done.stderr


def test_models_of_the_cache(tmp_path):
    def hub(*arguments):
        return run(*arguments, env={"HF_HUB_CACHE": str(tmp_path)}, stdin=subprocess.DEVNULL)

    for name in ("org--one", "org--two", "plain"):
        folder = tmp_path / f"models--{name}"
        (folder / "blobs").mkdir(parents=True)
        (folder / "blobs" / "b").write_bytes(bytes(2 << 20))
        (folder / "snapshots" / "abc").mkdir(parents=True)
        (folder / "snapshots" / "abc" / "model.safetensors").symlink_to("../../blobs/b")
    (tmp_path / "datasets--org--three").mkdir()
    listed = [line.split() for line in hub("list").stdout.splitlines()]
    assert listed == [["org/one", "2.0", "MiB"], ["org/two", "2.0", "MiB"], ["plain", "2.0", "MiB"]]
    for arguments, status, message in (
        (["org/one"], 2, "--yes"),
        (["org/one:main", "--yes"], 2, "all of its revisions"),
        (["../models--org--one", "--yes"], 2, "expected org/name"),
        (["org/three", "--yes"], 1, "org/three is not in"),
    ):
        done = hub("rm", *arguments)
        assert done.returncode == status and message in done.stderr
    assert hub("rm", "org/one", "--yes").stdout == "removed org/one (2.0 MiB)\n"
    assert [line.split()[0] for line in hub("list").stdout.splitlines()] == ["org/two", "plain"]
    assert sorted(path.name for path in tmp_path.iterdir())[0] == "datasets--org--three"


def test_vllm_command_line(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("max-num-seqs: 3\nserved-model-name: [unused]\n")
    arguments = ["--dtype", "float", "--max_model_len", "1k", "--served-model-name", "a", "b", "--trust-remote-code",
                 "-dpl", "1", "--enforce-eager", "--config", str(config), "--generation-config", "vllm",
                 "--override-generation-config.temperature", "0", "--chat-template",
                 "{{ mood }}: {{ messages[0]['content'] }}", "--default-chat-template-kwargs", '{"mood": "calm"}']  # fmt: skip
    with Server(*arguments) as server:
        client = server.client()
        models = {model.id: model for model in client.models.list().data}
        assert set(models) == {"a", "b"} and models["a"].max_model_len == 1000
        assert "sluice: --trust-remote-code: nothing to do: no code of a model is ever run\n" in server.lines
        assert "sluice: -dpl 1: nothing to do, it is always so\n" in server.lines
        message = [{"role": "user", "content": "Hi"}]
        for kwargs, text in (({}, "calm: Hi"), ({"mood": "glad"}, "glad: Hi")):
            body = {"messages": message, "chat_template_kwargs": kwargs}
            assert httpx.post(server.url + "/apply-template", json=body).json()["prompt"] == text
        # The default temperature is 0.
        answers = {
            client.completions.create(model="b", prompt="Once", max_tokens=12, seed=seed).choices[0].text
            for seed in range(4)
        }
        assert len(answers) == 1


def test_llama_server_command_line():
    arguments = ["-c", "512", "-np", "2", "-ngl", "0", "-t", "2", "-tb", "2", "-ctk", "f32", "-ctv", "f32", "-fa", "on",
                 "--temp", "0", "--top-k", "40", "--top-p", "0.9", "--repeat-penalty", "1.1", "-n", "7", "--jinja", "-a",
                 "one,two", "--no-webui", "--reasoning-format", "none", "--no-context-shift", "-to", "60"]  # fmt: skip
    env = {"LLAMA_ARG_MIN_P": "0.05", "LLAMA_ARG_CTX_SIZE": "64", "LLAMA_ARG_FLASH_ATTN": "1"}
    with Server(*arguments, env=env) as server:
        models = {model.id: model for model in server.client().models.list().data}
        assert set(models) == {"one", "two"} and models["one"].max_model_len == 512
        defaults = httpx.get(server.url + "/props").json()["default_generation_settings"]["params"]
        expected = {"temperature": 0, "top_k": 40, "top_p": 0.9, "min_p": 0.05, "repeat_penalty": 1.1,
                    "repeat_last_n": 64, "n_predict": 7}  # fmt: skip
        assert {name: defaults[name] for name in expected} == expected
        answer = httpx.post(server.url + "/completion", json={"prompt": "Once", "ignore_eos": True}).json()
        assert answer["tokens_predicted"] == 7
        message = [{"role": "user", "content": "Tell me a long story."}]
        chat = server.client().chat.completions.create(model="two", messages=message, extra_body={"ignore_eos": True})
        assert chat.usage.completion_tokens == 7
        notes = [line for line in server.lines if "top-p" in line or "FLASH" in line or "MIN_P" in line]
        assert len(notes) == 3 and not any("CTX_SIZE" in line for line in server.lines)


def test_draft_model_of_a_llama_server_command_line():
    request = {"messages": [{"role": "user", "content": "Tell me a story about a fox."}],
               "max_tokens": 60, "temperature": 0.8, "seed": 1}  # fmt: skip
    answers = []
    draft = MODEL.parent / "minnow-1m-draft"
    for arguments in ([], ["-md", str(draft), "--draft-max", "3", "--draft-p-min", "0.3"]):
        with Server(*arguments) as server:
            answers += [httpx.post(server.url + "/v1/chat/completions", json=request).json()["choices"] for _ in "12"]
            metrics = httpx.get(server.url + "/metrics").text  # those of the second answer may be missing
    assert answers[0] == answers[2]
    accepted = [line for line in metrics.splitlines() if line.startswith("vllm:spec_decode_num_accepted_tokens_total")]
    assert float(accepted[0].split()[-1]) > 10
    done = run("serve", MODEL, "-md", "/nowhere", "--port", "0")
    assert done.returncode == 1 and "--speculative-config: the draft model: /nowhere" in done.stderr


def test_model_of_a_file(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"model": str(MODEL)}))
    done = run("inspect", env={"SLUICE_CONFIG": str(config)})
    assert done.returncode == 0 and str(MODEL.name) in done.stdout
    config.write_text("max-model-len: many\n")
    done = run("inspect", MODEL, "--config", config)
    assert done.returncode == 2 and "--max-model-len: many is not a whole number" in done.stderr


def request_lines(server, count):
    """The log's lines about requests, when there are `count` of them."""
    for _ in range(500):
        lines = [json.loads(line) for line in server.lines if line.startswith("{")]
        found = [line for line in lines if line["message"] == "request"]
        if len(found) >= count:
            return found
        time.sleep(0.01)
    raise AssertionError("".join(server.lines))


def test_a_line_about_each_request():
    with Server("--log-format", "json") as server:
        client = server.client()
        secret = "What is 17 + 25? xyzzy"
        message = [{"role": "user", "content": secret}]
        answer = client.chat.completions.with_raw_response.create(
            model=server.name, messages=message, max_tokens=9, extra_body={"ignore_eos": True}
        )
        usage = answer.parse().usage
        stream = client.completions.create(model=server.name, prompt="A", max_tokens=5, n=2, stream=True,
                                           extra_body={"ignore_eos": True})  # fmt: skip
        assert list(stream)
        with pytest.raises(openai.BadRequestError):
            client.completions.create(model=server.name, prompt="A " * 100_000, max_tokens=5)
        first, second, *_ = request_lines(server, 2)
        assert first["id"] == answer.headers["X-Request-Id"] and first["model"] == server.name
        assert (first["in"], first["out"], first["cached"]) == (usage.prompt_tokens, 9, 0)
        assert first["finish"] == "length" and 0 < first["ttft_ms"] <= first["total_ms"] and first["tpot_ms"] > 0
        assert second["out"] == 10 and second["finish"] == "length"
        text = "".join(server.lines)
        assert "xyzzy" not in text
        for part in ("model:     minnow-6m (llama", "backend:   ", "context:   ", "KV cache:  ", "/docs"):
            assert part in text


def test_requests_need_not_be_logged():
    with Server("--disable-log-requests") as server:
        server.client().completions.create(model=server.name, prompt="A", max_tokens=2)
        server.wait_idle()
        assert "request id=" not in "".join(server.lines)


def test_the_first_line_is_the_address_of_the_page(server):
    assert server.lines[0] == f"Open {server.url}/ in a browser.\n"
    assert "demo model" not in "".join(server.lines)


def test_a_newcomer_is_told_of_other_models_docs_and_metrics():
    with Server(model=None) as demo:
        text = "".join(demo.lines)
        assert "This is the demo model. For another one: sluice serve MODEL" in text
        assert f"{demo.url}/docs" in text and f"{demo.url}/metrics" in text


def test_openapi_document_is_valid(server):
    document = httpx.get(server.url + "/openapi.json").json()
    openapi_spec_validator.validate(document)
    chat = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"messages", "model", "temperature"} <= set(chat["properties"])
    # The schema takes a usual request and refuses a wrong one.
    validator = jsonschema.Draft202012Validator(chat)
    good = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0.5, "stop": ["a"], "seed": None}
    assert validator.is_valid(good)
    for wrong in ({"temperature": 3}, {"temperature": "x"}, {"messages": 1}, {"stop": 1}):
        assert not validator.is_valid({**good, **wrong}), wrong
    page = httpx.get(server.url + "/docs")
    assert page.headers["content-type"].startswith("text/html") and "/v1/chat/completions" in page.text


def test_logits_of_a_windowed_model_do_not_depend_on_the_chunk(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    config = json.loads((MODEL / "config.json").read_text())
    for key in ("attention_bias", "mlp_bias", "pretraining_tp"):
        del config[key]
    config.update(architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=16)
    (model / "config.json").write_text(json.dumps(config))
    (model / "model.safetensors").symlink_to((MODEL / "model.safetensors").resolve())
    ids = " ".join(str(5 + i % 60) for i in range(90))
    found = []
    for chunk in (0, 1, 7):
        output = tmp_path / str(chunk)
        done = run("logits", model, "--dtype", "float32", "--ids", ids, "--chunk", chunk, "-o", output)
        assert done.returncode == 0, done.stderr
        found.append(output.read_bytes())
    assert found[0] == found[1] == found[2]
