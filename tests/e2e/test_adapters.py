"""Adapters (LoRA) as models: chosen by name, loaded and unloaded while serving, and only from below --lora-root."""

import concurrent.futures
import random
import shutil
import struct

import httpx
import openai
import pytest

import serving

MODELS = serving.ROOT / "models"
PIRATE = f"pirate={MODELS / 'minnow-6m-lora-pirate'}"


def say(client, model, content="Hello!"):
    messages = [{"role": "user", "content": content}]
    answer = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=40)
    return answer.choices[0].message.content


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("adapters")
    (root / "json").symlink_to(MODELS / "minnow-6m-lora-json")  # leads out of the root
    (root / "broken").mkdir()
    shutil.copytree(MODELS / "minnow-6m-lora-json", root / "own")
    options = ["--lora-modules", PIRATE, "--max-loras", "2", "--lora-root", str(root)]
    with serving.Server(*options) as running:
        running.root = root
        yield running


def load(server, name, path):
    return httpx.post(f"{server.url}/v1/load_lora_adapter", json={"lora_name": name, "lora_path": path})


def unload(server, name):
    return httpx.post(f"{server.url}/v1/unload_lora_adapter", json={"lora_name": name})


def test_an_adapter_is_a_model(server):
    client = server.client()
    assert "ahoy" in say(client, "pirate").lower()
    assert "ahoy" not in say(client, server.name).lower()
    cards = {card.id: card for card in client.models.list().data}
    assert cards["pirate"].parent == server.name
    assert cards["pirate"].root == str(MODELS / "minnow-6m-lora-pirate")
    assert cards[server.name].parent is None


def test_loading_and_unloading(server):
    client = server.client()
    with pytest.raises(openai.NotFoundError):
        say(client, "own")
    assert load(server, "own", "own").status_code == 200
    assert load(server, "own", "own").status_code == 400
    first = say(client, "own")
    assert unload(server, "own").status_code == 200
    assert unload(server, "own").status_code == 404
    with pytest.raises(openai.NotFoundError):
        say(client, "own")
    assert load(server, "again", "own").status_code == 200
    assert say(client, "again") == first
    assert unload(server, "again").status_code == 200


def test_the_base_cannot_be_unloaded(server):
    assert unload(server, server.name).status_code == 404
    assert say(server.client(), server.name)


@pytest.mark.parametrize(
    "path",
    ["json", "..", ".", "", "/etc", "own/..", "own/../../..", "nowhere", str(MODELS / "minnow-6m-lora-json"),
     "own/adapter_config.json", "own\0", "x" * 5000],
)  # fmt: skip
def test_paths_outside_the_root_are_refused(server, path):
    answer = load(server, "hostile", path)
    assert answer.status_code == 400, answer.text
    assert "lora_path" in answer.json()["error"]["message"]


def test_a_folder_without_an_adapter(server):
    answer = load(server, "broken", "broken")
    assert answer.status_code == 404
    assert "adapter_config.json" in answer.json()["error"]["message"]


def gguf_adapter(kind="adapter"):
    """A GGUF file with random matrices of rank 2 for one projection of the demo model."""

    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    keys = {"general.type": kind, "general.architecture": "llama", "adapter.type": "lora"}
    tensors = {"blk.0.ffn_down.weight.lora_a": (1024, 2), "blk.0.ffn_down.weight.lora_b": (2, 256)}
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    out += b"".join(text(key) + struct.pack("<I", 8) + text(value) for key, value in keys.items())
    offset = 0
    for name, (columns, rows) in tensors.items():
        out += text(name) + struct.pack("<IQQIQ", 2, columns, rows, 0, offset)
        offset += 4 * columns * rows
    out += bytes(-len(out) % 32)
    numbers = random.Random(1)
    return out + struct.pack(f"<{offset // 4}f", *(numbers.gauss(0, 0.3) for _ in range(offset // 4)))


def test_a_gguf_file(server):
    root = server.root
    (root / "one.gguf").write_bytes(gguf_adapter())
    (root / "model.gguf").write_bytes(gguf_adapter("model"))
    (root / "cut.gguf").write_bytes(gguf_adapter()[:-100])
    assert load(server, "one", "one.gguf").status_code == 200
    client = server.client()
    assert say(client, "one") != say(client, server.name)
    assert unload(server, "one").status_code == 200
    for name, part in (("model.gguf", "general.type"), ("cut.gguf", "truncated")):
        answer = load(server, "bad", name)
        assert answer.status_code == 400, answer.text
        assert part in answer.json()["error"]["message"]


def test_loading_needs_a_root():
    with serving.Server("--enable-lora") as server:
        answer = load(server, "pirate", str(MODELS / "minnow-6m-lora-pirate"))
        assert answer.status_code == 403
        assert "--lora-root" in answer.json()["error"]["message"]


def test_no_request_is_lost_while_adapters_come_and_go(server):
    client = server.client()
    expected = {name: say(client, name) for name in ("pirate", server.name)}

    def ask(i):
        name = ("pirate", server.name)[i % 2]
        return say(client, name) == expected[name]

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = [pool.submit(ask, i) for i in range(64)]
        for _ in range(8):
            assert load(server, "own", "own").status_code == 200
            assert unload(server, "own").status_code == 200
        assert all(answer.result() for answer in answers)


def test_llama_servers_numbers(server):
    listed = httpx.get(f"{server.url}/lora-adapters").json()
    assert listed[0] == {"id": 0, "path": str(MODELS / "minnow-6m-lora-pirate"), "scale": 0.0}
    assert httpx.get(f"{server.url}/lora-adapters?model=pirate").json()[0]["scale"] == 1.0

    def complete(**fields):
        body = {"prompt": "Hello!", "n_predict": 24, "temperature": 0, "ignore_eos": True, **fields}
        return httpx.post(f"{server.url}/completion", json=body)

    adapted = complete(model="pirate").json()["content"]
    plain = complete().json()["content"]
    assert adapted != plain
    assert complete(lora=[{"id": 0, "scale": 1}]).json()["content"] == adapted
    assert complete(lora=[{"id": 0, "scale": 0.0}]).json()["content"] == plain
    assert complete(model="pirate", lora=[]).json()["content"] == plain
    assert complete(lora=[{"id": 0, "scale": 1.0000001}]).json()["tokens_cached"] == 0
    assert complete(lora=[{"id": 0, "scale": -1}]).json()["content"] not in (adapted, plain)
    for lora, field in (
        ([{"id": 0, "scale": "half"}], "lora[0].scale"),
        ([{"id": 0, "scale": 1e39}], "lora[0].scale"),
        ([{"id": 9, "scale": 1}], "lora[0].id"),
        ([{"id": 0, "scale": 1}, {"id": 0, "scale": 1}], "lora[1].id"),
        ([{"id": 0}], "lora[0].scale"),
        ({"id": 0, "scale": 1}, "lora"),
    ):
        for answer in (complete(lora=lora), httpx.post(f"{server.url}/lora-adapters", json=lora)):
            assert answer.status_code == 400
            assert f"'{field}'" in answer.text


def test_scales_for_all_requests(server):
    client = server.client()
    plain, pirate = say(client, server.name), say(client, "pirate")

    def set_scale(scale):
        answer = httpx.post(f"{server.url}/lora-adapters", json=[{"id": 0, "scale": scale}])
        assert answer.json() == {"success": True}
        assert httpx.get(f"{server.url}/lora-adapters").json()[0]["scale"] == scale

    set_scale(1)
    assert say(client, server.name) == pirate
    set_scale(0.125)
    assert say(client, "pirate") == pirate
    set_scale(0)
    assert say(client, server.name) == plain
