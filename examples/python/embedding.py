"""Computes a vector for each text.  python examples/python/embedding.py [MODEL]"""

import sys

from sluice import LLM

TEXTS = ["Hello, my name is", "The capital of France is", "A cat sleeps on the sofa"]


def main(model="models/minnow-6m"):
    with LLM(model, task="embed") as llm:
        for text, output in zip(TEXTS, llm.embed(TEXTS), strict=True):
            vector = output.outputs.embedding
            start = ", ".join(f"{x:.3f}" for x in vector[:4])
            print(f"{text!r}: [{start}, ...] ({len(vector)} numbers)")


if __name__ == "__main__":
    main(*sys.argv[1:])
