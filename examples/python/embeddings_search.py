"""Searches texts by the nearness of their vectors.  python examples/python/embeddings_search.py [MODEL]"""

import sys

import numpy
from sluice import LLM

TEXTS = [
    "The cat sleeps on the warm sofa.",
    "Rain is expected in the north on Monday.",
    "To boil an egg, put it into hot water.",
    "The museum opens at nine in the morning.",
    "A dog barks at the postman.",
]
QUERIES = ["The cat sleeps on the sofa.", "When does the museum open?"]


def main(model="models/minnow-6m"):
    with LLM(model, task="embed") as llm:
        # Rows of one matrix; the vectors have length 1, so that products are cosines.
        matrix = numpy.stack([output.outputs.data for output in llm.embed(TEXTS)])
        for query, output in zip(QUERIES, llm.embed(QUERIES), strict=True):
            scores = matrix @ output.outputs.data
            print(f"{query}")
            for i in numpy.argsort(-scores)[:2]:
                print(f"  {scores[i]:.3f}  {TEXTS[i]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
