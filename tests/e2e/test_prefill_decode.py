"""Prompts that one server computes and another one goes on with: the tokens of a single server, whoever dies."""

import concurrent.futures
import contextlib
import ctypes.util
import random
import signal
import threading
import time

import httpx
import pytest

from routing import Route
from serving import Server

ARGUMENTS = ["--dtype", "float32", "--threads", "1", "--no-log-requests", "--max-num-batched-tokens", "64"]
PREFILL = [*ARGUMENTS, "--kv-transfer-listen", "127.0.0.1:0", "--kv-host-memory-bytes", "64M"]
DECODE = [*ARGUMENTS, "--kv-transfer-peer", "*", "--kv-host-memory-bytes", "64M", "--kv-transfer-timeout-ms", "5000"]


@pytest.fixture(params=["tcp", "ucx"])
def transport(request) -> list[str]:
    """The options of both servers for each way that keys and values can travel."""
    if request.param == "ucx" and not ctypes.util.find_library("ucp"):
        pytest.skip("libucp is not installed (libucx0 has it)")
    return ["--kv-transfer-backend", request.param]


@contextlib.contextmanager
def routed(transport: list[str], prefill: int = 1, decode: int = 1, *route_arguments: str):
    """Servers that compute prompts, servers that go on with them, and a router in front."""
    with contextlib.ExitStack() as stack:
        prefills = [stack.enter_context(Server(*PREFILL, *transport)) for _ in range(prefill)]
        decodes = [stack.enter_context(Server(*DECODE, *transport)) for _ in range(decode)]
        arguments = ["--prefill-min-bytes", "0", "--health-interval-ms", "200", *route_arguments]
        for server in prefills:
            arguments += ["--prefill", server.url]
        for server in decodes:
            arguments += ["--decode", server.url]
        yield prefills, decodes, stack.enter_context(Route([], *arguments))


def requests(count: int, seed: int = 1) -> list[dict]:
    """Prompts from one token to several steps of the engine; some share their beginning. Greedy and seeded."""
    rng = random.Random(seed)
    shared = [rng.randrange(300, 1300) for _ in range(200)]
    bodies = []
    for i in range(count):
        prompt = shared[: rng.choice([0, 40, 160])] + [rng.randrange(300, 1300) for _ in range(rng.randrange(1, 300))]
        body = {"prompt": prompt, "max_tokens": rng.randrange(1, 24), "ignore_eos": True, "return_token_ids": True}
        body |= {"temperature": 0} if i % 2 else {"temperature": 1, "seed": i}
        bodies.append(body)
    return bodies


def complete(url: str, body: dict, timeout_s: float = 60) -> list[int]:
    answer = httpx.post(url + "/v1/completions", json=body, timeout=timeout_s)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["token_ids"]


def complete_all(url: str, bodies: list[dict], threads: int = 12) -> list[list[int]]:
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda body: complete(url, body), bodies))


@pytest.fixture(scope="module")
def single():
    with Server(*ARGUMENTS) as server:
        yield server


def test_the_router_gives_the_tokens_of_one_server(single, transport):
    bodies = requests(60)
    expected = complete_all(single.url, bodies)
    with routed(transport, prefill=2, decode=2) as (prefills, decodes, route):
        assert complete_all(route.url, bodies) == expected
        sent = sum(server.metrics()["sluice:kv_transfer_rows_sent_total"] for server in prefills)
        received = sum(server.metrics()["sluice:kv_transfer_rows_received_total"] for server in decodes)
        hits = sum(server.metrics()["vllm:prefix_cache_hits_total"] for server in decodes)
        assert received == sent > 200
        assert hits >= 16 * received, "rows that were fetched are prefix hits"
        metrics = route.metrics()
        assert metrics["sluice:route_prefill_total"] == len(bodies)
        assert metrics["sluice:route_prefill_failed_total"] == 0
        assert metrics["sluice:route_retries_total"] == 0


def test_chats_and_streams(single, transport):
    messages = [{"role": "user", "content": "Tell me of a cat that lived by the sea. " * 12}]
    fields = {"messages": messages, "temperature": 0, "max_tokens": 16}

    def text(server, stream):
        answer = server.client().chat.completions.create(model=single.name, stream=stream, **fields)
        if not stream:
            return answer.choices[0].message.content
        return "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)

    expected = text(single, False)
    with routed(transport) as (_, decodes, route):
        assert [text(route, stream) for stream in (False, True)] == [expected] * 2
        assert decodes[0].metrics()["sluice:kv_transfer_rows_received_total"] > 5


def test_the_protocol_of_vllms_proxies(single, transport):
    """Prefill first, then decode with what the prefill's answer says."""
    bodies = requests(12, seed=2)
    expected = complete_all(single.url, bodies)
    with Server(*PREFILL, *transport) as prefill, Server(*DECODE, *transport) as decode:
        for body, tokens in zip(bodies, expected):
            first = httpx.post(
                prefill.url + "/v1/completions",
                json=body | {"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True, "remote_host": None}},
            ).json()
            params = first["kv_transfer_params"]
            assert params["do_remote_prefill"] and params["remote_port"] > 0
            answer = httpx.post(decode.url + "/v1/completions", json=body | {"kv_transfer_params": params}).json()
            assert answer["choices"][0]["token_ids"] == tokens
            cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached == (len(body["prompt"]) - 1) // 16 * 16
        assert decode.metrics()["sluice:kv_transfer_rows_failed_total"] == 0


def test_keys_keep_prompts_apart(single, tmp_path):
    """The rows of one API key are not those of another one, even for equal prompts."""
    keys = tmp_path / "keys"
    keys.write_text("one\ntwo\n")
    keys.chmod(0o600)
    body = requests(1, seed=3)[0] | {"prompt": list(range(300, 500))}
    expected = complete(single.url, body)

    def ask(server, key, params):
        headers = {"Authorization": f"Bearer {key}"}
        fields = body | {"kv_transfer_params": params}
        return httpx.post(server.url + "/v1/completions", json=fields, headers=headers).json()

    with Server(*PREFILL, "--api-key-file", str(keys)) as prefill, Server(*DECODE, "--api-key-file", str(keys)) as decode:
        params = ask(prefill, "one", {"do_remote_decode": True})["kv_transfer_params"]
        for key, cached in (("two", 0), ("one", 192)):
            answer = ask(decode, key, params)
            assert answer["choices"][0]["token_ids"] == expected
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == cached


def test_another_model_computes_by_itself(single, transport):
    """Keys and values of another type are not used."""
    body = requests(1, seed=4)[0] | {"prompt": list(range(300, 500))}
    expected = complete(single.url, body)
    remote = Server(*PREFILL, *transport, "--kv-cache-dtype", "bfloat16")
    with remote as prefill, Server(*DECODE, *transport) as decode:
        asked = body | {"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
        params = httpx.post(prefill.url + "/v1/completions", json=asked).json()["kv_transfer_params"]
        assert complete(decode.url, body | {"kv_transfer_params": params}) == expected
        assert decode.metrics()["sluice:kv_transfer_rows_received_total"] == 0
        assert any("its rows have" in line for line in decode.lines)


def kill_under_load(route, victim, bodies, after: int) -> list:
    """Sends all requests and kills the victim when some are answered. Returns tokens, or the status of an error."""
    answered = threading.Semaphore(0)

    def ask(body):
        answer = httpx.post(route.url + "/v1/completions", json=body, timeout=60)
        answered.release()
        return answer.json()["choices"][0]["token_ids"] if answer.status_code == 200 else answer.status_code

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        coming = [pool.submit(ask, body) for body in bodies]
        for _ in range(after):
            assert answered.acquire(timeout=60)
        victim.kill()
        return [answer.result() for answer in coming]


def test_kill_9_of_a_prefill_server_under_load(single, transport):
    """Every request is answered, with the right tokens."""
    bodies = requests(80, seed=5)
    expected = complete_all(single.url, bodies)
    with routed(transport) as (prefills, decodes, route):
        begun = time.monotonic()
        assert kill_under_load(route, prefills[0], bodies, after=20) == expected
        assert time.monotonic() - begun < 60
        assert decodes[0].metrics()["sluice:kv_transfer_rows_received_total"] > 0
        # What comes later is computed by the other server alone.
        assert complete_all(route.url, bodies[:5]) == expected[:5]
        decodes[0].wait_idle()


def test_a_stopped_prefill_server_costs_the_time_limit(single, transport):
    """It accepts connections and answers nothing, as if its machine hung."""
    bodies = requests(6, seed=6)
    expected = complete_all(single.url, bodies)
    impatient = Server(*DECODE, *transport, "--kv-transfer-timeout-ms", "1000")
    with Server(*PREFILL, *transport) as prefill, impatient as decode:
        kv = httpx.get(prefill.url + "/health").json()["kv_transfer"]
        params = {"do_remote_prefill": True, "transfer_id": "x", "remote_host": kv["host"], "remote_port": kv["port"]}
        prefill.process.send_signal(signal.SIGSTOP)
        try:
            asked = [body | {"kv_transfer_params": params} for body in bodies]
            begun = time.monotonic()
            assert complete_all(decode.url, asked) == expected
            assert time.monotonic() - begun < 20
        finally:
            prefill.process.send_signal(signal.SIGCONT)


def test_kill_9_of_a_decode_server_under_load(single, transport):
    """As for any replica: requests whose answer has not begun go to another one."""
    bodies = requests(80, seed=7)
    expected = complete_all(single.url, bodies)
    with routed(transport, prefill=1, decode=2) as (_, decodes, route):
        got = kill_under_load(route, decodes[0], bodies, after=20)
        wrong = [(a, b) for a, b in zip(got, expected) if a != b]
        assert not wrong, "an answer that is not streamed has not begun"
        decodes[1].wait_idle()


def test_what_a_server_was_not_started_for_is_refused(single):
    body = {"prompt": "Hello", "max_tokens": 1}
    asked = {
        "do_remote_decode": {"do_remote_decode": True},
        "remote_host": {
            "do_remote_prefill": True,
            "transfer_id": "a",
            "remote_host": "127.0.0.1",
            "remote_port": 5,
        },
    }
    for field, params in asked.items():
        answer = httpx.post(single.url + "/v1/completions", json=body | {"kv_transfer_params": params})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == f"kv_transfer_params.{field}"
