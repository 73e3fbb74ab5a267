"""Tests the program's options as a whole: exit status, messages, and what options of other servers change."""

import json
import os
import subprocess

import httpx
import pytest

from serving import MODEL, Server, binary


def run(*arguments, env=None, **options):
    options = {"capture_output": True, "text": True, "timeout": 60, **options}
    return subprocess.run([binary(), *map(str, arguments)], env={**os.environ, **(env or {})}, **options)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["srve"], "did you mean 'serve'?"),
        (["serve", "--prot", "1"], "did you mean '--port'?"),
        (["serve", MODEL, "--port", "-1"], "--port: -1 is out of range (expected 0 to 65535)"),
        (["serve", MODEL, "--tensor-parallel-size", "2"], "--tensor-parallel-size 2: not supported: one device"),
        (["serve", MODEL, "--quantization", "awq", "--port", "0"], "the checkpoint's method is none"),
        (["serve", MODEL, "--override-generation-config", '{"a": 1}', "--port", "0"], "unknown key 'a'"),
        (["serve", MODEL, "--ssl-certfile", "x"], "need each other"),
        (["serve", MODEL, "--dtype", "int3"], "--dtype: int3 not in"),
        (["pull"], "model is required"),
    ],
)
def test_unusable_options_end_with_status_2(arguments, message):
    done = run(*arguments)
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert done.stderr.splitlines()[-1].startswith("sluice: ")


def test_help_and_version_succeed():
    for arguments in (["--version"], ["--help"], ["serve", "--help"]):
        done = run(*arguments)
        assert done.returncode == 0 and done.stdout and not done.stderr


def test_vllm_command_line(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("max-num-seqs: 3\nserved-model-name: [unused]\n")
    arguments = ["--dtype", "float", "--max_model_len", "1k", "--served-model-name", "a", "b", "--trust-remote-code",
                 "-tp", "1", "--enforce-eager", "--config", str(config), "--generation-config", "vllm",
                 "--override-generation-config.temperature", "0", "--chat-template",
                 "{{ mood }}: {{ messages[0]['content'] }}", "--default-chat-template-kwargs", '{"mood": "calm"}']  # fmt: skip
    with Server(*arguments) as server:
        client = server.client()
        models = {model.id: model for model in client.models.list().data}
        assert set(models) == {"a", "b"} and models["a"].max_model_len == 1000
        assert "sluice: --trust-remote-code: nothing to do: no code of a model is ever run\n" in server.lines
        assert "sluice: -tp 1: nothing to do, it is always so\n" in server.lines
        message = [{"role": "user", "content": "Hi"}]
        for kwargs, text in (({}, "calm: Hi"), ({"mood": "glad"}, "glad: Hi")):
            body = {"messages": message, "chat_template_kwargs": kwargs}
            assert httpx.post(server.url + "/apply-template", json=body).json()["prompt"] == text
        # The default temperature is 0.
        answers = {
            client.completions.create(model="b", prompt="Once", max_tokens=12, seed=seed).choices[0].text
            for seed in range(4)
        }
        assert len(answers) == 1


def test_model_of_a_file(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"model": str(MODEL)}))
    done = run("inspect", env={"SLUICE_CONFIG": str(config)})
    assert done.returncode == 0 and str(MODEL.name) in done.stdout
    config.write_text("max-model-len: many\n")
    done = run("inspect", MODEL, "--config", config)
    assert done.returncode == 2 and "--max-model-len: many is not a whole number" in done.stderr
