"""Times prompts that one server has computed and another one fetches, over TCP and over UCX in turns.

  bench/kv_transfer.py SLUICE MODEL --tokens 4096 --bytes-per-token 65536 [--repeat 5] [OPTIONS OF THE SERVERS]

All servers are on this machine. Prints the seconds to the first token of the fetching server, those of the same prompt
once it is in the server's blocks, and the bytes that were fetched divided by the difference."""

import argparse
import contextlib
import json
import random
import statistics
import subprocess
import time
import urllib.request

PORTS = {"tcp": (18241, 18242), "ucx": (18243, 18244)}


def ask(port, prompt, **fields):
    body = json.dumps({"prompt": prompt, "max_tokens": 1, "ignore_eos": True, "temperature": 0} | fields)
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", body.encode(), {"Content-Type": "application/json"}
    )
    begin = time.time()
    answer = json.loads(urllib.request.urlopen(request, timeout=600).read())
    return time.time() - begin, answer


@contextlib.contextmanager
def server(options, port, *arguments):
    command = [options.sluice, "serve", options.model, "--port", str(port), "--log-level", "warning"]
    command += ["--kv-host-memory-bytes", options.host, *arguments, *options.arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while True:
            assert process.poll() is None, "the server ended"
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).read()
                break
            except OSError:
                time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait(120)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sluice")
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--bytes-per-token", type=int, default=131072)
    parser.add_argument("--host", default="2G", help="host memory of each server for keys and values")
    parser.add_argument("--repeat", type=int, default=5)
    options, options.arguments = parser.parse_known_args()
    rng = random.Random(1)
    rates = {backend: [] for backend in PORTS}
    with contextlib.ExitStack() as stack:
        for backend, (prefill, decode) in PORTS.items():
            kind = ["--kv-transfer-backend", backend]
            stack.enter_context(server(options, prefill, *kind, "--kv-transfer-listen", "127.0.0.1:0"))
            stack.enter_context(server(options, decode, *kind, "--kv-transfer-peer", "*"))
        for turn in range(options.repeat + 1):  # the first one connects
            for backend, (prefill, decode) in PORTS.items():
                prompt = [rng.randrange(300, 1300) for _ in range(options.tokens + 1)]
                computed, answer = ask(prefill, prompt, kv_transfer_params={"do_remote_decode": True})
                fetched, second = ask(decode, prompt, kv_transfer_params=answer["kv_transfer_params"])
                cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
                assert cached == options.tokens, f"{cached} tokens were fetched"
                held, _ = ask(decode, prompt)
                rate = cached * options.bytes_per_token / (fetched - held) / 1e9
                if turn > 0:
                    rates[backend].append(rate)
                print(f"{backend}: computed {computed:.3f} s, fetched {fetched:.3f}, in blocks {held:.3f}: {rate:.2f} GB/s")
    for backend, found in rates.items():
        print(f"{backend}: median {statistics.median(found):.2f} GB/s of {len(found)}")


if __name__ == "__main__":
    main()
