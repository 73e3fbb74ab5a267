"""Continues a batch of prompts.  python examples/python/basic.py [MODEL]"""

import sys

from sluice import LLM, SamplingParams

PROMPTS = ["Hello, my name is", "Once upon a time", "The capital of France is", "Count to five:"]


def main(model="models/minnow-6m"):
    params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=24, seed=1)
    with LLM(model) as llm:
        for output in llm.generate(PROMPTS, params):
            print(f"{output.prompt!r} -> {output.outputs[0].text!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
