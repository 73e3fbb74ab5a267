#!/usr/bin/env python3
"""Plays agents against a server: conversations whose turns have gaps, in which the agent's tool runs.

.venv/bin/python bench/agent_trace.py                       # the demo model, with and without sessions; prints Markdown
.venv/bin/python bench/agent_trace.py --scale 1 --url http://127.0.0.1:8000 --model NAME

Prompts are token ids: a turn sends the last turn's prompt and answer and some new tokens. What the server may reuse of
it is all but the new tokens and the last one of the answer, whose keys and values were not computed. Gaps are the tool's
1 to 60 seconds times --scale. In the gaps other prompts, each seen once, go through the cache.
"""

import argparse
import asyncio
import json
import pathlib
import random
import sys
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
VOCABULARY = range(300, 8000)  # no special tokens


async def complete(url, fields):
    """Returns the answer's token ids, the cached tokens of the prompt, and the seconds to the first token."""
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    body = json.dumps({"temperature": 0, "ignore_eos": True, "stream": True, "return_token_ids": True,
                       "stream_options": {"include_usage": True}, **fields}).encode()
    writer.write(
        f"POST /v1/completions HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    )
    begin, first, tokens, cached = time.monotonic(), None, [], None
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError((status + await reader.read()).decode())
    while line := await reader.readline():
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        for choice in event["choices"]:
            first = first or time.monotonic() - begin
            tokens += choice["token_ids"]
        if event.get("usage"):
            cached = (event["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    writer.close()
    return tokens, cached, first


class Trace:
    def __init__(self, arguments, url, model, sessions):
        self.arguments, self.url, self.model, self.sessions = arguments, urllib.parse.urlparse(url), model, sessions
        self.reusable = self.reused = 0
        self.first_tokens, self.left = [], arguments.agents
        self.running = asyncio.Semaphore(arguments.concurrency)

    async def complete(self, fields):
        async with self.running:
            return await complete(self.url, {"model": self.model, **fields})

    async def agent(self, number):
        source = random.Random(number)
        prompt, known = source.choices(VOCABULARY, k=self.arguments.first_tokens), 0
        await asyncio.sleep(source.uniform(0, 60) * self.arguments.scale)
        for turn in range(self.arguments.turns):
            fields = {"prompt": prompt, "max_tokens": self.arguments.answer_tokens}
            if self.sessions:
                fields["session_id"] = f"agent-{number}"
            answer, cached, first = await self.complete(fields)
            self.reusable += known
            self.reused += min(cached, known)
            if turn > 0:
                self.first_tokens.append(first)
            known = len(prompt) + len(answer) - 1
            prompt = prompt + answer + source.choices(VOCABULARY, k=self.arguments.new_tokens)
            await asyncio.sleep(source.uniform(1, 60) * self.arguments.scale)
        self.left -= 1

    async def others(self):
        source = random.Random(-1)
        while self.left > 0:
            prompt = source.choices(VOCABULARY, k=self.arguments.other_tokens)
            await self.complete({"prompt": prompt, "max_tokens": 1})
            await asyncio.sleep(self.arguments.other_gap * self.arguments.scale)

    async def run(self):
        begin = time.monotonic()
        agents = [self.agent(number) for number in range(self.arguments.agents)]
        await asyncio.gather(*agents, *[self.others() for _ in range(self.arguments.others)])
        times = sorted(self.first_tokens)
        return {
            "sessions": "yes" if self.sessions else "no",
            "reused": f"{100 * self.reused / self.reusable:.2f} %",
            "TTFT p50": f"{1000 * times[len(times) // 2]:.0f} ms",
            "p99": f"{1000 * times[len(times) * 99 // 100]:.0f} ms",
            "turns": len(times) + self.arguments.agents,
            "seconds": f"{time.monotonic() - begin:.0f}",
        }


def started_server(*options):
    sys.path.insert(0, str(ROOT / "tests" / "e2e"))
    from serving import Server  # needs packages that --url does not
    return Server(*options)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="of a server that runs; with --model")
    parser.add_argument("--model", help="its name there")
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--first-tokens", type=int, default=64, help="of an agent's first prompt")
    parser.add_argument("--new-tokens", type=int, default=32, help="that a turn adds to the last one and its answer")
    parser.add_argument("--answer-tokens", type=int, default=12)
    parser.add_argument("--other-tokens", type=int, default=256, help="of a prompt that no agent sends")
    parser.add_argument("--others", type=int, default=4, help="streams of other prompts")
    parser.add_argument("--other-gap", type=float, default=1.0, help="seconds between their prompts")
    parser.add_argument("--scale", type=float, default=0.05, help="of all seconds")
    parser.add_argument("--concurrency", type=int, default=64, help="requests at a time")
    parser.add_argument("--only-sessions", action="store_true", help="leave out the run without sessions")
    parser.add_argument("--cache", default="768M", help="KV cache of the servers that are started")
    arguments = parser.parse_args()
    rows = []
    for sessions in (True,) if arguments.only_sessions else (False, True):
        if arguments.url:
            rows.append(asyncio.run(Trace(arguments, arguments.url, arguments.model, sessions).run()))
            continue
        options = ["--kv-cache-memory-bytes", arguments.cache, "--block-size", "8", "--session-cache-share", "0.9"]
        with started_server(*options, "--max-num-seqs", "64") as server:
            rows.append(asyncio.run(Trace(arguments, server.url, server.name, sessions).run()))
            metrics = server.metrics()
            rows[-1]["lost"] = int(metrics["sluice:sessions_lost_total"])
    print("| " + " | ".join(rows[0]) + " |\n|" + " --- |" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join(str(value) for value in row.values()) + " |")


if __name__ == "__main__":
    main()
