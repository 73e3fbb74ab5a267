"""Starts `sluice serve` with a bundled model, for the adapters."""
import atexit
import json
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUNDLED = ROOT / "models" / "minnow-6m"
CONTEXT = 32768  # of MODEL below; the tests ask for up to so many tokens
BINARY = pathlib.Path(os.environ.get("SLUICE_BIN", ROOT / "build" / "release" / "bin" / "sluice"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def variant(name: str, change) -> pathlib.Path:
    """A copy of the bundled model with a longer context. change(folder, config) may change it further."""
    folder = pathlib.Path(tempfile.gettempdir()) / f"sluice-compat-{os.getpid()}" / name
    if not folder.exists():
        shutil.copytree(BUNDLED, folder)
        config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": CONTEXT}
        change(folder, config)
        (folder / "config.json").write_text(json.dumps(config))
        atexit.register(shutil.rmtree, folder.parent, ignore_errors=True)
    return folder


def context(tokens: str) -> str:
    """The context that a test asks for, at most that of MODEL."""
    return str(min(int(tokens), CONTEXT))


def tokenizer():
    import transformers

    return transformers.AutoTokenizer.from_pretrained(MODEL)


def scorer(labels: int) -> pathlib.Path:
    """A model that scores: the bundled one, with a head of `labels` rows taken from its embeddings."""

    def add_head(folder, config):
        config["architectures"] = ["LlamaForSequenceClassification"]
        config["id2label"] = {str(i): f"LABEL_{i}" for i in range(labels)}
        data = (folder / "model.safetensors").read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        header, weights = json.loads(data[8 : 8 + size]), data[8 + size :]
        embeddings = header["model.embed_tokens.weight"]
        rows, width = embeddings["shape"]
        first, end = embeddings["data_offsets"]
        row_bytes = (end - first) // rows
        head = weights[first + 100 * row_bytes : first + (100 + labels) * row_bytes]
        offsets = [len(weights), len(weights) + len(head)]
        header["score.weight"] = {"dtype": embeddings["dtype"], "shape": [labels, width], "data_offsets": offsets}
        text = json.dumps(header).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + weights + head)

    return variant(f"scorer-{labels}", add_head)


def endless(folder, config):
    """No token ends an answer: the tests' own models seldom end theirs, and the tests count on it."""
    config["eos_token_id"] = 8191
    for name in ("generation_config.json", "tokenizer_config.json"):
        path = folder / name
        path.write_text(path.read_text().replace("8179", "8191").replace('"eos_token": "<|im_end|>",', ""))


MODEL = variant("minnow-6m", lambda folder, config: None)
ENDLESS = variant("minnow-6m-endless", endless)


class Server:
    """A server on 127.0.0.1, ready when the constructor returns. RuntimeError if it does not start."""

    def __init__(self, *args: str, port: int = 0, model: pathlib.Path = MODEL, env: dict | None = None):
        port = port or free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [str(BINARY), "serve", str(model), "--port", str(port), *map(str, args)]
        self.process = subprocess.Popen(command, env={**os.environ, **(env or {})})
        self.pid = self.process.pid
        end = time.monotonic() + 60
        while time.monotonic() < end and self.process.poll() is None:
            try:
                urllib.request.urlopen(self.url + "/health").close()
                return
            except OSError:
                time.sleep(0.02)
        self.stop()
        raise RuntimeError(f"{' '.join(command)} did not become ready")

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
