"""Times how long a prompt takes that is computed, that is found in the cache's blocks, in host memory, and on disk.

  bench/gpu/kv_tiers.py SLUICE MODEL --tokens 65536 --cache 11G --host 24G [--disk FOLDER --disk-size 12G]

The server's cache holds one such prompt, so that a second one takes the blocks of the first. Prints the seconds to the
first token, and the bytes that were loaded by the second that it took longer than with the blocks at hand."""

import argparse
import json
import random
import subprocess
import time
import urllib.request

PORT = 18231


class Server:
    def __init__(self, options):
        command = [options.sluice, "serve", options.model, "--port", str(PORT), "--max-model-len",
                   str(options.tokens + 64), "--kv-cache-memory-bytes", options.cache, "--log-level", "warning",
                   "--kv-host-memory-bytes", options.host]
        if options.disk:
            command += ["--kv-disk", options.disk, "--kv-disk-bytes", options.disk_size]
        begin = time.time()
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while True:
            assert self.process.poll() is None, "the server ended"
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=2).read()
                break
            except OSError:
                time.sleep(0.2)
        print(f"ready after {time.time() - begin:.1f} s", flush=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(120)

    def metrics(self):
        text = urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics").read().decode()
        rows = {}
        for line in text.splitlines():
            if line.startswith("sluice:kv_rows"):
                name, value = line.rsplit(" ", 1)
                where = name.split('where="')[1].split('"')[0] if "where=" in name else ""
                rows[name.split("{")[0].removeprefix("sluice:") + where] = float(value)
        return rows

    def settle(self):
        """Waits until nothing is saved or written any more."""
        before = None
        while (now := self.metrics()) != before:
            before = now
            time.sleep(1)
        return now

    def ask(self, prompt):
        body = json.dumps({"prompt": prompt, "max_tokens": 1, "ignore_eos": True, "temperature": 0})
        request = urllib.request.Request(f"http://127.0.0.1:{PORT}/v1/completions", body.encode(),
                                         {"Content-Type": "application/json"})
        begin = time.time()
        answer = json.loads(urllib.request.urlopen(request, timeout=600).read())
        details = answer["usage"].get("prompt_tokens_details") or {}
        return time.time() - begin, details.get("cached_tokens", 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sluice")
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--bytes-per-token", type=int, default=131072)
    parser.add_argument("--cache", default="11G")
    parser.add_argument("--host", default="24G")
    parser.add_argument("--disk")
    parser.add_argument("--disk-size", default="24G")
    options = parser.parse_args()
    draw = random.Random(1)
    first, second = ([draw.randrange(1000, 30000) for _ in range(options.tokens)] for _ in range(2))

    def report(what, server, prompt, base=0.0):
        before = server.metrics()["kv_rows_loaded_total"]
        seconds, cached = server.ask(prompt)
        rows = server.metrics()["kv_rows_loaded_total"] - before
        text = f"{what:28} {seconds:7.3f} s, {cached} tokens cached"
        if rows and base:
            loaded = rows * 16 * options.bytes_per_token / 1e9  # blocks of 16 tokens
            text += f", {loaded:.2f} GB loaded, {loaded / (seconds - base):.1f} GB/s"
        print(text, flush=True)
        return seconds

    with Server(options) as server:
        report("computed", server, first)
        at_hand = report("in blocks", server, first)
        at_hand = min(at_hand, report("in blocks", server, first))
        server.settle()
        for _ in range(2):
            report("another prompt", server, second)
            server.settle()
            report("in host memory", server, first, at_hand)
            report("in blocks", server, first)
        print(server.settle(), flush=True)
    if options.disk:
        with Server(options) as server:
            report("on disk", server, first, at_hand)
            report("in blocks", server, first)
            print(server.settle(), flush=True)


if __name__ == "__main__":
    main()
