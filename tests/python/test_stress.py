"""Cancellation, exceptions and signals at random moments, many at once. A failure prints its seed."""

import asyncio
import gc
import os
import pathlib
import random
import signal
import threading
import time

import pytest
from sluice import AsyncLLM, SamplingParams
from sluice._session import Session
from sluice.sampling_params import RequestOutputKind, StructuredOutputsParams

from conftest import MODEL

LONG = SamplingParams(max_tokens=1500, ignore_eos=True)
SHORT = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
SEED = int(os.environ.get("SLUICE_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 2**31)


# Takes many seconds, so that only its cancellation makes the engine idle soon.
CROWD = SamplingParams(n=128, max_tokens=1500, ignore_eos=True)
SOON_S = 6


class Interrupted(Exception):
    """Of a signal handler, or of a program's own code."""


pause_s = 0.3  # the longest one before a request is ended early


@pytest.fixture(scope="module")
def engine(llm):
    global pause_s
    began = time.monotonic()
    llm.generate("Once", LONG)
    pause_s = min(pause_s, (time.monotonic() - began) / 4)  # so that no answer ends before, on whatever machine
    made = AsyncLLM(str(MODEL), dtype="float32", max_num_seqs=128)
    yield made
    made.shutdown()


@pytest.fixture
def rng():
    print(f"SLUICE_TEST_SEED={SEED}")
    return random.Random(SEED)


def until(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def params_of(rng):
    """Parameters for a request that is to be ended early: what the engine holds for it varies."""
    kind = rng.choice(list(RequestOutputKind))
    more = rng.choice(
        [
            {},
            {"n": 3},
            {"logprobs": 2},
            {"seed": 1, "stop": ["zzzz"]},
            {"structured_outputs": StructuredOutputsParams(regex="[a-z ]{1400,1500}")},
        ]
    )
    return SamplingParams(**{"max_tokens": 1500, "ignore_eos": True, "output_kind": kind, **more})


async def cancelled(engine, rng, name):
    """A task that is cancelled, maybe before it ran at all."""

    async def read():
        async for _ in engine.generate(f"Once {name}", params_of(rng), name):
            pass

    task = asyncio.create_task(read())
    await asyncio.sleep(rng.choice([0, 0, rng.uniform(0, pause_s)]))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def aborted(engine, rng, name):
    """A request that is ended by its name; its stream ends, too."""

    async def end():
        await asyncio.sleep(rng.uniform(0, pause_s))
        for _ in range(1000):  # until the engine has it
            await engine.abort([name, "unknown"])
            if task.done():
                return
            await asyncio.sleep(0.005)

    async def read():
        return [o async for o in engine.generate(f"Once {name}", params_of(rng), name)]

    task = asyncio.create_task(read())
    await end()
    reasons = {c.index: c.finish_reason for o in await task for c in o.outputs if c.finish_reason}
    assert set(reasons.values()) <= {"abort", "stop"} and len(reasons) == len((await task)[-1].outputs)


async def left(engine, rng, name):
    """A consumer that has enough, or raises, after some outputs."""
    enough, raises = rng.randrange(6), rng.random() < 0.5
    params = SamplingParams(max_tokens=1500, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
    stream = engine.generate(f"Once {name}", params, name)
    try:
        async for _ in stream:
            enough -= 1
            if enough < 0:
                if raises:
                    raise Interrupted
                break
    except Interrupted:
        pass
    if rng.random() < 0.5:
        await stream.aclose()  # otherwise the collector of garbage does


async def timed_out(engine, rng, name):
    stream = engine.generate(f"Once {name}", LONG, name)
    with pytest.raises(asyncio.TimeoutError):
        async with asyncio.timeout(rng.uniform(0, pause_s)) if hasattr(asyncio, "timeout") else _timeout(rng):
            async for _ in stream:
                pass


class _timeout:
    """asyncio.timeout() of Python 3.11."""

    def __init__(self, rng):
        self.after = rng.uniform(0, pause_s)

    async def __aenter__(self):
        self.task = asyncio.current_task()
        self.timer = asyncio.get_running_loop().call_later(self.after, self.task.cancel)

    async def __aexit__(self, kind, *_):
        self.timer.cancel()
        if kind is asyncio.CancelledError:
            raise asyncio.TimeoutError


async def refused(engine, rng, name):
    """A request that is wrong, among those that run."""
    with pytest.raises(ValueError):
        async for _ in engine.generate([10**6], LONG, name):
            pass


async def witness(engine, expected, name):
    """A request that must not notice any of it."""
    outputs = [o async for o in engine.generate("Once upon a time", SHORT, name)]
    assert outputs[-1].outputs[0].token_ids == expected


def test_hundreds_of_cancellations_in_several_loops(engine, llm, idle, rng):
    expected = llm.generate("Once upon a time", SHORT)[0].outputs[0].token_ids
    ways = [cancelled, cancelled, aborted, left, left, timed_out, refused]
    failures = []

    async def storm(loop, seed):
        own = random.Random(seed)
        for wave in range(3):
            names = [f"{loop}-{wave}-{i}" for i in range(45)]
            tasks = [own.choice(ways)(engine, random.Random(own.random()), name) for name in names]
            tasks += [witness(engine, expected, f"{loop}-{wave}-witness-{i}") for i in range(3)]
            own.shuffle(tasks)
            await asyncio.gather(*tasks)

    def run(loop, seed):
        try:
            asyncio.run(storm(loop, seed))
        except BaseException as error:
            failures.append(error)

    before = descriptors()
    threads = [threading.Thread(target=run, args=(i, rng.random())) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    idle(engine)
    until(lambda: gc.collect() >= 0 and len(engine._running) == len(engine._inboxes) == 0 and descriptors() <= before)


def test_what_a_loop_leaves_behind_is_ended(engine, idle):
    """A loop that is closed while a stream is open, as after loop.stop() without a cleanup."""

    async def begin():
        stream = engine.generate("Once", CROWD, "left-behind")
        await stream.__anext__()
        return stream

    for _ in range(2):  # the name is free again, too
        loop = asyncio.new_event_loop()
        stream = loop.run_until_complete(begin())
        loop.close()
        until(lambda: engine._session.core.unfinished() > 0)
        del stream, loop
        gc.collect()
        idle(engine, SOON_S)


@pytest.mark.parametrize("where", ["LLM", "AsyncLLM"])
def test_a_signal_right_after_the_engine_took_a_request(llm, engine, idle, monkeypatch, where):
    """The exception comes before Python has noted which request it was."""
    submit = Session.submit

    def interrupted(session, *arguments, **options):
        submit(session, *arguments, **options)
        until(lambda: session.core.unfinished() > 0)
        raise Interrupted

    monkeypatch.setattr(Session, "submit", interrupted)

    async def stream():
        async for _ in engine.generate("Once", CROWD, "crowd"):
            pass

    with pytest.raises(Interrupted):
        llm.generate("Once", CROWD) if where == "LLM" else asyncio.run(stream())
    idle(llm if where == "LLM" else engine, SOON_S)


def test_signals_at_random_moments(llm, idle, rng):
    """Handlers that raise while prompts are sent and answers are taken, beside threads that generate."""
    expected = llm.generate("Once upon a time", SHORT)[0].outputs[0].token_ids
    done = threading.Event()
    wrong = []

    def work():
        while not done.is_set():
            found = llm.generate("Once upon a time", SHORT)[0].outputs[0].token_ids
            if found != expected:
                wrong.append(found)

    def handler(*_):
        raise Interrupted

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    old = signal.signal(signal.SIGALRM, handler)
    raised = 0
    try:
        for _ in range(60):
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0005, 0.06))
                llm.generate(["Once upon a time"] * 30, LONG)
            except Interrupted:
                raised += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, old)
        done.set()
        for thread in threads:
            thread.join()
    assert raised >= 55 and wrong == []
    idle()


def test_bars_that_raise_in_several_threads(llm, idle, rng):
    """Exceptions in callbacks of some threads end their batches and no other."""

    def bar(after):
        class Bar:
            left = after

            def __init__(self, **_):
                pass

            def update(self, _):
                self.left -= 1
                if self.left < 0:
                    raise Interrupted

            def close(self):
                if rng.random() < 0.3:
                    raise KeyError("of the close")

        return Bar

    results = []

    def work(seed):
        own = random.Random(seed)
        for _ in range(4):
            params = [SHORT] * 3 + [SHORT if own.random() < 0.7 else LONG for _ in range(9)]
            try:
                llm.generate(["Once upon a time"] * 12, params, use_tqdm=bar(own.randrange(3)))
                results.append(None)
            except (Interrupted, KeyError) as error:
                results.append(type(error))

    threads = [threading.Thread(target=work, args=(rng.random(),)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 24 and None not in results and Interrupted in results
    idle()


def test_forks_while_threads_generate(llm, rng):
    """Children get the error at once, whatever the parent's threads hold; the parent goes on."""
    done = threading.Event()
    answers = []

    def work():
        while not done.is_set():
            answers.append(llm.generate(["Once upon a time"] * 4, SHORT)[-1].outputs[0].text)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(25):
            time.sleep(rng.uniform(0, 0.02))
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    llm.generate("Once", SHORT)
                except RuntimeError as error:
                    status = 0 if "forked process" in str(error) else 2
                finally:
                    os._exit(status)
            _expect_exit(child)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert len(set(answers)) == 1


def test_a_child_drops_the_streams_of_its_parent(engine, idle):
    """A generator that a child frees must not wait for what a thread of the parent held."""

    async def run():
        streams = [engine.generate("Once", LONG, f"parent-{i}") for i in range(8)]
        for stream in streams:
            await stream.__anext__()
        for _ in range(10):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    for stream in streams:
                        try:
                            stream.athrow(Interrupted).send(None)
                        except Interrupted:
                            status = 0
                finally:
                    os._exit(status)
            _expect_exit(child)
        for stream in streams:
            assert (await stream.__anext__()).outputs[0].text
            await stream.aclose()

    asyncio.run(run())
    idle(engine)


def _expect_exit(child, timeout_s=10):
    end = time.monotonic() + timeout_s
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid == child:
            assert status == 0, f"the child ended with status {status}"
            return
        if time.monotonic() > end:
            state = pathlib.Path(f"/proc/{child}/wchan").read_text()
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError(f"the child hangs in {state}")
        time.sleep(0.002)
