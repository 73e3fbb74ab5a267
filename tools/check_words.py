#!/usr/bin/env python3
"""Refuses words and identifiers for which the field has better ones (tools/words.txt).

Each line of tools/words.txt is a regular expression, a tab and what to say instead. A word in its common English sense is
fine: the expressions name phrases and identifiers, not words.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
READ = re.compile(r"\.(h|cc|cu|cuh|md|py|sh|txt|cmake)$")
SKIP = re.compile(r"^(bench/results/|models/|tests/goldens/|tests/fuzz/seeds/|tools/words\.txt$|docs/glossary\.md$|docs/models\.md$)")


def rules():
    for number, line in enumerate((ROOT / "tools/words.txt").read_text().splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        expression, tab, instead = line.partition("\t")
        if not tab:
            sys.exit(f"tools/words.txt:{number}: no tab between the expression and what to say instead")
        yield re.compile(expression), instead


def main():
    words = list(rules())
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    found = 0
    for name in files:
        if not READ.search(name) or SKIP.search(name) or not (ROOT / name).is_file():
            continue
        for number, line in enumerate((ROOT / name).read_text(errors="replace").splitlines(), 1):
            for expression, instead in words:
                match = expression.search(line)
                if match:
                    print(f"{name}:{number}: '{match.group(0)}': say {instead}")
                    found += 1
    print(f"words: {found} to replace" if found else "words: the field's")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
