"""Compares Sluice's tokenizer with Hugging Face tokenizers on the same text, one thread each, in turns.

usage: python bench/tokenizer_peer.py [--bench build/release/bin/tokenizer_bench] [--text FILE] [--runs 5]
                                      [TOKENIZER_JSON ...]

The default text is 4 MB of the repository's own sources and documents; the default tokenizers are those in
tests/goldens/tokenizer. Both libraries must give the same ids. Prints medians in MB of text per second of CPU time.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import tokenizers  # noqa: E402  (reads the variable when it is imported)

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXT_BYTES = 4_000_000


def sample_text():
    """Returns prose and code; always the same for a checkout."""
    paths = sorted(p for p in ROOT.glob("**/*") if p.suffix in (".md", ".cc", ".h", ".py") and ".venv" not in p.parts)
    text = "\n".join(p.read_text(errors="replace") for p in paths if "build" not in p.parts)
    while len(text) < TEXT_BYTES:
        text += text
    return text[:TEXT_BYTES]


def huggingface(path, text, runs):
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    speeds = []
    for _ in range(runs):
        begin = time.thread_time()
        ids = tokenizer.encode(text).ids
        speeds.append(len(text.encode()) / 1e6 / (time.thread_time() - begin))
    return statistics.median(speeds), ids


def sluice(bench, path, file, runs):
    with tempfile.TemporaryDirectory() as folder:
        ids_file = pathlib.Path(folder) / "ids"
        out = subprocess.run(
            [bench, path, file, "--runs", str(runs), "--ids", ids_file], check=True, capture_output=True, text=True
        )
        speed = float(out.stdout.split("encode ")[1].split()[0])
        return speed, [int(i) for i in ids_file.read_text().split()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizers", nargs="*", type=pathlib.Path)
    parser.add_argument("--bench", default=ROOT / "build/release/bin/tokenizer_bench")
    parser.add_argument("--text", type=pathlib.Path)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    text = args.text.read_text() if args.text else sample_text()
    paths = args.tokenizers or sorted((ROOT / "tests/goldens/tokenizer").glob("*/tokenizer.json"))
    different = 0
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "text"
        file.write_text(text)
        print(f"{len(text.encode()) / 1e6:.1f} MB of text, tokenizers {tokenizers.__version__}, MB/s of one thread")
        print(f"{'tokenizer':<32}{'Sluice':>10}{'Hugging Face':>14}{'ratio':>8}")
        for path in paths:
            ours, ids = sluice(args.bench, path, file, args.runs)
            theirs, wanted = huggingface(path, text, args.runs)
            same = ids == wanted
            different += not same
            note = "" if same else "  ids differ"
            print(f"{path.parent.name:<32}{ours:>10.1f}{theirs:>14.1f}{ours / theirs:>8.1f}{note}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
