"""Tests the server process as a whole: keys, metrics, overload, cancellation, signals, many streams."""

import asyncio
import json
import os
import pathlib
import subprocess
import threading
import time

import httpx
import openai
import pytest

from serving import MODEL, Server, binary

STORY = [{"role": "user", "content": "Tell me a story about a clever mouse."}]
ENDLESS = {"ignore_eos": True}


def stream_body(model, **more):
    return {"model": model, "messages": STORY, "stream": True, "temperature": 0, **more}


def test_api_keys():
    with Server("--api-key", "one", env={"SLUICE_API_KEY": "two"}) as server:
        for key in ("one", "two"):
            assert server.client(key).models.list().data
        with pytest.raises(openai.AuthenticationError) as caught:
            server.client("three").models.list()
        assert caught.value.code == "invalid_api_key"
        assert httpx.get(server.url + "/health").status_code == 200
        for path in ("/metrics", "/version", "/v1/models", "/routes", "/nothing"):
            assert httpx.get(server.url + path).status_code == 401
        assert "one" not in "".join(server.lines) and "two" not in "".join(server.lines)


def test_keys_are_whole_and_hidden():
    with Server("--api-key", "one,1", "--api-key=two", env={"SLUICE_API_KEY": "three,3"}) as server:
        for key in ("one,1", "two", "three,3"):
            assert server.client(key).models.list().data
        for key in ("one", "1", "three", "3"):
            with pytest.raises(openai.AuthenticationError):
                server.client(key).models.list()
        command = open(f"/proc/{server.process.pid}/cmdline", "rb").read()
        assert b"one,1" not in command and b"two" not in command and b"--api-key" in command


@pytest.mark.parametrize(
    "option, value, accepted",
    [("threads", "-3", "0 to 1024"), ("threads", "5000", "0 to 1024"), ("io-threads", "100000", "1 to 256"),
     ("port", "70000", "0 to 65535")],
)  # fmt: skip
def test_options_out_of_range(option, value, accepted):
    message = f"--{option}: {value} is out of range (expected {accepted})"
    variable = "SLUICE_" + option.upper().replace("-", "_")
    for arguments, env in (([f"--{option}", value], {}), ([], {variable: value})):
        command = [binary(), "serve", MODEL, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env}, timeout=60)
        assert done.returncode > 0 and message in done.stdout + done.stderr


def test_closed_standard_descriptors():
    """Numbers 0 to 2 are never a socket, a timer or a file of the model."""
    command = f"exec {binary()} serve {MODEL} --port 0 <&- >&- 2>&-"
    process = subprocess.Popen(["sh", "-c", command])
    try:
        folder = pathlib.Path(f"/proc/{process.pid}/fd")

        def listens():
            try:
                return any("socket" in os.readlink(fd) for fd in folder.iterdir())
            except FileNotFoundError:  # one was closed meanwhile
                return False

        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not listens():
            time.sleep(0.05)
        assert [os.readlink(folder / str(fd)) for fd in range(3)] == ["/dev/null"] * 3
    finally:
        process.kill()
        process.wait(30)


def test_several_addresses():
    with Server("--host", "127.0.0.1,127.0.0.2") as server:
        port = server.url.rsplit(":", 1)[1]
        for address in ("127.0.0.1", "127.0.0.2"):
            assert httpx.get(f"http://{address}:{port}/v1/models").status_code == 200, address


def test_metric_names(server, client, model):
    client.chat.completions.create(model=model, messages=STORY, max_tokens=2)
    text = httpx.get(server.url + "/metrics").text
    for name in (
        "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
        "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:num_preemptions_total",
        "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total",
        "vllm:time_to_first_token_seconds_bucket", "vllm:inter_token_latency_seconds_sum",
        "vllm:e2e_request_latency_seconds_count", "vllm:request_queue_time_seconds_count",
        "vllm:cache_config_info", "http_requests_total", "http_request_duration_seconds_bucket", "http_connections",
        "sluice:memory_bytes",
    ):
        assert f"\n{name}" in text, name
    (config,) = [line for line in text.splitlines() if line.startswith("vllm:cache_config_info{")]
    for label in ("num_gpu_blocks", "block_size", "kv_cache_size_tokens", "kv_cache_max_concurrency"):  # routers read them
        assert f'{label}="' in config, label
    before = server.metrics()
    client.chat.completions.create(model=model, messages=STORY, max_tokens=5, extra_body=ENDLESS)
    after = server.metrics()
    assert after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"] == 5


def test_clients_that_leave_free_everything(server, model):
    for stream in (True, False):
        body = {**stream_body(model, **ENDLESS), "stream": stream}
        with httpx.Client() as http:
            try:
                with http.stream("POST", server.url + "/v1/chat/completions", json=body, timeout=0.3) as response:
                    next(response.iter_lines())
            except httpx.ReadTimeout:
                assert not stream
        metrics = server.wait_idle(5)
        assert metrics["vllm:kv_cache_usage_perc"] == 0


def test_overload():
    with Server("--max-num-seqs", "1", "--max-num-queued-reqs", "2") as server:
        statuses, refused = [], []

        def ask():
            try:
                server.client().chat.completions.create(
                    model=server.name, messages=STORY, max_tokens=400, temperature=0, extra_body=ENDLESS
                )
                statuses.append(200)
            except openai.InternalServerError as e:
                statuses.append(e.status_code)
                refused.append(e)

        threads = [threading.Thread(target=ask) for _ in range(12)]
        for thread in threads:
            thread.start()
        while not statuses:  # the server must stay healthy while its queue is full
            assert httpx.get(server.url + "/health").status_code == 200
        for thread in threads:
            thread.join()
        assert set(statuses) == {200, 503} and statuses.count(200) >= 3
        for e in refused:
            assert e.code == "server_is_overloaded" and int(e.response.headers["retry-after"]) >= 1
        server.wait_idle()


def test_deadline(server, client, model):
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(
            model=model, messages=STORY, extra_body=ENDLESS, extra_headers={"X-Request-Timeout": "0.05"}
        )
    assert caught.value.code == "deadline_exceeded"
    server.wait_idle()


def test_concurrent_streams(server, model, goldens):
    async def one(client, golden):
        stream = await client.chat.completions.create(
            model=model, messages=golden["messages"], temperature=0, max_tokens=128, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def run():
        client = server.async_client()
        return await asyncio.gather(*(one(client, golden) for golden in goldens * 3))

    assert asyncio.run(run()) == [golden["greedy_text"] for golden in goldens * 3]


def test_goldens_in_the_default_type(goldens):
    """In bf16, the other of two almost equally likely tokens may be chosen occasionally."""
    with Server() as server:

        def equal(answers):
            return sum(text == golden["greedy_text"] for text, golden in zip(answers, goldens, strict=True))

        async def ask(client, golden, stream):
            options = {"temperature": 0, "max_tokens": 128, "stream": stream}
            answer = await client.chat.completions.create(model=server.name, messages=golden["messages"], **options)
            if not stream:
                return answer.choices[0].message.content
            return "".join([chunk.choices[0].delta.content or "" async for chunk in answer])

        async def run(stream):
            client = server.async_client()
            return (
                [await ask(client, golden, stream) for golden in goldens],
                await asyncio.gather(*(ask(client, golden, stream) for golden in goldens)),
            )

        for stream in (False, True):
            alone, at_once = asyncio.run(run(stream))
            assert equal(alone) >= 24 and at_once == alone


def read_stream(server, events, **more):
    body = stream_body(server.name, **more)
    with httpx.stream("POST", server.url + "/v1/chat/completions", json=body, timeout=60) as response:
        for line in response.iter_lines():
            if line:
                events.append(line)


def test_sigterm_drains():
    with Server() as server:
        events = []
        reader = threading.Thread(target=read_stream, args=(server, events), kwargs={"max_tokens": 1500, **ENDLESS})
        reader.start()
        while len(events) < 3:
            time.sleep(0.001)
        server.terminate()
        seen = set()
        while reader.is_alive() and 503 not in seen:
            try:
                seen.add(httpx.get(server.url + "/health").status_code)
                refused = httpx.post(server.url + "/v1/chat/completions", json=stream_body(server.name))
                if refused.status_code == 503:
                    assert refused.json()["error"]["code"] == "server_is_overloaded"
                    assert "retry-after" in refused.headers and refused.headers["connection"] == "close"
            except httpx.TransportError:
                break  # it already finished
        reader.join()
        assert events[-1] == "data: [DONE]" and seen <= {200, 503}
        assert server.wait() == 0


def test_sigterm_timeout_ends_streams_with_an_error():
    with Server("--shutdown-timeout-ms", "0") as server:
        events = []
        reader = threading.Thread(target=read_stream, args=(server, events), kwargs=ENDLESS)
        reader.start()
        while len(events) < 3:
            time.sleep(0.001)
        server.terminate()
        reader.join()
        assert server.wait() == 0
        assert "error" in json.loads(events[-1].removeprefix("data: "))


def test_idle_server_stops_at_once():
    with Server() as server:
        server.terminate()
        begin = time.monotonic()
        assert server.wait() == 0
        assert time.monotonic() - begin < 5
