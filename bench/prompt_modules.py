#!/usr/bin/env python3
"""Measures the time to the first token of questions about documents, with and without prompt modules.

usage: prompt_modules.py --url http://127.0.0.1:8000 [--documents 16] [--each 8] [--words 480] [--rounds 20]

Every request has some of the documents, in a new combination, and a short question. First the documents stand in the
prompt, then they are modules at fixed positions (docs/prompt-modules.md). The server needs a context for all documents.
"""
import argparse
import random
import statistics
import time

import httpx

WORDS = "the fox boat red house of Tom baked bread sun island small and then they looked for shells with her".split()


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--documents", type=int, default=16, help="all of them")
    parser.add_argument("--each", type=int, default=8, help="documents of a request")
    parser.add_argument("--words", type=int, default=480, help="words of a document")
    parser.add_argument("--rounds", type=int, default=20, help="requests of each kind")
    return parser.parse_args()


def ask(client, body):
    """The usage, and how long the answer of one token took."""
    begin = time.perf_counter()
    answer = client.post("/v1/completions", json=body | {"max_tokens": 1, "temperature": 0})
    took = time.perf_counter() - begin
    answer.raise_for_status()
    return answer.json()["usage"], took


def main():
    args = parse_args()
    draw = random.Random(1)
    documents = [" ".join(draw.choice(WORDS) for _ in range(args.words)) + ". " for _ in range(args.documents)]
    with httpx.Client(base_url=args.url, timeout=600) as client:
        lengths = [client.post("/tokenize", json={"prompt": text}).json()["count"] for text in documents]
        modules = [{"prompt": text, "position": i * max(lengths)} for i, text in enumerate(documents)]
        print(f"documents of {min(lengths)} to {max(lengths)} tokens")
        for as_modules in (False, True):
            if as_modules:
                _, took = ask(client, {"prompt": "a", "prompt_modules": modules})
                print(f"all modules for the first time: {took:.3f} s")
            times, found, tokens = [], 0, 0
            for number in range(args.rounds):
                chosen = sorted(draw.sample(range(args.documents), args.each))
                question = f"What did Tom bake on day {number} of {draw.randrange(1000)}?"
                body = {"prompt": "".join(documents[i] for i in chosen) + question}
                if as_modules:
                    body = {"prompt": question, "prompt_modules": [modules[i] for i in chosen]}
                usage, took = ask(client, body)
                times.append(took)
                found += usage["prompt_tokens_details"]["cached_tokens"]
                tokens += usage["prompt_tokens"]
            kind = "as modules" if as_modules else "in the prompt"
            print(f"{kind}: {1000 * statistics.median(times):.1f} ms, at most {1000 * max(times):.1f} ms; "
                  f"{100 * found / tokens:.1f} % of {tokens // args.rounds} prompt tokens found")


if __name__ == "__main__":
    main()
