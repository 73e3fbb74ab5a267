"""Streams several answers at once.  python examples/python/streaming.py [MODEL]"""

import asyncio
import sys

from sluice import AsyncLLM, SamplingParams
from sluice.sampling_params import RequestOutputKind

PROMPTS = ["Once upon a time", "The sea was", "Two friends"]


async def tell(engine, name, prompt):
    params = SamplingParams(temperature=0, max_tokens=20, output_kind=RequestOutputKind.DELTA)
    text = prompt
    async for output in engine.generate(prompt, params, name):
        text += output.outputs[0].text
        print(f"{name}: +{output.outputs[0].text!r}", flush=True)
    return text


async def run(model):
    engine = AsyncLLM(model)
    try:
        for text in await asyncio.gather(*(tell(engine, f"story {i}", p) for i, p in enumerate(PROMPTS))):
            print(text)
    finally:
        engine.shutdown()


def main(model="models/minnow-6m"):
    asyncio.run(run(model))


if __name__ == "__main__":
    main(*sys.argv[1:])
