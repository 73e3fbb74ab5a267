#!/usr/bin/env python3
"""Checks the documentation: line length, relative links with their anchors, and repository paths in backticks."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS = 120
GENERATED = ("docs/options.md", "docs/parameters.md")  # made by `sluice docs`: their lines may be longer
LOGS = "bench/results/"  # dated measurements: their links are checked, their lines and paths are not
FOLDERS = ("src/", "tests/", "tools/", "docs/", "bench/", "include/")
URL = re.compile(r"https?://[^\s)>]+")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`]+)`")
PLACEHOLDER = re.compile(r"\b(NAME|TYPE|FORMAT)\b")


def pages():
    names = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
    found = [ROOT / name for name in names]
    for folder in ("docs", LOGS.rstrip("/")):
        found += sorted((ROOT / folder).rglob("*.md"))
    return found


def prose(text):
    """The lines outside of fenced code blocks, as (number, line)."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def anchors(page):
    """The anchors that GitHub makes of a page's headings."""
    found = set()
    for _, line in prose(page.read_text()):
        heading = re.match(r"#+\s+(.*)", line)
        if heading:
            words = re.sub(r"[^\w\- ]", "", heading.group(1).strip().lower())
            found.add(words.replace(" ", "-"))
    return found


def link_error(page, target):
    if re.match(r"[a-z]+:", target):
        return None
    path, _, anchor = target.partition("#")
    destination = (page.parent / path).resolve() if path else page
    if not destination.exists():
        return f"dead link '{target}'"
    if anchor and destination.suffix == ".md" and anchor not in anchors(destination):
        return f"no heading for '{target}'"
    return None


def path_error(code):
    path = code.split()[0].split(":")[0].rstrip(".,;")
    if not path.startswith(FOLDERS):
        return None
    pattern = PLACEHOLDER.sub("*", path).rstrip("/")
    found = any(ROOT.glob(pattern)) if "*" in pattern else (ROOT / pattern).exists()
    return None if found else f"'{path}' does not exist"


def check(page):
    name = str(page.relative_to(ROOT))
    text = page.read_text()
    log = name.startswith(LOGS)
    if not log and name not in GENERATED:
        for number, line in enumerate(text.splitlines(), 1):
            if len(URL.sub("", line)) > COLUMNS:
                yield f"{name}:{number}: {len(line)} columns (at most {COLUMNS})"
    for number, line in prose(text):
        errors = [link_error(page, target) for target in LINK.findall(line)]
        if not log:
            errors += [path_error(code) for code in CODE.findall(line) if code.strip()]
        for error in filter(None, errors):
            yield f"{name}:{number}: {error}"


def main():
    errors = [error for page in pages() for error in check(page)]
    print("\n".join(errors) or "docs: lines, links and paths are right")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
