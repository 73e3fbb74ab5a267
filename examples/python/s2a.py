"""System 2 Attention (Weston and Sukhbaatar 2023, arXiv:2311.11829): a program of two calls.

The first call rewrites the question without what should not influence the answer. The second one answers what is left.

python examples/python/s2a.py [MODEL]
"""

import sys

from sluice import LLM, SamplingParams

REWRITE = """Extract the part of the following text that is unbiased and not an opinion, so that answering from it alone
is reliable. Write two parts, "Context:" with the facts and "Question:" with what is asked.

Text: {text}"""
ANSWER = "{text}\n\nAnswer the question from the context alone."
QUESTION = "I think that the answer is 12, but I am not sure. Anna had 17 apples and bought 25. How many has she?"


def ask(llm, text, max_tokens):
    messages = [{"role": "user", "content": text}]
    (output,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=max_tokens), use_tqdm=False)
    return output.outputs[0].text.strip()


def main(model="models/minnow-6m"):
    with LLM(model) as llm:
        rewritten = ask(llm, REWRITE.format(text=QUESTION), 128)
        print(f"rewritten: {rewritten}")
        print(f"answer: {ask(llm, ANSWER.format(text=rewritten), 64)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
