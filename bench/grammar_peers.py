#!/usr/bin/env python3
"""Times grammars and masks of Sluice beside llguidance and xgrammar (whichever is installed), on one file of MaskBench's
lines, in one run:

    python -m venv peers && peers/bin/pip install llguidance numpy xgrammar
    peers/bin/python bench/grammar_peers.py build/release/bin/sluice TOKENIZER_FOLDER schemas.jsonl

TOKENIZER_FOLDER has encoder.json and vocab.bpe (byte-level BPE). Texts are cut into the longest tokens that match, so
that the peers need no tokenizer; Sluice uses the real one."""
import argparse
import json
import math
import pathlib
import subprocess
import time


def byte_symbols():
    """The bytes that the characters of byte-level BPE stand for."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}


def read_vocabulary(folder):
    symbols = byte_symbols()
    ids = json.loads((pathlib.Path(folder) / "encoder.json").read_text())
    tokens = [b""] * (max(ids.values()) + 1)
    for text, i in ids.items():
        tokens[i] = bytes(symbols[c] for c in text)
    return tokens


class Longest:
    """Cuts a text into the longest tokens that match."""

    def __init__(self, tokens):
        self.ids = {t: i for i, t in enumerate(tokens) if t}
        self.longest = max(map(len, self.ids))

    def __call__(self, text):
        data, out, at = text if isinstance(text, bytes) else text.encode(), [], 0
        while at < len(data):
            size = next(n for n in range(min(self.longest, len(data) - at), 0, -1) if data[at:at + n] in self.ids)
            out.append(self.ids[data[at:at + size]])
            at += size
        return out


class LlGuidance:
    name = "llguidance"

    def __init__(self, tokens, cut):
        import llguidance
        import llguidance.numpy as masks

        class Tokenizer:
            eos_token_id = len(tokens)
            bos_token_id = None
            special_token_ids = [len(tokens)]

            def __call__(self, text):
                return cut(text)

        Tokenizer.tokens = [*tokens, b"<|end|>"]
        self.lib = llguidance
        self.tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Tokenizer()))
        self.bits = masks.allocate_token_bitmask(1, len(tokens) + 1)
        self.fill_next = masks.fill_next_token_bitmask

    def compile(self, schema):
        grammar = self.lib.LLMatcher.grammar_from_json_schema(json.dumps(schema))
        matcher = self.lib.LLMatcher(self.tokenizer, grammar)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def start(self, grammar):
        return grammar.deep_copy()

    def fill(self, matcher):
        self.fill_next(matcher, self.bits, 0)

    def accept(self, matcher, token):
        return matcher.try_consume_tokens([token]) == 1

    def complete(self, matcher):
        return matcher.is_accepting()


class XGrammar:
    name = "xgrammar"

    def __init__(self, tokens, cut):
        import xgrammar
        self.lib = xgrammar
        self.info = xgrammar.TokenizerInfo([*tokens, b"<|end|>"], stop_token_ids=[len(tokens)])
        self.bits = xgrammar.allocate_token_bitmask(1, len(tokens) + 1)

    def compile(self, schema):
        compiler = self.lib.GrammarCompiler(self.info, max_threads=1, cache_enabled=False)
        return compiler.compile_json_schema(json.dumps(schema), strict_mode=False)

    def start(self, grammar):
        return self.lib.GrammarMatcher(grammar)

    def fill(self, matcher):
        matcher.fill_next_token_bitmask(self.bits)

    def accept(self, matcher, token):
        return matcher.accept_token(token)

    def complete(self, matcher):
        return matcher.is_completed()


def follow(peer, grammar, ids, times):
    matcher = peer.start(grammar)
    for token in [*ids, None]:
        start = time.perf_counter()
        peer.fill(matcher)
        times.append(time.perf_counter() - start)
        if token is None:
            return peer.complete(matcher)
        if not peer.accept(matcher, token):
            return False


def summary(seconds):
    values = sorted(seconds)
    at = lambda share: round(values[math.ceil(share * len(values)) - 1] * 1e6, 3)
    return {"mean": round(sum(values) / len(values) * 1e6, 3), "p50": at(0.5), "p90": at(0.9), "p99": at(0.99),
            "p99.9": at(0.999), "max": at(1)}


def measure(peer, cases, cut):
    compile_times, mask_times, refused, wrong = [], [], 0, 0
    for case in cases:
        start = time.perf_counter()
        try:
            grammar = peer.compile(case["schema"])
        except Exception:  # each peer has errors of its own
            grammar = None
        compile_times.append(time.perf_counter() - start)
        if grammar is None:
            refused += 1
            continue
        for test in case["tests"]:
            text = json.dumps(test["data"], separators=(",", ":"), ensure_ascii=False)
            wrong += follow(peer, grammar, cut(text), mask_times) != test["valid"]
    return {"grammars": len(cases), "refused": refused, "wrong_verdicts": wrong, "masks": len(mask_times),
            "compile_us": summary(compile_times), "mask_us": summary(mask_times)}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("sluice", "tokenizer", "file"):
        arguments.add_argument(name)
    a = arguments.parse_args()
    own = json.loads(subprocess.run([a.sluice, "bench", "grammar", a.tokenizer, "--file", a.file], check=True,
                                    capture_output=True, text=True).stdout)
    print(json.dumps({"engine": "sluice"} | own))
    cases = [json.loads(line) for line in open(a.file, encoding="utf-8")]
    tokens = read_vocabulary(a.tokenizer)
    cut = Longest(tokens)
    for kind in (LlGuidance, XGrammar):
        try:
            peer = kind(tokens, cut)
        except ImportError as error:
            print(json.dumps({"engine": kind.name, "skipped": str(error)}))
            continue
        result = measure(peer, cases, cut)
        ratios = {f"{what}.{key}": round(result[what][key] / max(own[what][key], 1e-3), 2)
                  for what in ("compile_us", "mask_us") for key in ("mean", "p50", "p99", "p99.9", "max")}
        print(json.dumps({"engine": kind.name} | result | {"times_of_sluice": ratios}))


if __name__ == "__main__":
    main()
