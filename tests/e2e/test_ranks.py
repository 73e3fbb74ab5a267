"""Several processes that compute one model: exact answers, and what happens when one of them is lost."""

import array
import concurrent.futures
import json
import os
import pathlib
import signal
import struct
import subprocess
import time

import httpx
import openai
import pytest

from serving import ENGINE_FAILED, MODEL, ROOT, Server, binary, children_of, ranks_of


def gone(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def wait_until(condition, seconds: float):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.02)


@pytest.mark.parametrize(
    "ranks, quantization",
    [
        (["-tp", "2"], "none"),
        (["-tp", "2"], "q8_0"),
        (["-pp", "2"], "none"),
        (["-tp", "2", "-pp", "2"], "none"),
        (["-tp", "4", "-dcp", "2"], "none"),
        (["-dp", "2"], "none"),
        (["-tp", "2", "-dp", "2"], "none"),
    ],
)
def test_greedy_answers_are_exact(goldens, ranks, quantization):
    arguments = ["--dtype", "float32", "--threads", "2", "--quantization", quantization]
    rows = goldens if quantization == "none" else goldens[:8]

    def answers(server):
        def ask(row):
            answer = server.client().chat.completions.create(
                model=server.name, messages=row["messages"], temperature=0, max_tokens=len(row["greedy_ids"])
            )
            return answer.choices[0].message.content

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            return list(pool.map(ask, rows))

    with Server(*arguments, *ranks) as server:
        processes, replicas = 2 ** (len(ranks) // 2), 2 if "-dp" in ranks else 1
        assert len(children_of(server)) == processes - replicas
        got = answers(server)
    if quantization == "none":
        assert got == [row["greedy_text"] for row in rows]
    else:
        with Server(*arguments) as server:
            assert got == answers(server)


def lora_goldens(adapter: str) -> list[dict]:
    path = ROOT / "tests" / "goldens" / "minnow" / f"lora-{adapter}-greedy.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


ADAPTERS = [word for name in ("pirate", "json") for word in ("--lora-modules", f"{name}={MODEL}-lora-{name}")]


@pytest.mark.parametrize("ranks", [["-tp", "2"], ["-pp", "2"], ["-tp", "2", "-pp", "2"], ["-tp", "4", "-dcp", "2"]])
def test_adapters_are_exact(goldens, ranks):
    """Both adapters and the base in one batch, with room for both and with room for one."""
    for slots in ("2", "1"):
        with Server("--dtype", "float32", "--threads", "2", "--max-loras", slots, *ADAPTERS, *ranks) as server:
            asked = [(server.name, row) for row in goldens[:12]]
            asked += [(name, row) for name in ("pirate", "json") for row in lora_goldens(name)]

            def ask(case):
                model, row = case
                answer = server.client().chat.completions.create(
                    model=model, messages=row["messages"], temperature=0, max_tokens=len(row["greedy_ids"])
                )
                return answer.choices[0].message.content

            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                assert list(pool.map(ask, asked)) == [row["greedy_text"] for _, row in asked]


def tensor_of(path: pathlib.Path, name: str, code: str) -> array.array:
    """The numbers of a tensor of a safetensors file, whose array type code is `code`."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    begin, end = json.loads(data[8 : 8 + size])[name]["data_offsets"]
    return array.array(code, data[8 + size + begin : 8 + size + end])


@pytest.mark.parametrize("adapter", ["pirate", "json"])
def test_adapted_logits_are_pefts(tmp_path, adapter):
    golden = ROOT / "tests" / "goldens" / "minnow" / f"lora-{adapter}-logits.safetensors"
    ids = " ".join(map(str, tensor_of(golden, "ids", "i")))
    command = [binary(), "logits", MODEL, "--lora", f"{MODEL}-lora-{adapter}", "--ids", ids, "--dtype", "float32"]
    subprocess.run([*command, "-tp", "2", "-o", tmp_path / "out"], check=True, capture_output=True, timeout=60)
    want, got = tensor_of(golden, "logits", "f"), tensor_of(tmp_path / "out", "logits", "f")
    assert len(got) == len(want)
    assert max(abs(a - b) for a, b in zip(got, want)) <= 2e-4 * max(map(abs, want))


def test_adapters_come_and_go_under_load():
    options = ["-tp", "2", "--threads", "2", "--lora-root", str(MODEL.parent), "--max-loras", "1"]
    with Server(*options, *ADAPTERS[:2]) as server:

        def ask(i):
            answer = server.client().chat.completions.create(
                model=(server.name, "pirate")[i % 2],
                messages=[{"role": "user", "content": "Hello!"}],
                temperature=0,
                max_tokens=24,
            )
            return answer.choices[0].message.content

        want = [ask(0), ask(1)]
        assert want[0] != want[1]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = pool.map(ask, range(48))
            for _ in range(6):
                name, path = {"lora_name": "json"}, {"lora_path": "minnow-6m-lora-json"}
                assert httpx.post(server.url + "/v1/load_lora_adapter", json=name | path).status_code == 200
                assert httpx.post(server.url + "/v1/unload_lora_adapter", json=name).status_code == 200
            assert list(answers) == want * 24


def test_servers_share_files_of_packed_weights(tmp_path):
    """Two servers begin at once: the ranks of one write their files, those of the other wait for them and map them."""

    def answer(_):
        options = ["-tp", "2", "-pp", "2", "--threads", "4", "--packed-cache", str(tmp_path)]
        with Server(*options, "--quantization", "q8_0") as server:
            return server.client().completions.create(model=server.name, prompt="Once", max_tokens=8, temperature=0)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first, second = pool.map(answer, range(2))
    assert first.choices[0].text == second.choices[0].text
    files = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert len(files) == 4
    assert answer(None).choices[0].text == first.choices[0].text
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == files


@pytest.mark.parametrize("kind", ["-tp", "-pp"])
def test_a_lost_rank_ends_requests_with_an_error(kind):
    with Server(kind, "2", "--dtype", "float32") as server:
        (pid,) = ranks_of(server).values()
        stream = server.client().completions.create(
            model=server.name, prompt="Once", max_tokens=1500, stream=True, temperature=0, extra_body={"ignore_eos": True}
        )
        next(stream)
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        with pytest.raises(openai.APIError, match="rank 1 of 2 was lost"):
            for _ in stream:
                pass
        assert time.monotonic() - killed < 2
        try:  # the server ends soon; until then it says why
            health = httpx.get(server.url + "/health")
            assert health.status_code == 503 and "rank 1 of 2 was lost" in health.json()["message"]
        except httpx.TransportError:
            pass
        assert server.process.wait(timeout=10) == ENGINE_FAILED


REPLICAS = ["-tp", "2", "-dp", "2", "--dtype", "float32", "--threads", "4"]


def long_answer(server: Server, prompt: str):
    """A stream of 600 tokens."""
    return server.client().completions.create(
        model=server.name, prompt=prompt, max_tokens=600, stream=True, temperature=0, extra_body={"ignore_eos": True}
    )


def end_of(stream) -> str:
    """The finish reason of a stream, or its error."""
    try:
        return [chunk.choices[0].finish_reason for chunk in stream][-1]
    except (openai.APIError, httpx.TransportError) as error:
        return str(error)


def test_a_lost_replica_is_replaced_while_the_other_goes_on():
    """The first ranks of both replicas are this server's process; each has one further rank."""
    with Server(*REPLICAS) as server, concurrent.futures.ThreadPoolExecutor(8) as pool:
        client = server.client()

        def ask(i: int) -> str:
            answer = client.completions.create(model=server.name, prompt=f"Number {i}", max_tokens=8, temperature=0)
            return answer.choices[0].text

        want = [ask(i) for i in range(8)]
        ends = [pool.submit(end_of, long_answer(server, prompt)) for prompt in ("Once", "The", "A", "In")]
        wait_until(lambda: httpx.get(server.url + "/health").json()["running"] == 4, 10)
        os.kill(children_of(server)[0][1], signal.SIGKILL)
        wait_until(lambda: httpx.get(server.url + "/health").json()["status"] == "degraded", 2)
        health = httpx.get(server.url + "/health")
        assert health.status_code == 200 and ": rank 1 of 2 was lost" in health.json()["message"], health.text
        assert list(pool.map(ask, range(8))) == want  # at once, on the other replica
        ended = [end.result() for end in ends]
        assert sum("rank 1 of 2 was lost" in end for end in ended) == 2 and ended.count("length") == 2, ended
        wait_until(lambda: httpx.get(server.url + "/health").json()["status"] == "ok", 60)
        assert len(children_of(server)) == 2
        assert list(pool.map(ask, range(8))) == want
        metrics = httpx.get(server.url + "/metrics").text.splitlines()
        restarts = [line.split()[-1] for line in metrics if line.startswith("sluice:replica_restarts_total")]
        assert sorted(restarts) == ["0", "1"], restarts


def test_the_server_ends_without_any_replica():
    with Server(*REPLICAS) as server:
        for _, pid in children_of(server):
            os.kill(pid, signal.SIGKILL)
        assert server.process.wait(timeout=10) == ENGINE_FAILED


def test_an_idle_server_notices_a_lost_rank():
    with Server("-tp", "3") as server:
        ranks = ranks_of(server)
        os.kill(ranks[2], signal.SIGKILL)
        assert server.process.wait(timeout=5) == ENGINE_FAILED
        wait_until(lambda: gone(ranks[1]), 3)


def test_ranks_end_with_the_server():
    with Server("-tp", "2") as server:
        (pid,) = ranks_of(server).values()
        os.kill(pid, signal.SIGTERM)  # is for the server, which decides when its ranks end
        os.kill(pid, signal.SIGINT)
        answer = server.client().completions.create(model=server.name, prompt="Once", max_tokens=4)
        assert answer.choices[0].text
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=20) == 0
        assert gone(pid)


def test_ranks_end_when_the_server_is_killed():
    with Server("-tp", "2") as server:
        (pid,) = ranks_of(server).values()
        server.process.kill()
        server.process.wait()
        wait_until(lambda: gone(pid), 3)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--numa", "2"], "--numa 2 cannot be used with --tensor-parallel-size 2"),
        (["--tensor-parallel-size", "65"], "65 is out of range (expected 1 to 64)"),
        (["--pipeline-parallel-size", "0"], "0 is out of range (expected 1 to 64)"),
        (["--pipeline-parallel-size", "64"], "128 ranks (expected at most 64)"),
    ],
)
def test_what_ranks_cannot_do_is_refused(arguments, message):
    command = [binary(), "serve", MODEL, "--port", "0", "--tensor-parallel-size", "2", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and message in done.stderr, done.stderr
