"""Requests with and without an adapter in one batch, sent one by one.  python examples/python/lora.py [MODEL ADAPTER]"""

import sys

from sluice import EngineArgs, LLMEngine, SamplingParams
from sluice.lora.request import LoRARequest

QUESTION = [{"role": "user", "content": "Hello!"}]


def main(model="models/minnow-6m", adapter="models/minnow-6m-lora-pirate"):
    engine = LLMEngine.from_engine_args(EngineArgs(model=model, enable_lora=True))
    pirate = LoRARequest("pirate", 1, adapter)
    prompt = engine.get_tokenizer().apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True)
    for name, lora in {"plain": None, "pirate": pirate, "plain again": None}.items():
        engine.add_request(name, prompt, SamplingParams(temperature=0, max_tokens=32), lora_request=lora)
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                print(f"{output.request_id}: {output.outputs[0].text!r}")
    engine.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
