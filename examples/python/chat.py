"""Answers conversations, several in one batch.  python examples/python/chat.py [MODEL]"""

import sys

from sluice import LLM, SamplingParams

QUESTIONS = ["What is 17 + 25?", "Say hello.", "Subtract 46 from 95."]


def main(model="models/minnow-6m"):
    params = SamplingParams(temperature=0, max_tokens=48)
    with LLM(model) as llm:
        conversation = [
            {"role": "system", "content": "You answer in one sentence."},
            {"role": "user", "content": QUESTIONS[0]},
        ]
        (first,) = llm.chat(conversation, params, use_tqdm=False)
        print(f"{QUESTIONS[0]} -> {first.outputs[0].text}")
        batch = [[{"role": "user", "content": question}] for question in QUESTIONS[1:]]
        for question, output in zip(QUESTIONS[1:], llm.chat(batch, params), strict=True):
            print(f"{question} -> {output.outputs[0].text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
