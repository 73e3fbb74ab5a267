"""Several models in one process: the demo model in three configurations, loaded on demand and unloaded for each other."""

import concurrent.futures
import json
import pathlib
import re
import subprocess
import time

import httpx
import ollama
import openai
import pytest

from serving import MODEL, Server, binary

HELLO = [{"role": "user", "content": "Hello!"}]
CONFIG = f"""
max-num-seqs: 8
max-loaded-models: 2
models:
  - model: {MODEL}
    served-model-name: [exact, default]
    dtype: float32
  - model: {MODEL}
    served-model-name: small
    quantization: q8_0
    max_model_len: 1k
    lora-modules: [pirate={MODEL.parent / "minnow-6m-lora-pirate"}]
    load: on-demand
  - model: {MODEL}
    served-model-name: vectors
    task: embed
    load: on-demand
"""
NAMES = ["exact", "small", "vectors"]


def config_file(folder, text):
    path = folder / "sluice.yaml"
    path.write_text(text)
    return str(path)


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    with Server("--config", config_file(tmp_path_factory.mktemp("config"), CONFIG), model=None) as running:
        yield running
        assert running.process.poll() is None, "the server died:\n" + "".join(running.lines[-20:])


def say(server, name):
    answer = server.client().chat.completions.create(model=name, messages=HELLO, temperature=0, max_tokens=24)
    assert answer.model == name
    return answer.choices[0].message.content


def vector(server):
    return server.client().embeddings.create(model="vectors", input="Hello!").data[0].embedding


def loaded(server):
    cards = httpx.get(server.url + "/v1/models").json()["data"]
    return {card["id"] for card in cards if card["loaded"]} & set(NAMES)


def test_every_model_answers(several, server):
    assert several.name == ",".join(NAMES)
    cards = {card.id: card for card in several.client().models.list()}
    assert list(cards) == ["exact", "default", "small", "vectors", "pirate"]
    assert cards["small"].max_model_len == 1000 and cards["pirate"].parent == "small"
    assert cards["vectors"].task == "embed"
    assert say(several, "exact") == say(several, "default") == say(server, server.name)
    assert say(several, "small") and "ahoy" in say(several, "pirate").lower()
    assert len(vector(several)) > 16
    assert len(loaded(several)) == 2


def test_alternating_requests_of_several_threads(several):
    expected = {name: say(several, name) for name in ("exact", "small")}
    expected["vectors"] = vector(several)

    def ask(i):
        name = NAMES[i % 3]
        return (vector(several) if name == "vectors" else say(several, name)) == expected[name]

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        watched = pool.submit(lambda: [loaded(several) for _ in range(50)])
        assert all(pool.map(ask, range(60)))
        assert all(len(names) <= 2 for names in watched.result())
    metrics = several.metrics()
    loads = sum(metrics[f'sluice:model_loads_total{{model_name="{name}"}}'] for name in NAMES)
    assert loads >= 4 and metrics["sluice:model_load_failures_total"] == 0
    assert metrics["sluice:requests_waiting_for_model"] == 0
    assert any("to make room for" in line for line in several.lines)


def anonymous_memory(server):
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) << 10


def planned_memory(server):
    return sum(value for name, value in server.metrics().items() if name.startswith("sluice:memory_bytes{"))


def test_memory_stays_within_the_plan(several):
    """Besides the plan, the program has memory for tokenizers, templates and threads: about 25 MiB here."""
    uses = []
    for _ in range(4):
        for name in NAMES * 2:
            vector(several) if name == "vectors" else say(several, name)
        uses.append(anonymous_memory(several))
        assert uses[-1] < planned_memory(several) + (48 << 20)
    assert uses[-1] < uses[0] + (8 << 20)  # models that are unloaded leave nothing behind


def test_names(several):
    client = several.client()
    with pytest.raises(openai.NotFoundError, match="Served: `exact`, `default`, `small`, `vectors`, `pirate`"):
        client.chat.completions.create(model="other", messages=HELLO)
    answer = httpx.post(several.url + "/v1/chat/completions", json={"messages": HELLO})
    assert answer.status_code == 400 and "Served: `exact`" in answer.json()["error"]["message"]
    with pytest.raises(openai.BadRequestError, match="embed"):
        client.chat.completions.create(model="vectors", messages=HELLO)
    assert httpx.get(several.url + "/props").status_code == 400
    assert httpx.get(several.url + "/props?model=small").json()["default_generation_settings"]["n_ctx"] == 1000
    tokens = httpx.post(several.url + "/tokenize", json={"model": "small", "prompt": "Hello"}).json()
    assert tokens["max_model_len"] == 1000


def test_metrics_have_the_model(several):
    say(several, "exact")
    text = httpx.get(several.url + "/metrics").text
    assert 'vllm:num_requests_running{engine="0",model_name="exact"}' in text
    assert text.count("# TYPE vllm:num_requests_running gauge") == 1
    health = httpx.get(several.url + "/health").json()
    assert health["status"] == "ok" and health["models"] == 3 and 1 <= health["loaded"] <= 2


def test_ollama_loads_and_unloads(several):
    llama = ollama.Client(host=several.url, timeout=120)
    assert {model.model for model in llama.list().models} == {"exact", "default", "small", "vectors", "pirate"}
    assert llama.generate("small", keep_alive="10m").done_reason == "load"
    running = {model.model: model for model in llama.ps().models}
    assert running["small"].expires_at.year < 9999
    assert "completion" in llama.show("small").capabilities and "embedding" in llama.show("vectors").capabilities
    assert llama.generate("small", keep_alive=0).done_reason == "unload"
    end = time.monotonic() + 10
    while "small" in loaded(several) and time.monotonic() < end:
        time.sleep(0.01)
    assert "small" not in loaded(several)
    assert llama.chat("small", HELLO, options={"num_predict": 4}).done


def test_ps(several):
    say(several, "exact")
    done = subprocess.run([binary(), "ps", "--url", several.url], capture_output=True, text=True, timeout=60)
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0] == ["MODEL", "TASK", "CONTEXT", "LOADED"]
    assert ["exact", "generate", "2048", "yes"] in rows and len(rows) == 6
    done = subprocess.run([binary(), "ps", "--url", several.url + "/no"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "status 404" in done.stderr


def test_models_of_the_command_line_and_idle_time():
    options = ["--load-models-on-demand", "--model-idle-seconds", "1", "--max-num-seqs", "4"]
    with Server(f"one={MODEL}", f"two={MODEL}", *options, model=None) as server:
        assert loaded_names(server) == set()
        assert say(server, "one") == say(server, "two")
        assert loaded_names(server) == {"one", "two"}
        end = time.monotonic() + 20
        while loaded_names(server) and time.monotonic() < end:
            time.sleep(0.1)
        assert loaded_names(server) == set()
        assert say(server, "two")
        server.terminate()
        assert server.wait() == 0


def loaded_names(server):
    return {card["id"] for card in httpx.get(server.url + "/v1/models").json()["data"] if card["loaded"]}


def test_a_model_that_breaks_is_reported_and_tried_again(tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in MODEL.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    weights = next(copy.glob("*.safetensors"))
    with Server(f"copy={copy}", f"good={MODEL}", "--load-models-on-demand", "--max-num-seqs", "4", model=None) as server:
        whole = weights.read_bytes()
        weights.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(openai.InternalServerError, match="The model `copy` could not be loaded: ") as caught:
            say(server, "copy")
        assert caught.value.code == "model_load_failed"
        assert say(server, "good")
        weights.write_bytes(whole)
        assert say(server, "copy") == say(server, "good")


def test_one_model_on_demand():
    with Server("--load-models-on-demand", "--max-num-seqs", "4") as server:
        assert loaded_names(server) == set()
        answer = httpx.post(server.url + "/v1/completions", json={"prompt": "x", "max_tokens": 1}, timeout=60)
        assert answer.status_code == 200, "'model' may be left out"
        assert loaded_names(server) == {server.name}


@pytest.mark.parametrize(
    "arguments, config, message",
    [
        ([MODEL, MODEL], "", "two models have the name 'minnow-6m'"),
        (["a=" + str(MODEL), "b=" + str(MODEL), "--served-model-name", "x"], "", "--served-model-name: there are sev"),
        ([MODEL, MODEL / "config.json"], "", "config.json"),
        (["="], "", "expected MODEL or NAME=MODEL"),
        ([], "models: [{dtype: float32}]", "models[0]: needs a 'model'"),
        ([], f"models: [{{model: {MODEL}}}, {{model: a, max-model-lne: 4}}]", "models[1]: unknown option '--max-model-lne'"),
        ([], f"models: [{{model: {MODEL}, dtype: float7}}]", "models[0]: --dtype"),
        ([], f"models: [{{model: {MODEL}, threads: null}}]", "models[0]: threads: has no value"),
        ([], f"models: [{{model: {MODEL}, threads: 5000}}]", "models[0]: --threads: 5000 is out of range"),
        ([], f"models: [{{model: {MODEL}, load: later}}]", "models[0]: --load"),
        ([], f"models: [{{model: {MODEL}, port: 1}}]", "models[0]: "),
        ([MODEL], f"models: [{{model: {MODEL}}}]", "put it into the list"),
        ([], f"models: [{{model: {MODEL}, served-model-name: a}}, {{model: {MODEL}, served-model-name: [b, a]}}]",
         "two models have the name 'a'"),
        ([], f"models: [a={MODEL}, 'b=/no/such/model']", "/no/such/model"),
        ([], f"models: [a={MODEL}, {{model: {MODEL}, served-model-name: b, max-model-len: 1000000}}]", "model 'b': "),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused(tmp_path, arguments, config, message):
    if config:
        arguments = [*arguments, "--config", config_file(tmp_path, config)]
    command = [binary(), "serve", "--port", "0", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode in (1, 2) and message in done.stderr, json.dumps(done.stderr)
