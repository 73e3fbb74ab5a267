#!/usr/bin/env python3
"""Measures `sluice route`: what it adds to a request, throughput over stub replicas, cache hits over real ones.

.venv/bin/python bench/route.py                 # all three; prints Markdown
.venv/bin/python bench/route.py overhead        # or throughput, hits
"""

import argparse
import concurrent.futures
import pathlib
import random
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

from raw_http import Connection, http  # noqa: E402
from routing import Route  # noqa: E402
from serving import Server  # noqa: E402


class Stub:
    def __init__(self, seconds=0.0, slots=1):
        command = [sys.executable, ROOT / "bench" / "route_stub.py", str(seconds), str(slots)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def address(url):
    host, port = url.removeprefix("http://").rsplit(":", 1)
    return host, int(port)


def completion(prompt, **fields):
    return http("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 4, "temperature": 0, **fields})


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def overhead(requests):
    """The same request to a stub directly and through the router, in turns, over one connection each."""
    rows = []
    with Stub() as stub, Route([stub.url]) as route:
        for size in (200, 4_000, 64_000):
            request = completion("word " * (size // 5))
            direct, routed = Connection(address(stub.url)), Connection(address(route.url))
            times = {direct: [], routed: []}
            for n in range(requests + 100):
                for connection in (direct, routed):
                    start = time.perf_counter()
                    connection.socket.sendall(request)
                    status, _, _ = connection.answer()
                    assert status == 200
                    if n >= 100:
                        times[connection].append((time.perf_counter() - start) * 1e3)
            added = [b - a for a, b in zip(times[direct], times[routed])]
            rows.append(
                [f"{len(request):,}"]
                + [f"{percentile(times[c], p):.3f}" for p in (0.5, 0.99) for c in (direct, routed)]
                + [f"{percentile(added, 0.5):.3f}", f"{percentile(added, 0.99):.3f}"]
            )
    print("## Overhead\n")
    print(f"{requests} requests of each size. Milliseconds; 'added' is of pairs of consecutive requests.\n")
    print("| bytes | direct p50 | routed p50 | direct p99 | routed p99 | added p50 | added p99 |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print()


class Load:
    """Requests from clients that each wait for their answer before the next request."""

    def __init__(self, url, clients, prompts):
        self.url, self.clients, self.prompts = url, clients, iter(prompts)
        self.lock, self.done = threading.Lock(), 0

    def client(self, until):
        connection = Connection(address(self.url))
        while time.monotonic() < until:
            with self.lock:
                prompt = next(self.prompts, None)
            if prompt is None:
                return
            connection.socket.sendall(completion(prompt))
            status, body, stays = connection.answer()
            assert status == 200, (status, body)
            if not stays:
                connection = Connection(address(self.url))
            with self.lock:
                self.done += 1

    def run(self, seconds=1e9):
        start = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(self.clients) as pool:
            for worker in [pool.submit(self.client, start + seconds) for _ in range(self.clients)]:
                worker.result()
        return self.done / (time.monotonic() - start)


def grouped_prompts(groups, length, count=None, seed=1):
    """Prompts that begin with one of `groups` texts of `length` words and end differently."""
    generator = random.Random(seed)
    words = "river stone cloud green paper seven window little garden morning".split()
    texts = [" ".join(generator.choice(words) for _ in range(length)) for _ in range(groups)]
    n = 0
    while count is None or n < count:
        n += 1
        yield f"{generator.choice(texts)} Question {n}: {generator.choice(words)}?"


def throughput(seconds):
    service, slots = 0.05, 8
    print("## Throughput\n")
    print(f"Stub replicas with {slots} slots of {service * 1e3:.0f} ms; 16 clients for each replica, 24 prefixes.\n")
    print("| replicas | policy | requests/s | against one |\n| --- | --- | --- | --- |")
    one = None
    for count, policy in ((1, "cache"), (3, "cache"), (3, "least-load"), (3, "round-robin")):
        stubs = [Stub(service, slots) for _ in range(count)]
        try:
            with Route([stub.url for stub in stubs], "--policy", policy) as route:
                rate = Load(route.url, 16 * count, grouped_prompts(24, 120)).run(seconds)
        finally:
            for stub in stubs:
                stub.__exit__()
        one = one or rate
        print(f"| {count} | {policy} | {rate:.0f} | {rate / one:.2f} |")
    print()


def hits(requests):
    groups, words, cache = 36, 300, 24 << 20
    base = ["--threads", "1", "--no-log-requests", "--max-num-seqs", "8"]
    rows = []

    def measure(name, replicas, memory, policy):
        servers = []
        try:
            for _ in range(replicas):
                servers.append(Server(*base, "--kv-cache-memory-bytes", str(memory)))
            with Route([server.url for server in servers], "--policy", policy) as route:
                Load(route.url, 6, grouped_prompts(groups, words, requests)).run()
                metrics = [server.wait_idle() for server in servers]
                looked_up = sum(m["vllm:prefix_cache_queries_total"] for m in metrics)
                found = sum(m["vllm:prefix_cache_hits_total"] for m in metrics)
                most = max(m["vllm:prompt_tokens_total"] for m in metrics) / sum(
                    m["vllm:prompt_tokens_total"] for m in metrics
                )
                rows.append((name, found / looked_up, most))
        finally:
            for server in servers:
                server.kill()

    measure("1, with the memory of three", 1, 3 * cache, "cache")
    for policy in ("cache", "least-load", "round-robin"):
        measure(f"3, {policy}", 3, cache, policy)
    print("## Cache hits\n")
    print(f"{requests} requests of {groups} prefixes of {words} words, 6 clients; {cache >> 20} MiB of KV cache each.\n")
    print("| replicas | prompt tokens from the cache | against one | largest share of a replica |")
    print("| --- | --- | --- | --- |")
    for name, share, most in rows:
        print(f"| {name} | {share:.1%} | {share / rows[0][1]:.1%} | {most:.0%} |")
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="overhead, throughput, hits (default: all)")
    parser.add_argument("--requests", type=int, default=3000, help="of each size (overhead)")
    parser.add_argument("--seconds", type=float, default=10, help="of each load (throughput)")
    parser.add_argument("--prompts", type=int, default=720, help="of each load (hits)")
    arguments = parser.parse_args()
    for what in arguments.what or ["overhead", "throughput", "hits"]:
        if what == "overhead":
            overhead(arguments.requests)
        elif what == "throughput":
            throughput(arguments.seconds)
        elif what == "hits":
            hits(arguments.prompts)
        else:
            parser.error(f"'{what}' is not a measurement (expected overhead, throughput or hits)")


if __name__ == "__main__":
    main()
