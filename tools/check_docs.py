#!/usr/bin/env python3
"""Checks the documentation: line length, relative links with their anchors, and repository paths in backticks."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS = 120
LOGS = "bench/results/"  # dated measurements: they may name paths of their day
FOLDERS = ("src/", "tests/", "tools/", "docs/", "bench/", "include/")
URL = re.compile(r"https?://[^\s)>]+")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")  # its text may go over two lines
CODE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
PLACEHOLDER = re.compile(r"\b(NAME|TYPE|FORMAT)\b")


def pages():
    names = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "deploy/README.md")
    found = [ROOT / name for name in names]
    for folder in ("docs", LOGS.rstrip("/")):
        found += sorted((ROOT / folder).rglob("*.md"))
    return found


def prose(text):
    """The text with the lines of fenced code blocks emptied."""
    fenced, lines = False, []
    for line in text.splitlines():
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        lines.append("" if fence or fenced else line)
    return "\n".join(lines)


def anchors(page):
    """The anchors that GitHub makes of a page's headings."""
    found = set()
    for heading in re.findall(r"^#+\s+(.*)$", prose(page.read_text()), re.M):
        found.add(re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-"))
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
    path = (code.split() or [""])[0].split(":")[0].rstrip(".,;")
    if not path.startswith(FOLDERS):
        return None
    pattern = PLACEHOLDER.sub("*", path).rstrip("/")
    found = any(ROOT.glob(pattern)) if "*" in pattern else (ROOT / pattern).exists()
    return None if found else f"'{path}' does not exist"


def check(page):
    name = str(page.relative_to(ROOT))
    text = page.read_text()
    log = name.startswith(LOGS)
    for number, line in enumerate(text.splitlines(), 1):
        if len(URL.sub("", line)) > COLUMNS:
            yield f"{name}:{number}: {len(line)} columns (at most {COLUMNS})"
    text = prose(text)
    found = [(link, link_error(page, link[1])) for link in LINK.finditer(text)]
    if not log:
        found += [(code, path_error(code[1])) for code in CODE.finditer(text)]
    for where, error in found:
        if error:
            yield f"{name}:{text.count(chr(10), 0, where.start()) + 1}: {error}"


def main():
    errors = [error for page in pages() for error in check(page)]
    print("\n".join(errors) or "docs: lines, links and paths are right")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
