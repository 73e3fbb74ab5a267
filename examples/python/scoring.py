"""Scores how well texts fit a query. A reranker reads each pair; a model for embeddings compares their vectors.

python examples/python/scoring.py [MODEL]
"""

import sys

from sluice import LLM

QUERY = "What is the capital of France?"
TEXTS = ["The capital of Brazil is Brasilia.", "The capital of France is Paris.", "Cats sleep a lot."]


def main(model="models/minnow-6m", task="embed"):
    with LLM(model, task=task) as llm:
        for text, output in zip(TEXTS, llm.score(QUERY, TEXTS), strict=True):
            print(f"{output.outputs.score:.3f}  {text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
