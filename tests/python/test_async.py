"""AsyncLLM: streams, cancellation, and many of them at once."""

import asyncio

import numpy
import pytest
from sluice import AsyncEngineArgs, AsyncLLM, AsyncLLMEngine, PoolingParams, SamplingParams
from sluice.engine.async_llm_engine import AsyncLLMEngine as OlderName
from sluice.sampling_params import RequestOutputKind, StructuredOutputsParams

from conftest import MODEL

LONG = SamplingParams(max_tokens=1500, ignore_eos=True)


@pytest.fixture(scope="module")
def engine():
    made = AsyncLLM.from_engine_args(AsyncEngineArgs(str(MODEL), dtype="float32", max_num_seqs=256))
    yield made
    made.shutdown()


async def collect(engine, prompt, params, request_id):
    return [output async for output in engine.generate(prompt, params, request_id)]


def test_kinds_of_output(engine, llm):
    # Parts that come while the loop is busy are put together, so the answer is long.
    def params(kind):
        return SamplingParams(temperature=0, max_tokens=400, ignore_eos=True, logprobs=0, output_kind=kind)

    async def run():
        kinds = RequestOutputKind.CUMULATIVE, RequestOutputKind.DELTA, RequestOutputKind.FINAL_ONLY
        return [await collect(engine, "Once upon a time", params(kind), kind.name) for kind in kinds]

    cumulative, delta, final = asyncio.run(run())
    (expected,) = llm.generate("Once upon a time", params(None))
    choice = expected.outputs[0]
    assert len(final) == 1 and final[0].finished and final[0].outputs[0].text == choice.text
    texts = [o.outputs[0].text for o in cumulative]
    assert len(texts) > 1 and all(b.startswith(a) for a, b in zip(texts, texts[1:], strict=False))
    assert texts[-1] == choice.text and [o.finished for o in cumulative] == [False] * (len(texts) - 1) + [True]
    assert len(cumulative[0].outputs[0].token_ids) < 400 == len(cumulative[-1].outputs[0].token_ids)
    assert "".join(o.outputs[0].text for o in delta) == choice.text
    assert [t for o in delta for t in o.outputs[0].token_ids] == choice.token_ids
    assert sum(len(o.outputs[0].logprobs) for o in delta) == 400
    assert delta[-1].outputs[0].finish_reason == "length"


def test_abort(engine, idle):
    async def run():
        outputs = []
        async for output in engine.generate("Once", LONG, "long"):
            outputs.append(output)
            await engine.abort("long")
        return outputs

    outputs = asyncio.run(run())
    assert outputs[-1].finished and outputs[-1].outputs[0].finish_reason == "abort"
    idle(engine)


def test_leaving_early_ends_the_request(engine, idle):
    async def leave():
        async for _ in engine.generate("Once", LONG, "left"):
            break

    async def fail():
        async for _ in engine.generate("Once", LONG, "failed"):
            raise KeyError("of the consumer")

    async def cancel():
        task = asyncio.create_task(collect(engine, "Once", LONG, "cancelled"))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    idle(engine)
    with pytest.raises(KeyError):
        asyncio.run(fail())
    idle(engine)
    asyncio.run(cancel())
    idle(engine)


def test_errors(engine, idle):
    with pytest.raises(ValueError, match=r"'prompt\[0\]'"):
        asyncio.run(collect(engine, [10**6], LONG, "wrong"))
    grammar = SamplingParams(structured_outputs=StructuredOutputsParams(regex="("))
    with pytest.raises(ValueError, match="regex"):
        asyncio.run(collect(engine, "a", grammar, "wrong"))

    async def twice():
        async for _ in engine.generate("Once", LONG, "same"):
            await collect(engine, "Once", LONG, "same")

    with pytest.raises(ValueError, match="'same'"):
        asyncio.run(twice())
    idle(engine)
    asyncio.run(engine.check_health())


def test_a_thousand_streams(engine):
    params = SamplingParams(temperature=0, max_tokens=8)

    async def run():
        streams = [collect(engine, f"Number {i % 50}", params, f"stream-{i}") for i in range(1000)]
        return await asyncio.gather(*streams)

    answers = asyncio.run(run())
    assert len(answers) == 1000
    texts = {}
    for i, outputs in enumerate(answers):
        assert outputs[-1].finished and len(outputs[-1].outputs[0].token_ids) <= 8
        assert texts.setdefault(i % 50, outputs[-1].outputs[0].text) == outputs[-1].outputs[0].text


def test_storm_of_cancellations(engine, idle):
    """Streams that are left at random times, aborted and cancelled, among others that must not notice."""
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)

    async def leave(i):
        async for output in engine.generate(f"Left {i}", LONG, f"left-{i}"):
            if len(output.outputs[0].token_ids) > i % 7:
                break

    async def abort(i):
        task = asyncio.create_task(collect(engine, f"Aborted {i}", LONG, f"aborted-{i}"))
        await asyncio.sleep(0.002 * i)
        await engine.abort([f"aborted-{i}", "unknown"])
        await task

    async def cancel(i):
        task = asyncio.create_task(collect(engine, f"Cancelled {i}", LONG, f"cancelled-{i}"))
        await asyncio.sleep(0.003 * i)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def run():
        others = [collect(engine, "Once upon a time", params, f"other-{i}") for i in range(20)]
        storm = [storm(i) for i in range(40) for storm in (leave, abort, cancel)]
        return (await asyncio.gather(*others, *storm))[:20]

    answers = asyncio.run(run())
    assert {outputs[-1].outputs[0].text for outputs in answers} == {answers[0][-1].outputs[0].text}
    assert all(len(outputs[-1].outputs[0].token_ids) == 30 for outputs in answers)
    idle(engine)


def test_vectors():
    assert AsyncLLMEngine is OlderName is AsyncLLM
    engine = AsyncLLM(str(MODEL), task="embed")

    async def run():
        async def one(i):
            return [o async for o in engine.encode(f"text {i}", PoolingParams(), f"text-{i}")]

        return await asyncio.gather(*map(one, range(20)))

    for (output,) in asyncio.run(run()):
        assert output.outputs.data.shape == (256,) and output.outputs.data.dtype == numpy.float32
    engine.shutdown()
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(engine.check_health())
