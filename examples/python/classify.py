"""Tells the class of each text. Needs a model with classes, e.g. jason9693/Qwen2.5-1.5B-apeach.

python examples/python/classify.py MODEL
"""

import sys

from sluice import LLM

TEXTS = ["What a lovely day!", "The train was late again.", "The museum opens at nine."]


def main(model):
    with LLM(model, runner="pooling") as llm:
        for text, output in zip(TEXTS, llm.classify(TEXTS), strict=True):
            probabilities = output.outputs.probs
            best = max(range(len(probabilities)), key=probabilities.__getitem__)
            print(f"class {best} of {len(probabilities)} ({probabilities[best]:.3f}): {text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
