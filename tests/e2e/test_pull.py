"""Ollama's client pulls a model from a hub on this machine, and talks with it."""

import hashlib
import http.server
import json
import threading

import httpx
import ollama
import pytest

from serving import MODEL, Server

COMMIT = "c" * 40
FILES = {path.name: path.read_bytes() for path in MODEL.iterdir() if path.is_file()}
HELLO = [{"role": "user", "content": "Hello!"}]
GREEDY = {"temperature": 0, "num_predict": 20}


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers for the repository org/minnow, as huggingface.co does."""

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        start = f"/org/minnow/resolve/{COMMIT}/"
        if self.path == "/api/models/org/minnow/revision/main":
            names = [{"rfilename": name} for name in FILES]
            self.answer(json.dumps({"sha": COMMIT, "siblings": names}).encode(), "")
        elif self.path.startswith(start) and (content := FILES.get(self.path.removeprefix(start))) is not None:
            self.answer(content, hashlib.sha256(content).hexdigest())
        else:
            self.send_error(404)

    def answer(self, body: bytes, checksum: str):
        self.send_response(200)
        self.send_header("ETag", f'"{checksum}"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Variables for a server: the hub's address, and an empty cache."""
    hub = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    yield {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(tmp_path_factory.mktemp("cache"))}
    hub.shutdown()


@pytest.fixture(scope="module")
def puller(environment):
    with Server("--allow-pull", "--dtype", "float32", "--served-model-name", "first", env=environment) as running:
        yield running


@pytest.fixture(scope="module")
def llama(puller):
    return ollama.Client(host=puller.url, timeout=120)


def test_a_pulled_model_answers(llama, client, model):
    name = "hf.co/org/minnow"
    with pytest.raises(ollama.ResponseError) as error:
        llama.chat(name, HELLO)
    assert error.value.status_code == 404
    parts = list(llama.pull(name, stream=True))
    assert (parts[0].status, parts[-1].status) == ("pulling manifest", "success")
    done = {part.digest: (part.completed, part.total) for part in parts if part.digest}
    assert done and all(completed == total for completed, total in done.values())
    weights = "sha256:" + hashlib.sha256(FILES["model.safetensors"]).hexdigest()
    assert done[weights][1] == len(FILES["model.safetensors"])
    answer = llama.chat(name, HELLO, options=GREEDY)
    same = client.chat.completions.create(model=model, messages=HELLO, temperature=0, max_tokens=20)
    assert answer.message.content == same.choices[0].message.content
    assert {listed.model for listed in llama.list().models} == {"first", "org/minnow"}
    assert llama.pull("org/minnow").status == "success"


def test_what_is_not_there(llama):
    with pytest.raises(ollama.ResponseError) as error:
        llama.pull("org/other")
    assert error.value.status_code == 404 and "org/other" in error.value.error
    with pytest.raises(ollama.ResponseError, match="org/other"):
        list(llama.pull("org/other", stream=True))
    with pytest.raises(ollama.ResponseError, match=r"org/name\[:tag\]"):
        llama.pull("/etc/passwd")


def test_a_folder_of_the_server_is_no_model_of_the_hub(llama):
    """The server runs in the repository, which has a folder of this name."""
    with pytest.raises(ollama.ResponseError) as error:
        llama.pull("models/minnow-6m")
    assert error.value.status_code == 404


def test_a_limit_of_the_cache(environment, tmp_path):
    limits = {**environment, "HF_HOME": str(tmp_path)}
    with Server("--allow-pull", "--pull-cache-bytes", "1m", env=limits) as running:
        answer = httpx.post(running.url + "/api/pull", json={"model": "org/minnow", "stream": False}, timeout=60)
        assert answer.status_code == 507 and "--pull-cache-bytes" in answer.json()["error"]
    assert not list(tmp_path.rglob("*.incomplete"))


def test_nobody_pulls_unless_it_is_allowed(environment):
    with Server(env=environment) as running:
        answer = httpx.post(running.url + "/api/pull", json={"model": "org/minnow"}, timeout=60)
        assert answer.status_code == 403 and "--allow-pull" in answer.json()["error"]
