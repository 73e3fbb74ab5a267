"""Finds the likeliest answers instead of sampling one.  python examples/python/beam_search.py [MODEL]"""

import sys

from sluice import LLM, BeamSearchParams

PROMPTS = ["Once upon a time", "The sea was"]


def main(model="models/minnow-6m"):
    params = BeamSearchParams(beam_width=3, max_tokens=12)
    with LLM(model) as llm:
        for output in llm.beam_search(PROMPTS, params):
            for sequence in output.sequences:
                print(f"{sequence.cum_logprob:8.3f}  {sequence.text!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
