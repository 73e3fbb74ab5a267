"""Stress test: runs many streams at once. Clients cut a third of them at random points; the others must be exactly
right.

  ./dev bench stress [--streams 200] [--seconds 30] [--rounds 3]

The expected text of each prompt is computed first, alone. Afterwards no request may run or wait, and no cache block may
be in use. Memory is printed after every round. The first rounds touch cache blocks for the first time; the last one may
grow by at most --flat-mib. Exits with 1 on any failure.
"""

import argparse
import asyncio
import collections
import json
import random
import sys
import time

import httpx

import serving

TOPICS = ["mouse", "river", "baker", "lantern", "winter", "garden", "sailor", "clock", "violin", "mountain"]


def bodies(model, count, max_tokens):
    for i in range(count):
        text = f"Tell me a story about a {TOPICS[i % len(TOPICS)]} and the number {i * 7}."
        yield {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "temperature": 0,
            "max_tokens": max_tokens,
            "stream": True,
            "ignore_eos": True,
        }


class Failure(Exception):
    pass


async def stream(http, url, body, cut_after=None):
    """Returns the text of a whole stream; None if it was cut after some events."""
    text, done, events = [], False, 0
    async with http.stream("POST", url, json=body) as response:
        if response.status_code != 200:
            raise Failure(f"status {response.status_code}: {(await response.aread())[:200]!r}")
        async for line in response.aiter_lines():
            if not line:
                continue
            events += 1
            if cut_after is not None and events > cut_after:
                return None
            if line == "data: [DONE]":
                done = True
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise Failure(f"error event: {event}")
            text.append(event["choices"][0]["delta"].get("content") or "")
    if not done:
        raise Failure("the stream ended without [DONE]")
    return "".join(text)


async def run(server, args, seed):
    url = server.url + "/v1/chat/completions"
    rng = random.Random(seed)
    counts = collections.Counter()
    failures = []
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=args.streams)
    async with httpx.AsyncClient(limits=limits, timeout=300) as http:
        prompts = list(bodies(server.name, args.prompts, args.max_tokens))
        right = [await stream(http, url, body) for body in prompts]
        end = time.monotonic() + args.seconds

        async def worker():
            while time.monotonic() < end:
                i = rng.randrange(len(prompts))
                cut = rng.randrange(args.max_tokens) if rng.random() < 1 / 3 else None
                try:
                    text = await stream(http, url, prompts[i], cut)
                except (Failure, httpx.HTTPError) as e:
                    failures.append(f"prompt {i}: {type(e).__name__}: {e}")
                    continue
                counts["cut" if text is None else "whole"] += 1
                if text is not None and text != right[i]:
                    failures.append(f"prompt {i}: text differs: {text!r} instead of {right[i]!r}")

        await asyncio.gather(*(worker() for _ in range(args.streams)))
    return counts, failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flat-mib", type=float, default=4)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("options", nargs="*", help="for `sluice serve`, after --")
    args = parser.parse_args()
    with serving.Server("--dtype", "float32", *args.options) as server:
        asyncio.run(run(server, argparse.Namespace(**{**vars(args), "seconds": 2}), args.seed))  # warm-up
        server.wait_idle()
        memory, begin = [server.resident_bytes()], time.monotonic()
        counts, failures = collections.Counter(), []
        for i in range(args.rounds):
            more, failed = asyncio.run(run(server, args, args.seed + 1 + i))
            counts.update(more)
            failures += failed
            metrics = server.wait_idle()
            memory.append(server.resident_bytes())
        seconds = time.monotonic() - begin
        if args.rounds > 1 and memory[-1] - memory[-2] > args.flat_mib * 2**20:
            failures.append(f"memory still grew by {(memory[-1] - memory[-2]) / 2**20:.1f} MiB in the last round")
        if metrics["vllm:kv_cache_usage_perc"] != 0:
            failures.append(f"cache blocks in use at the end: {metrics['vllm:kv_cache_usage_perc']:.4f}")
        if counts["whole"] == 0 or counts["cut"] == 0:
            failures.append(f"nothing was tested: {dict(counts)}")
        server.terminate()
        if (status := server.wait()) != 0:
            failures.append(f"exit status {status}")
    print(f"{counts['whole']} whole streams, {counts['cut']} cut, {len(failures)} failures in {seconds:.1f} s")
    rounds = ", ".join(f"{after / 2**20:.1f}" for after in memory[1:])
    print(f"memory (RssAnon + VmSwap): {memory[0] / 2**20:.1f} MiB before, after each round {rounds} MiB")
    for failure in failures[:20]:
        print("FAILED:", failure[:500])
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
