#!/usr/bin/env python3
"""Compares the verdicts of `sluice grammar --jsonl` with those of the Python package jsonschema on random schemas and
values:

    bench/json_schema_check.py build/release/bin/sluice --seconds 60

Prints every disagreement, and ends with status 1 if there is one. Refused schemas are counted."""
import argparse
import json
import random
import subprocess
import sys
import time

import jsonschema

NAMES = ["a", "b", "ab", "c1"]
TEXTS = ["", "a", "ab", "aab", "b", "1", "é", "2024-02-29", "x\"y", "abcabc"]
NUMBERS = [0, 1, -1, 2, 3, 10, 0.5, -2.5, 1.5, 100]
PATTERNS = ["^a", "b$", "^[ab]*$", "a.b?", "^.{2,3}$", "[0-9]", "^(a|b){1,2}$"]


class Maker:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def pick(self, values):
        return self.random.choice(values)

    def chance(self, share):
        return self.random.random() < share

    def value(self, depth=3):
        simple = ["null", "number", "string"]
        kind = self.pick(simple + ["bool", "array", "object"] if depth > 0 else simple)
        if kind == "array":
            return [self.value(depth - 1) for _ in range(self.random.randint(0, 4))]
        if kind == "object":
            return {name: self.value(depth - 1) for name in NAMES if self.chance(0.4)}
        return {"null": None, "bool": self.chance(0.5), "number": self.pick(NUMBERS), "string": self.pick(TEXTS)}[kind]

    def bounds(self, schema, least, most, highest):
        if self.chance(0.4):
            schema[least] = self.random.randint(0, highest)
        if self.chance(0.4):
            schema[most] = self.random.randint(0, highest)

    def number(self, schema):
        for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            if self.chance(0.3):
                schema[keyword] = self.pick(NUMBERS)
        if self.chance(0.2):
            schema["multipleOf"] = self.pick([0.5, 1, 2, 5])

    def string(self, schema):
        self.bounds(schema, "minLength", "maxLength", 4)
        if self.chance(0.4):
            schema["pattern"] = self.pick(PATTERNS)

    def array(self, schema, depth):
        self.bounds(schema, "minItems", "maxItems", 3)
        if self.chance(0.3):
            schema["prefixItems"] = [self.schema(depth - 1) for _ in range(self.random.randint(1, 2))]
        if self.chance(0.5):
            schema["items"] = self.schema(depth - 1)
        if self.chance(0.3):
            schema["contains"] = self.schema(depth - 1)
            self.bounds(schema, "minContains", "maxContains", 2)
            if self.chance(0.3):
                schema["allOf"] = [{"contains": self.schema(depth - 1)}]
        if self.chance(0.15):
            schema["uniqueItems"] = True
            if self.chance(0.7):  # else the set of items is hardly ever finite
                schema["items"] = self.pick([{"enum": [self.value(0) for _ in range(4)]}, {"type": "boolean"},
                                             {"type": "integer", "minimum": self.pick([-1, 0, 1]), "maximum": 3}])
                schema.pop("prefixItems", None)
                schema.pop("contains", None)

    def object(self, schema, depth):
        self.bounds(schema, "minProperties", "maxProperties", 3)
        if self.chance(0.6):
            schema["properties"] = {name: self.schema(depth - 1) for name in NAMES if self.chance(0.5)}
        if self.chance(0.3):
            schema["required"] = [name for name in NAMES if self.chance(0.3)]
        if self.chance(0.3):
            schema["additionalProperties"] = self.schema(depth - 1)
        if self.chance(0.2):
            schema["patternProperties"] = {self.pick(PATTERNS): self.schema(depth - 1)}
        if self.chance(0.1):
            schema["propertyNames"] = {"pattern": self.pick(PATTERNS)}
        if self.chance(0.1):
            schema["dependentRequired"] = {self.pick(NAMES): [self.pick(NAMES)]}
        if self.chance(0.1):
            schema["dependentSchemas"] = {self.pick(NAMES): self.schema(depth - 1)}
        if self.chance(0.1):
            schema["unevaluatedProperties"] = self.schema(0)

    def schema(self, depth=2):
        if depth <= 0 or self.chance(0.1):
            constant = {"const": self.value(1)}
            return self.pick([True, {}, {"type": "string"}, {"type": "integer"}, constant, {"type": "null"}])
        schema = {}
        if self.chance(0.5):
            kinds = ["null", "boolean", "integer", "number", "string", "array", "object"]
            schema["type"] = self.pick(kinds) if self.chance(0.7) else self.random.sample(kinds, 2)
        for part in self.random.sample([self.number, self.string, self.array, self.object], self.random.randint(0, 2)):
            part(schema, depth) if part in (self.array, self.object) else part(schema)
        if self.chance(0.1):
            schema["enum"] = [self.value(1) for _ in range(self.random.randint(1, 3))]
        for keyword in ("allOf", "anyOf", "oneOf"):
            if self.chance(0.12):
                schema[keyword] = [self.schema(depth - 1) for _ in range(self.random.randint(1, 3))]
        if self.chance(0.1):
            schema["not"] = self.schema(depth - 1)
        if self.chance(0.08):
            schema |= {"if": self.schema(depth - 1), "then": self.schema(depth - 1), "else": self.schema(depth - 1)}
        return schema


def make(seed):
    maker = Maker(seed)
    schema = maker.schema(3)
    values = [maker.value() for _ in range(30)]
    # Values that schemas of a document mention are more often right.
    values += [part[key] for part in nested(schema) if isinstance(part, dict) for key in ("const",) if key in part]
    return schema, values


def nested(value):
    yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
        yield from nested(part)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("sluice")
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--seed", type=int, default=1)
    a = arguments.parse_args()
    end, seed, refused, empty, compared, wrong = time.monotonic() + a.seconds, a.seed, {}, 0, 0, 0
    while time.monotonic() < end:
        batch = [make(s) for s in range(seed, seed + 500)]
        lines = [json.dumps({"json_schema": schema, "instances": [json.dumps(v, ensure_ascii=False) for v in values]})
                 for schema, values in batch]
        out = subprocess.run([a.sluice, "grammar", "--jsonl"], input="\n".join(lines) + "\n", capture_output=True,
                             text=True, check=True).stdout.splitlines()
        for i, ((schema, values), line) in enumerate(zip(batch, out, strict=True)):
            answer = json.loads(line)
            validator = jsonschema.Draft202012Validator(schema)
            expected = [validator.is_valid(value) for value in values]
            if "no text satisfies" in answer.get("error", ""):
                answer = {"accepted": [False] * len(values)}
                empty += 1
            if "error" in answer:
                what = answer["error"].split(": ", 1)
                key = what[0].rsplit(".", 1)[-1] + ": " + what[-1][:60]
                refused[key] = refused.get(key, 0) + 1
                continue
            for value, right, own in zip(values, expected, answer["accepted"], strict=True):
                compared += 1
                if own != right:
                    wrong += 1
                    print(json.dumps({"seed": seed + i, "schema": schema, "value": value, "jsonschema": right}))
        seed += 500
    reasons = dict(sorted(refused.items(), key=lambda r: -r[1])[:12])
    print(json.dumps({"schemas": seed - a.seed, "refused": sum(refused.values()), "without_texts": empty,
                      "verdicts": compared, "wrong": wrong, "reasons": reasons}))
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
