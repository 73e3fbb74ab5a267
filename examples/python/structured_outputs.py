"""Answers of a given form: a choice, a regular expression, a JSON schema, a grammar.

python examples/python/structured_outputs.py [MODEL]
"""

import json
import sys

from sluice import LLM, SamplingParams
from sluice.sampling_params import StructuredOutputsParams

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "legs": {"type": "integer", "maximum": 8}},
    "required": ["name", "legs"],
}
ORDER = """
root ::= "please bring " amount " " thing
amount ::= [1-9]
thing ::= "cakes" | "apples"
"""
FORMS = {
    "Is the sea blue? Answer yes or no.": {"choice": ["yes", "no"]},
    "Give me a date.": {"regex": r"(19|20)\d\d-(0[1-9]|1[0-2])-[0-2][1-8]"},
    "Describe an animal as JSON.": {"json": SCHEMA, "disable_any_whitespace": True},
    "What shall I bring?": {"grammar": ORDER},
}


def main(model="models/minnow-6m"):
    params = [
        SamplingParams(temperature=0, max_tokens=64, structured_outputs=StructuredOutputsParams(**form))
        for form in FORMS.values()
    ]
    with LLM(model) as llm:
        conversations = [[{"role": "user", "content": question}] for question in FORMS]
        for question, form, output in zip(FORMS, FORMS.values(), llm.chat(conversations, params), strict=True):
            text = output.outputs[0].text
            print(f"{next(iter(form))}: {question} -> {json.loads(text) if 'json' in form else text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
