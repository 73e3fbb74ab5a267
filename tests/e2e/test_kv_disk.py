"""The prefix cache on disk, over kills: the next start finds what was written, and answers stay the same."""

import concurrent.futures
import os
import random
import signal
import threading
import time

import pytest

import serving

OPTIONS = ("--dtype", "float32", "--kv-host-memory-bytes", "32M", "--kv-disk-bytes", "256M", "--max-model-len", "1024")
TEXT = "The clever mouse looked for cheese in the old house. "


def ask(server, text, tokens=12):
    answer = server.client().completions.create(
        model=server.name, prompt=text, max_tokens=tokens, temperature=0, extra_body={"ignore_eos": True}
    )
    details = answer.usage.prompt_tokens_details
    return answer.choices[0].text, details.cached_tokens if details else 0


def prompts(count):
    draw = random.Random(3)
    words = TEXT.split()
    return [" ".join(draw.choices(words, k=200)) for _ in range(count)]


@pytest.fixture(scope="module")
def expected():
    with serving.Server("--dtype", "float32", "--max-model-len", "1024") as server:
        return {text: ask(server, text)[0] for text in prompts(24)}


def test_kill_while_writing(tmp_path, expected):
    """Killed at random moments under load. Whatever the next run takes from the file gives the right answers."""
    draw = random.Random(5)
    found = 0
    for turn in range(6):
        with serving.Server(*OPTIONS, "--kv-disk", str(tmp_path)) as server:
            texts = list(expected)
            draw.shuffle(texts)
            if turn > 0:
                for text in texts[:4]:
                    answer, cached = ask(server, text)
                    assert answer == expected[text]
                    found += cached > 0
            stop = threading.Event()

            def load():
                while not stop.is_set():
                    try:
                        assert ask(server, draw.choice(texts))[0] in expected.values()
                    except Exception as error:  # the server was killed meanwhile
                        assert server.process.poll() is not None or stop.is_set(), error
                        return

            with concurrent.futures.ThreadPoolExecutor(4) as threads:
                clients = [threads.submit(load) for _ in range(4)]
                time.sleep(0.2 + draw.random() / 2)
                stop.set()
                server.kill()
                for client in clients:
                    client.result()
    assert found >= 5, "the file gave nothing"


def test_a_clean_end_keeps_everything(tmp_path, expected):
    text = next(iter(expected))
    with serving.Server(*OPTIONS, "--kv-disk", str(tmp_path)) as server:
        assert ask(server, text) == (expected[text], 0)
        server.terminate()
        assert server.wait() == 0
    with serving.Server(*OPTIONS, "--kv-disk", str(tmp_path)) as server:
        answer, cached = ask(server, text)
        assert answer == expected[text] and cached > 100
        metrics = server.metrics()
        assert metrics["sluice:kv_rows_read_total"] == cached // 16
        assert metrics["sluice:kv_rows_failed_total"] == 0


def test_two_servers_need_two_folders(tmp_path):
    with serving.Server(*OPTIONS, "--kv-disk", str(tmp_path)):
        with pytest.raises(RuntimeError, match="another process uses the file"):
            serving.Server(*OPTIONS, "--kv-disk", str(tmp_path))


RANKS = pytest.mark.parametrize("ranks", [["-tp", "2"], ["-pp", "2"]])


@pytest.mark.parametrize("ranks", [["-tp", "2"], ["-pp", "2"], ["-tp", "4", "-dcp", "2", "--block-size", "8"]])
def test_every_rank_gives_back_its_part_from_host_memory(ranks):
    """Blocks have room for a few prompts only."""
    options = ["--dtype", "float32", "--max-model-len", "1024", "--kv-cache-memory-bytes", "4M", *ranks]
    texts = prompts(24)
    with serving.Server(*options, "--kv-host-memory-bytes", "128M") as server:
        answers = {text: ask(server, text)[0] for text in texts}
        answer, cached = ask(server, texts[0])
        assert answer == answers[texts[0]] and cached > 100
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            assert dict(zip(texts, threads.map(lambda text: ask(server, text)[0], texts))) == answers
        metrics = server.metrics()
        assert metrics["sluice:kv_rows_loaded_total"] >= cached // 16
        assert metrics["sluice:kv_rows_failed_total"] == 0


def damage_rows(path):
    """Overwrites bytes in the second half of what the file has."""
    with open(path, "r+b") as file:
        end = len(file.read().rstrip(b"\0"))
        for at in range(end // 2, end, 4096):
            file.seek(at)
            file.write(b"\xff" * 64)


@RANKS
def test_every_rank_has_a_file(tmp_path, ranks):
    options = [*OPTIONS, *ranks, "--kv-disk", str(tmp_path)]
    texts = prompts(6)

    def run():
        with serving.Server(*options) as server:
            answers = [ask(server, text) for text in texts]
            metrics = server.metrics()
            server.terminate()
            assert server.wait() == 0
        return [text for text, _ in answers], [cached for _, cached in answers], metrics["sluice:kv_rows_failed_total"]

    expected, cached, failed = run()
    assert max(cached) < 32 and failed == 0
    files = sorted(path for path in tmp_path.iterdir() if path.stat().st_size > 1 << 20)
    assert len(files) == 2
    again, cached, failed = run()
    assert again == expected and min(cached) > 100 and failed == 0
    damage_rows(files[0])  # what one rank cannot read is computed anew on both
    again, cached, failed = run()
    assert again == expected and failed >= 1
    with serving.Server(*options) as server:
        (rank,) = serving.ranks_of(server).values()
        os.kill(rank, signal.SIGSTOP)
        server.kill()
    threading.Timer(1, os.kill, (rank, signal.SIGCONT)).start()
    again, cached, failed = run()  # the server waits for the file that the other rank of the killed one has
    assert again == expected and min(cached) > 100 and failed == 0
    files[1].unlink()  # what only one rank has is not found
    again, cached, _ = run()
    assert again == expected and max(cached) < 32
