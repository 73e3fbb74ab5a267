#!/usr/bin/env python3
"""Writes tests/goldens/jinja_cases.jsonl: the output of jinja2, configured as in Hugging Face transformers.

The first line holds the variables. Each other line is a case: {"template": ...} plus "text" (what jinja2 renders) or
"error": true. A case with "refused" says why Sluice ends in an error where jinja2 does not; it is left alone. To add a
case, append {"template": ...} and run this with jinja2 3.1 installed.
"""
import copy
import datetime
import json
import pathlib

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

CASES = pathlib.Path(__file__).parent.parent / "goldens" / "jinja_cases.jsonl"
NOW = datetime.datetime(2026, 1, 15, 12, 34, 56)


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def main():
    rows = [json.loads(line) for line in CASES.read_text(encoding="utf-8").split("\n") if line]
    variables = rows[0]["variables"]
    for row in rows[1:]:
        if "refused" in row:
            continue
        template = row["template"]
        row.clear()
        row["template"] = template
        try:
            row["text"] = environment().from_string(template).render(**copy.deepcopy(variables))
        except Exception:
            row["error"] = True
    CASES.write_text("".join(json.dumps(row, ensure_ascii=True) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
