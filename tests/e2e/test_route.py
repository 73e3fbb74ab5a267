"""`sluice route` in front of real replicas: exact answers, lost replicas, prefixes, drain."""

import concurrent.futures
import os
import signal
import threading
import time

import httpx
import openai
import pytest

from routing import Route
from serving import Server

ARGUMENTS = ["--dtype", "float32", "--threads", "1", "--no-log-requests"]


@pytest.fixture(scope="module")
def replicas():
    with Server(*ARGUMENTS) as a, Server(*ARGUMENTS) as b, Server(*ARGUMENTS) as c:
        yield [a, b, c]


@pytest.fixture(scope="module")
def route(replicas):
    with Route([replica.url for replica in replicas]) as running:
        assert running.healthy == 3
        yield running
        assert running.process.poll() is None, "the router died:\n" + "".join(running.lines[-20:])


def ask(client, model, row, stream):
    fields = {
        "model": model,
        "messages": row["messages"],
        "temperature": 0,
        "max_tokens": len(row["greedy_ids"]),
        "stream": stream,
    }
    answer = client.chat.completions.create(**fields)
    if not stream:
        return answer.choices[0].message.content
    return "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)


@pytest.mark.parametrize("stream", [False, True])
def test_greedy_answers_are_exact(route, replicas, goldens, stream):
    client, model = route.client(), replicas[0].name
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda row: ask(client, model, row, stream), goldens))
    assert got == [row["greedy_text"] for row in goldens]


def test_every_replica_works(route):
    metrics = route.metrics()
    requests = [value for name, value in metrics.items() if name.startswith("sluice:route_requests_total{")]
    assert len(requests) == 3 and min(requests) > 0
    assert metrics["sluice:route_requests_in_flight"] == 0
    assert metrics["sluice:route_retries_total"] == 0


def test_models_and_errors_pass_through(route, replicas):
    assert route.client().models.list().data[0].id == replicas[0].name
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        route.client().chat.completions.create(model="other", messages=[{"role": "user", "content": "Hi"}])
    with pytest.raises(openai.NotFoundError, match="Unknown request URL"):
        route.client().get("/nothing", cast_to=object)


def test_a_conversation_stays_with_its_cache(replicas):
    """Every turn finds the turns before it in the cache, whichever replica has them."""
    with Route([replica.url for replica in replicas]) as route:
        client, model = route.client(), replicas[0].name
        for conversation in range(6):
            text = f"This is conversation number {conversation}. " + "It goes on for quite a while. " * 12
            messages = [{"role": "user", "content": text}]
            for turn in range(4):
                answer = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=8)
                cached = answer.usage.prompt_tokens_details.cached_tokens
                if turn > 0:
                    assert cached >= 64, (conversation, turn, answer.usage)
                messages.append({"role": "assistant", "content": answer.choices[0].message.content})
                messages.append({"role": "user", "content": "Go on, please, and tell me some more about it."})
        assert route.metrics()["sluice:route_prefix_hits_total"] == 6 * 3


def test_keys_pass_through(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    keys.chmod(0o600)
    with Server(*ARGUMENTS, "--api-key-file", str(keys)) as replica, Route([replica.url]) as route:
        with pytest.raises(openai.AuthenticationError):
            route.client(api_key="wrong").models.list()
        assert route.client(api_key="secret").models.list().data[0].id == replica.name


def test_a_client_that_leaves_cancels_its_request(route, replicas):
    client = route.client()
    stream = client.completions.create(
        model=replicas[0].name, prompt="Once", max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
    )
    next(stream)
    stream.close()
    for replica in replicas:
        replica.wait_idle()


@pytest.mark.parametrize("stream", [False, True])
def test_kill_9_under_load(goldens, stream):
    """Each request has the right answer, or an error after a right beginning. None hangs."""
    with Server(*ARGUMENTS) as a, Server(*ARGUMENTS) as b, Server(*ARGUMENTS) as victim:
        with Route([a.url, b.url, victim.url], "--health-interval-ms", "200") as route:
            client, model = route.client(timeout=30), a.name
            stop = threading.Event()
            outcomes = []

            def work(worker):
                n = worker
                while not stop.is_set():
                    row = goldens[n % len(goldens)]
                    n += 7
                    outcomes.append(outcome(client, model, row, stream))

            with concurrent.futures.ThreadPoolExecutor(12) as pool:
                workers = [pool.submit(work, worker) for worker in range(12)]
                while len(outcomes) < 24:
                    time.sleep(0.01)
                os.kill(victim.process.pid, signal.SIGKILL)
                before = len(outcomes)
                while len(outcomes) < before + 60:
                    time.sleep(0.01)
                stop.set()
                for worker in workers:
                    worker.result(timeout=30)
            errors = [detail for kind, detail in outcomes if kind == "error"]
            assert {kind for kind, _ in outcomes} <= {"right", "error"}, outcomes
            assert len(errors) <= 12, errors  # at most what was in flight
            assert all("lost" in error for error in errors), errors
            health = httpx.get(route.url + "/health").json()
            assert (health["replicas"], health["healthy"]) == (3, 2)
            assert ask(client, model, goldens[0], stream) == goldens[0]["greedy_text"]
            assert route.metrics()["sluice:route_requests_in_flight"] == 0


def outcome(client, model, row, stream):
    """("right", ""), ("wrong", text), or ("error", message) if what came before the error is right."""
    fields = {"messages": row["messages"], "temperature": 0, "max_tokens": len(row["greedy_ids"]), "stream": stream}
    text = ""
    try:
        answer = client.chat.completions.create(model=model, **fields)
        if stream:
            for chunk in answer:
                if chunk.choices:
                    text += chunk.choices[0].delta.content or ""
        else:
            text = answer.choices[0].message.content
    except openai.APITimeoutError as error:
        return "hung", str(error)
    except openai.APIError as error:
        right = row["greedy_text"].startswith(text)
        return ("error", str(error)) if right else ("wrong", text)
    return ("right", "") if text == row["greedy_text"] else ("wrong", text)


def test_a_replica_comes_back():
    with Server(*ARGUMENTS) as a, Server(*ARGUMENTS) as b:
        address = b.url.rsplit(":", 1)[1]
        with Route([a.url, b.url], "--health-interval-ms", "100") as route:
            b.process.kill()
            b.process.wait()
            wait_healthy(route, 1)
            with Server(*ARGUMENTS, "--port", address):
                wait_healthy(route, 2)


def test_a_rolling_restart_loses_no_request():
    """A replica that gets SIGTERM finishes what it has; new requests go to the other one."""
    with Server(*ARGUMENTS) as a, Server(*ARGUMENTS) as b, Route([a.url, b.url]) as route:
        client, model = route.client(), a.name
        statuses = []

        def work(worker):
            for n in range(12):
                answer = client.completions.create(
                    model=model, prompt=f"{worker} {n}", max_tokens=24, extra_body={"ignore_eos": True}
                )
                statuses.append(answer.usage.completion_tokens)

        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            workers = [pool.submit(work, worker) for worker in range(6)]
            while len(statuses) < 12:
                time.sleep(0.01)
            b.terminate()
            for worker in workers:
                worker.result(timeout=60)
        assert statuses == [24] * 72
        assert b.wait() == 0


def test_sigterm_drains(replicas):
    with Route([replicas[0].url]) as route:
        stream = route.client().completions.create(
            model=replicas[0].name, prompt="Once", max_tokens=200, stream=True, extra_body={"ignore_eos": True}
        )
        next(stream)
        route.terminate()
        assert sum(1 for chunk in stream if chunk.choices) > 0
        assert route.wait() == 0


def test_without_replicas():
    with Route(["http://127.0.0.1:9"]) as route:
        assert route.healthy == 0
        answer = httpx.post(route.url + "/v1/chat/completions", json={})
        assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
        assert answer.json()["error"]["code"] == "server_is_overloaded"


def wait_healthy(route, wanted):
    end = time.monotonic() + 20
    while httpx.get(route.url + "/health").json()["healthy"] != wanted:
        assert time.monotonic() < end, f"not {wanted} healthy replicas"
        time.sleep(0.02)
