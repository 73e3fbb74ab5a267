#!/usr/bin/env python3
"""Compares the verdicts of `sluice grammar --jsonl` with those of MaskBench (github.com/guidance-ai/jsonschemabench):

    bench/maskbench.py build/release/bin/sluice jsonschemabench/maskbench/data [--lines maskbench.jsonl]

Prints how many schemas are right on all of their instances, why others are refused, and every wrong verdict. --lines
also writes the schemas as the lines that `sluice bench grammar --file` reads. Ends with status 1 if an instance is
accepted wrongly."""
import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys


def read(folder):
    for file in sorted(folder.glob("*.json")):
        row = json.loads(file.read_text())
        tests = [{"valid": test["valid"], "data": test["data"]} for test in row["tests"]]
        yield {"name": file.stem, "schema": row["schema"], "tests": tests}


def reason(error):
    """The error without paths, quoted words and numbers."""
    for pattern, word in ((r"schema[^:]*: ", ""), (r"'[^']*'", "'...'"), (r"\d+", "N")):
        error = re.sub(pattern, word, error)
    return error


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sluice")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--lines", type=pathlib.Path)
    args = parser.parse_args()
    rows = list(read(args.folder))
    if args.lines:
        args.lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    questions = [
        {"json_schema": row["schema"], "instances": [json.dumps(test["data"]) for test in row["tests"]]} for row in rows
    ]
    text = "".join(json.dumps(question) + "\n" for question in questions)
    done = subprocess.run([args.sluice, "grammar", "--jsonl"], input=text, capture_output=True, text=True, check=True)
    reasons, wrong, right = collections.Counter(), [], 0
    for row, line in zip(rows, done.stdout.splitlines(), strict=True):
        answer = json.loads(line)
        if "error" in answer:
            empty = answer["error"] == "no text satisfies the grammar"
            if empty and not any(test["valid"] for test in row["tests"]):
                right += 1
            else:
                reasons[reason(answer["error"])] += 1
            continue
        differs = [
            ("accepts" if accepted else "refuses", row["name"], json.dumps(test["data"])[:200])
            for test, accepted in zip(row["tests"], answer["accepted"], strict=True)
            if accepted != test["valid"]
        ]
        wrong += differs
        right += not differs
    print(f"{len(rows)} schemas, {right} right ({100 * right / len(rows):.2f} %), {sum(reasons.values())} refused")
    for why, count in reasons.most_common():
        print(f"{count:5} {why[:140]}")
    for verdict in wrong:
        print(*verdict)
    sys.exit(any(verdict[0] == "accepts" for verdict in wrong))


if __name__ == "__main__":
    main()
