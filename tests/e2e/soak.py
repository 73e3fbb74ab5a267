"""Soak test: mixed load for a long time, with clients that leave and adapters that are loaded and unloaded.

  ./dev bench soak [--requests 4000000] [--clients 24]

The model is tiny, so that the server works for requests and not for tokens; its weights are random. Every answer is
compared with the one that the same request got alone. Answers that tell what else the server does are compared by their
status only. In the end no request may run or wait, no cache block, body or connection may be in use, and the process
has as many descriptors as at the start. The gate is memory: its slope over the last three quarters of the run is below
--slope KiB per 1000 requests. Runs of less than 400,000 requests report the slope only, as it is smaller than the
noise. Exits with 1 on any failure.
"""

import argparse
import array
import collections
import json
import multiprocessing
import os
import pathlib
import random
import shutil
import socket
import struct
import sys
import tempfile
import threading
import time
import urllib.parse

import serving
from raw_http import Connection, chat, http

HIDDEN, INNER, VOCABULARY = 32, 64, 8192  # the tokenizer is the demo model's


def write_tensors(path, shapes, seed):
    values, header, at = random.Random(seed), {}, 0
    data = array.array("f")
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        data.extend(values.gauss(0, 0.3) if len(shape) > 1 else 1.0 for _ in range(count))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * count]}
        at += 4 * count
    head = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + data.tobytes())


def write_model(folder):
    """A Llama of one layer in `folder`, and an adapter of it in `folder`/adapters/own."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(serving.MODEL / name, folder)
    config = json.loads((serving.MODEL / "config.json").read_text())
    config |= {"hidden_size": HIDDEN, "intermediate_size": INNER, "head_dim": HIDDEN, "num_hidden_layers": 1}
    config |= {"num_attention_heads": 1, "num_key_value_heads": 1, "dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config))
    layer, square = "model.layers.0.", [HIDDEN, HIDDEN]
    shapes = {"model.embed_tokens.weight": [VOCABULARY, HIDDEN], "model.norm.weight": [HIDDEN]}
    shapes |= {f"{layer}{name}_layernorm.weight": [HIDDEN] for name in ("input", "post_attention")}
    shapes |= {f"{layer}self_attn.{name}_proj.weight": square for name in "qkvo"}
    shapes |= {f"{layer}mlp.{name}_proj.weight": [INNER, HIDDEN] for name in ("gate", "up")}
    shapes[f"{layer}mlp.down_proj.weight"] = [HIDDEN, INNER]
    write_tensors(folder / "model.safetensors", shapes, 1)
    adapter = folder / "adapters" / "own"
    adapter.mkdir(parents=True)
    described = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (adapter / "adapter_config.json").write_text(json.dumps(described))
    at = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    shapes = {f"{at}A.weight": [2, HIDDEN], f"{at}B.weight": [HIDDEN, 2]}
    write_tensors(adapter / "adapter_model.safetensors", shapes, 2)


SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Ann", "Bob"]}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def requests(model):
    """Name, weight, status and bytes of each kind of request whose answer is always the same."""
    texts = [f"Tell me about the number {i}" for i in range(8)]
    long = "word " * 150
    out = []
    for i, text in enumerate(texts):
        out += [
            (f"chat {i}", 5, 200, chat(model, text)),
            (f"stream {i}", 3, 200, chat(model, text, stream=True)),
            (f"seeded {i}", 2, 200, chat(model, text, temperature=0.9, seed=i, top_p=0.9, n=2, logprobs=True)),
        ]
    completion = {"model": model, "prompt": ["Once", "The sea"], "max_tokens": 3, "temperature": 0, "stop": ["zz", "q"]}
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    out += [
        ("completions", 6, 200, http("POST", "/v1/completions", completion)),
        ("long prompt", 2, 200, chat(model, long)),
        ("schema", 2, 200, chat(model, "A person?", response_format=schema, max_tokens=24)),
        ("tools", 1, 200, chat(model, "Weather?", tools=[WEATHER], tool_choice="required", max_tokens=24)),
        ("messages", 2, 200, http("POST", "/v1/messages", {
            "model": model, "max_tokens": 3, "temperature": 0, "messages": [{"role": "user", "content": "Hi"}],
        })),
        ("tokenize", 8, 200, http("POST", "/tokenize", {"model": model, "prompt": texts[0]})),
        ("models", 3, 200, http("GET", "/v1/models")),
        ("health", 3, 200, http("GET", "/health")),
        ("metrics", 1, 200, http("GET", "/metrics")),
        ("not JSON", 3, 400, http("POST", "/v1/chat/completions", b'{"messages": [')),
        ("wrong type", 3, 400, chat(model, texts[0], temperature="hot")),
        ("bad schema", 1, 400, chat(model, texts[0], response_format={"type": "json_schema", "json_schema": {
            "name": "x", "schema": {"type": "object", "properties": {"a": {"type": "nothing"}}},
        }})),
        ("unknown model", 2, 404, chat("nothing", texts[0])),
        ("unknown route", 2, 404, http("GET", "/nothing")),
    ]  # fmt: skip
    return out


CHANGING = ("metrics", "health", "models", "unknown model")  # say what else happens
CHANGES = ("id", "created", "system_fingerprint", "request_id")  # fields that differ between equal answers


def essence(name, body):
    """What must be equal: the answer without times and names of requests."""

    def strip(value):
        if isinstance(value, dict):
            return {k: strip(v) for k, v in value.items() if k not in CHANGES and k != "usage"}
        return [strip(v) for v in value] if isinstance(value, list) else value

    if name in CHANGING:
        return None
    if not name.startswith("stream"):
        return strip(json.loads(body)) if body else None
    text, done = "", False
    for line in body.decode().splitlines():
        if line == "data: [DONE]":
            done = True
        elif line.startswith("data: "):
            for choice in json.loads(line[6:])["choices"]:
                text += choice["delta"].get("content") or ""
    return text if done else "cut"


class Client(threading.Thread):
    """Sends requests of all kinds over one connection after the other, until enough were sent."""

    def __init__(self, address, model, right, seed, share):
        super().__init__(daemon=True)
        self.address, self.share, self.random = address, share, random.Random(seed)
        self.kinds = requests(model)
        self.weights = [weight for _, weight, _, _ in self.kinds]
        self.right, self.counts, self.failures = right, collections.Counter(), []
        self.endless = chat(model, "Tell me a story", max_tokens=300, stream=True, ignore_eos=True)

    def run(self):
        left = self.share
        while left > 0 and len(self.failures) < 5:
            batch = min(left, self.random.randint(1, 60))
            try:
                self.one_connection(batch)
            except (OSError, ValueError, KeyError) as e:
                self.failures.append(f"{type(e).__name__}: {e}")
            left -= batch

    def one_connection(self, count):
        connection = Connection(self.address)
        for _ in range(count):
            choice = self.random.random()
            if choice < 0.03:
                self.leave(connection)
                connection = Connection(self.address)
                continue
            if choice < 0.04:
                connection.close(reset=self.random.random() < 0.5)
                self.garbage()
                connection = Connection(self.address)
                continue
            name, _, expected, sent = self.random.choices(self.kinds, self.weights)[0]
            connection.socket.sendall(sent)
            status, body, stays = connection.answer()
            self.counts[name.split(" ")[0]] += 1
            if status != expected:
                self.failures.append(f"{name}: status {status} instead of {expected}: {body[:200]!r}")
            elif (got := essence(name, body)) != self.right[name]:
                self.failures.append(f"{name}: {got!r} instead of {self.right[name]!r}")
            if not stays:
                connection.close()
                connection = Connection(self.address)
        connection.close(reset=self.random.random() < 0.1)

    def leave(self, connection):
        """Leaves in the middle of an answer, some behind further requests."""
        self.counts["left"] += 1
        connection.socket.sendall(self.endless * self.random.choice([1, 1, 3]))
        if self.random.random() < 0.8:
            connection.take(self.random.randint(1, 3000))
        connection.close(reset=self.random.random() < 0.5)

    def garbage(self):
        self.counts["garbage"] += 1
        connection = Connection(self.address)
        try:
            connection.socket.sendall(self.random.randbytes(self.random.randint(1, 400)) + b"\r\n\r\n")
            if self.random.random() < 0.5:
                connection.answer()
        except (OSError, ValueError, IndexError):
            pass  # any answer will do
        connection.close()


def reload_adapters(address, stop, counts):
    """Loads an adapter under a new name, asks it, and unloads it, once a second."""
    number = 0
    while not stop.wait(1):
        number += 1
        name = f"adapter-{number}"
        connection = Connection(address)
        for sent, expected in [
            (http("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": "own"}), 200),
            (chat(name, "Hello"), 200),
            (http("POST", "/v1/unload_lora_adapter", {"lora_name": name}), 200),
            (chat(name, "Hello"), 404),
        ]:
            connection.socket.sendall(sent)
            status, body, _ = connection.answer()
            if status != expected:
                counts["failures"].append(f"{name}: status {status} instead of {expected}: {body[:200]!r}")
        connection.close()
        counts["reloads"] = number


def run_clients(address, model, right, seed, shares, pipe):
    """One process: clients as threads. Sends the number of finished requests every second, then the result."""
    clients = [Client(address, model, right, seed + i, share) for i, share in enumerate(shares)]
    for client in clients:
        client.start()
    while any(client.is_alive() for client in clients):
        time.sleep(1)
        pipe.send(sum(sum(client.counts.values()) for client in clients))
    counts, failures = collections.Counter(), []
    for client in clients:
        counts.update(client.counts)
        failures += client.failures
    pipe.send((counts, failures))


def quiet_descriptors(server):
    """Descriptors of the server once all clients have left."""
    end = time.monotonic() + 10
    while server.metrics()["http_connections"] > 1 and time.monotonic() < end:
        time.sleep(0.2)
    time.sleep(1)  # this question's own connection
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def slope_of(samples):
    """Least squares: KiB per 1000 requests."""
    n = len(samples)
    x_mean, y_mean = (sum(s[i] for s in samples) / n for i in (0, 1))
    over = sum((x - x_mean) ** 2 for x, _ in samples)
    return sum((x - x_mean) * (y - y_mean) for x, y in samples) / over / 1024 * 1000 if over else 0.0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=4_000_000)
    parser.add_argument("--clients", type=int, default=24, help="connections at a time")
    parser.add_argument("--processes", type=int, default=1, help="processes that the clients are spread over")
    parser.add_argument("--slope", type=float, default=1.0, help="KiB per 1000 requests")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("options", nargs="*", help="for `sluice serve`, after --")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        folder = pathlib.Path(root) / "tiny"
        folder.mkdir()
        write_model(folder)
        adapters = ["--enable-lora", "--lora-root", str(folder / "adapters")]
        # A log of every request would fill this program's memory.
        options = ["--log-level", "warning", "--threads", "1", *adapters, *args.options]
        with serving.Server(*options, model=folder) as server:
            return soak(server, args)


def soak(server, args):
    url = urllib.parse.urlparse(server.url)
    address = (url.hostname, url.port)
    right = {}
    connection = Connection(address)
    for name, _, expected, sent in requests(server.name):
        connection.socket.sendall(sent)
        status, body, stays = connection.answer()
        if status != expected:
            print(f"{name}: status {status} instead of {expected}: {body[:300]!r}")
            return 1
        right[name] = essence(name, body)
        if not stays:
            connection.close()
            connection = Connection(address)
    connection.close()

    stop, reloads = threading.Event(), {"reloads": 0, "failures": []}
    reloader = threading.Thread(target=reload_adapters, args=(address, stop, reloads))
    begin, descriptors = time.monotonic(), quiet_descriptors(server)
    reloader.start()
    pipes, processes = [], []
    for i in range(args.processes):
        mine = args.clients // args.processes
        shares = [args.requests // (mine * args.processes)] * mine
        receiver, sender = multiprocessing.Pipe(duplex=False)
        run = (address, server.name, right, args.seed + 1000 * i, shares, sender)
        processes.append(multiprocessing.get_context("spawn").Process(target=run_clients, args=run))
        pipes.append(receiver)
        processes[-1].start()

    done, results, samples, last = [0] * args.processes, [None] * args.processes, [], 0.0
    while any(result is None for result in results):
        for i, pipe in enumerate(pipes):
            if results[i] is None and pipe.poll(1):
                news = pipe.recv()
                if isinstance(news, int):
                    done[i] = news
                else:
                    results[i] = news
        samples.append((sum(done), server.resident_bytes()))
        if time.monotonic() - last > 60:
            last = time.monotonic()
            print(f"{last - begin:.0f} s: {sum(done)} requests, {samples[-1][1] / 2**20:.1f} MiB", flush=True)
    for process in processes:
        process.join()
    stop.set()
    reloader.join()

    counts, failures = collections.Counter(), reloads["failures"]
    for more, failed in results:
        counts.update(more)
        failures += failed
    server.wait_idle()
    if (left := quiet_descriptors(server)) > descriptors:
        failures.append(f"{descriptors} descriptors at first, {left} in the end")
    for name, expected in {"vllm:kv_cache_usage_perc": 0, "http_request_body_bytes": 0, "http_connections": 1}.items():
        if (value := server.metrics()[name]) != expected:
            failures.append(f"{name} is {value} in the end")
    total, seconds = sum(counts.values()), time.monotonic() - begin
    slope = slope_of([s for s in samples if s[0] >= total / 4])
    if total >= 400_000 and slope > args.slope:
        failures.append(f"memory grows by {slope:.2f} KiB per 1000 requests, {args.slope} are allowed")
    server.terminate()
    if (status := server.wait()) != 0:
        failures.append(f"exit status {status}")
    kinds = ", ".join(f"{name} {count}" for name, count in counts.most_common())
    print(f"{total} requests and {reloads['reloads']} reloads in {seconds:.0f} s ({total / seconds:.0f}/s): {kinds}")
    first, last = (f"{bytes / 2**20:.1f} MiB" for bytes in (samples[0][1], samples[-1][1]))
    print(f"memory (RssAnon + VmSwap): {first} at first, {last} in the end, slope {slope:.3f} KiB per 1000 requests")
    print(f"{descriptors} descriptors at first, {left} in the end")
    for failure in failures[:20]:
        print("FAILED:", failure[:500])
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
