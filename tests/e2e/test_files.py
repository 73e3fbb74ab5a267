"""Tests the program's behaviour with its files: output that cannot be written, input, and folders that are read-only."""

import json
import os
import pathlib
import shutil
import subprocess
import time

import httpx
import pytest

import serving


def run(*args: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run([str(serving.binary()), *args], text=True, timeout=120, **options)


@pytest.mark.parametrize(
    "args",
    [
        ("run", "Hello", "--max-tokens", "2"),
        ("tokenize", "--text", "Hello"),
        ("inspect",),
        ("docs", "options"),
        ("--help",),
        ("--version",),
        ("tokenize", "--help"),
    ],
)
def test_lost_output_is_an_error(args):
    with open("/dev/full", "w") as full:
        result = run(*args, stdout=full, stderr=subprocess.PIPE)
    assert result.returncode == 1
    assert "cannot write to standard output" in result.stderr or "No space left" in result.stderr


@pytest.mark.parametrize("args", [("tokenize", "--jsonl"), ("embed", "--task", "embed")])
def test_lost_lines_are_an_error(args):
    with open("/dev/full", "w") as full:
        result = run(*args, stdout=full, stderr=subprocess.PIPE, input='{"text": "a"}\n')
    assert result.returncode == 1
    assert "cannot write to standard output" in result.stderr or "No space left" in result.stderr


def test_tokenize_reads_standard_input():
    text = "Hello\nyou "
    given = run("tokenize", "--text", text, stdout=subprocess.PIPE)
    read = run("tokenize", stdout=subprocess.PIPE, input=text)
    assert given.returncode == read.returncode == 0
    assert json.loads(given.stdout) == json.loads(read.stdout)
    assert len(json.loads(read.stdout)["ids"]) > 2


def test_demo_without_a_writable_home(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    env = {**os.environ, "HOME": str(blocked), "XDG_CACHE_HOME": str(blocked), "TMPDIR": str(temporary)}
    for _ in range(2):  # written, then found
        result = run("run", "Hello", "--max-tokens", "2", env=env, capture_output=True)
        assert result.returncode == 0, result.stderr
        assert "instead of the cache folder" in result.stderr
    assert list(temporary.glob("sluice-*/*/minnow-6m/config.json"))


def test_a_temporary_folder_of_another_user_is_refused(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    folder = tmp_path / f"sluice-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    env = {**os.environ, "HOME": str(blocked), "XDG_CACHE_HOME": str(blocked), "TMPDIR": str(tmp_path)}
    result = run("run", "Hello", env=env, capture_output=True)
    assert result.returncode == 1
    assert "is not a folder of this user alone" in result.stderr


def test_packed_weights_that_shrink_end_the_server_in_order(tmp_path):
    cache = tmp_path / "packed"
    with serving.Server("--packed-cache", str(cache)) as server:
        body = {"model": server.name, "prompt": "Once", "max_tokens": 4}
        assert httpx.post(server.url + "/v1/completions", json=body).status_code == 200
        (packed,) = cache.glob("*.packed")
        os.truncate(packed, 5000)
        answer = httpx.post(server.url + "/v1/completions", json=body, timeout=30)
        assert answer.status_code == 500
        assert str(cache) not in answer.text
        assert server.wait() == serving.ENGINE_FAILED
    assert any(f"{packed}: the file became shorter" in line for line in server.lines)


def test_model_that_shrinks_while_it_is_mapped(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(serving.MODEL, model)
    with serving.Server(model=model) as server:
        os.truncate(model / "model.safetensors", 4096)
        body = {"model": server.name, "prompt": "Once upon", "max_tokens": 8}
        try:
            status = httpx.post(server.url + "/v1/completions", json=body, timeout=30).status_code
        except httpx.TransportError:
            status = 0
        assert status in (200, 500)  # 200: nothing of the file is needed any more
        if status == 500:
            assert server.wait() == serving.ENGINE_FAILED


def test_damaged_packed_weights_are_packed_again(tmp_path):
    cache = tmp_path / "packed"
    args = ("--packed-cache", str(cache), "--sampling-seed", "1", "--max-tokens", "12")
    first = run("run", "Once upon a time", *args, capture_output=True)
    (packed,) = cache.glob("*.packed")
    damaged = bytearray(packed.read_bytes())
    for k in range(8):
        begin = (len(damaged) * (k + 3) // 12) // 4096 * 4096 + 8192
        for i in range(begin + 1, begin + 4096, 2):
            damaged[i] ^= 0x80
    packed.write_bytes(damaged)
    second = run("run", "Once upon a time", *args, capture_output=True)
    assert second.returncode == 0
    assert "has damaged weights" in second.stderr
    assert second.stdout == first.stdout
    third = run("run", "Once upon a time", *args, capture_output=True)
    assert "has damaged weights" not in third.stderr


def test_a_taken_port_is_reported_before_the_load(server, tmp_path):
    port = server.url.rsplit(":", 1)[1]
    start = time.monotonic()
    result = run("serve", str(tmp_path / "missing"), "--port", port, capture_output=True)
    assert result.returncode == 1
    assert "cannot listen on" in result.stderr
    assert time.monotonic() - start < 5


def test_a_failed_load_ends_the_process(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(serving.MODEL, model)
    weights = pathlib.Path(model / "model.safetensors")
    weights.write_bytes(weights.read_bytes()[:5000])
    result = run("serve", str(model), "--port", "0", capture_output=True)
    assert result.returncode == 1
    assert "model.safetensors" in result.stderr


def test_many_layers_are_refused_at_once(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(serving.MODEL, model)
    config = json.loads((model / "config.json").read_text())
    for key, value in {"num_hidden_layers": 1_000_000, "vocab_size": 2_000_000_000}.items():
        (model / "config.json").write_text(json.dumps({**config, key: value}))
        start = time.monotonic()
        result = run("inspect", str(model), capture_output=True)
        assert result.returncode == 1
        assert key in result.stdout + result.stderr
        assert time.monotonic() - start < 5
