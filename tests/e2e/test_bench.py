"""Tests `sluice bench serve` with its own engine and against a server."""

import json
import subprocess

import serving

LOAD = ["--num-prompts", "12", "--request-rate", "40", "--input-len", "9", "--output-len", "7"]


def bench(*args, expected=0):
    done = subprocess.run([str(serving.binary()), "bench", "serve", *args], capture_output=True, text=True, timeout=120)
    assert done.returncode == expected, done.stderr
    return json.loads(done.stdout.splitlines()[-1]) if expected == 0 else done.stderr


def check(result):
    assert result["requests"] == 12 and result["failed"] == 0
    assert result["request_rate"] == 40
    for times in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
        p = result[times]
        assert 0 < p["p50"] <= p["p90"] <= p["p99"], times
    assert result["e2e_ms"]["p50"] >= result["ttft_ms"]["p50"]
    # Twelve arrivals at 40 per second take about a quarter of a second; the answers take some time too.
    assert result["seconds"] > 0.05
    assert abs(result["output_tokens_per_second"] * result["seconds"] - 12 * 7) < 0.01
    assert abs(result["total_tokens_per_second"] * result["seconds"] - 12 * 16) < 0.01


def test_engine():
    result = bench(str(serving.MODEL), *LOAD, "--goodput", "ttft:60000,e2e:60000")
    check(result)
    assert abs(result["goodput"] - result["requests_per_second"]) < 1e-6


def test_server(server):
    result = bench("--base-url", server.url, *LOAD, "--max-concurrency", "3", "--goodput", "tpot:0.000001")
    check(result)
    assert result["model"] == server.name and result["goodput"] == 0


def test_constant_rate(server):
    constant = bench("--base-url", server.url, *LOAD, "--constant-rate")
    assert constant["seconds"] >= 11 / 40


def test_mistakes_are_named(server):
    assert "ttft" in bench("--base-url", server.url, *LOAD, "--goodput", "tttf:3", expected=2)
    assert "http" in bench("--base-url", "ftp://nowhere", *LOAD, expected=2)
    assert "127.0.0.1:9" in bench("--base-url", "http://127.0.0.1:9", *LOAD, expected=1)


def test_the_cost_of_deterministic_rows_is_printed():
    args = ["--input-len", "8", "--output-len", "4", "--iterations", "1", "--deterministic", "--backend", "reference"]
    done = subprocess.run([str(serving.binary()), "bench", "latency", *args], capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0, done.stderr
    cost = json.loads(done.stdout.strip().splitlines()[-1])["deterministic_cost"]
    assert cost == {"beside": "reference", "ttft": 1.0, "tpot": 1.0}


def throughput(*args, expected=0):
    done = subprocess.run([str(serving.binary()), "bench", "throughput", "--num-prompts", "6", "--input-len", "9",
                           "--output-len", "24", *args], capture_output=True, text=True, timeout=120)
    assert done.returncode == expected, done.stderr
    return json.loads(done.stdout.splitlines()[-1]) if expected == 0 else done.stderr


def test_constrained_sequences_are_counted_apart(tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "string", "minLength": 400}')
    for grammar in ([], ["--json-schema", str(schema)], ["--regex", "[a-z]*"]):
        result = throughput("--constrained", "2", *grammar)
        assert result["failed"] == 0
        plain, constrained = result["plain"], result["constrained"]
        assert (plain["requests"], constrained["requests"]) == (4, 2)
        assert plain["ended_early"] == constrained["ended_early"] == 0
        assert plain["largest_gap_ms"] >= plain["itl_ms"]["p50"] > 0
    short = throughput("--constrained", "6", "--regex", "abc")
    assert short["constrained"]["ended_early"] == 6 and "plain" not in short
    assert "constrained" not in throughput()


def test_mistakes_in_grammars_are_named():
    assert "--num-prompts" in throughput("--constrained", "7", expected=2)
    assert "--constrained" in throughput("--regex", "a*", expected=2)
    assert "nowhere.json" in throughput("--constrained", "1", "--json-schema", "nowhere.json", expected=2)
