"""Ctrl-C, fork, threads, exceptions, and interpreters that end while answers are generated."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from sluice import LLM, SamplingParams

from conftest import MODEL

LONG = SamplingParams(max_tokens=1500, ignore_eos=True)
# What runs in the background of a shell ignores SIGINT, and so do its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
HEAD = f"""
import asyncio, multiprocessing, os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from sluice import LLM, AsyncLLM, SamplingParams
LONG = SamplingParams(max_tokens=1500, ignore_eos=True)
MODEL = {str(MODEL)!r}
"""


def run(script, timeout_s=60):
    """Runs a script in an interpreter of its own. It must not need long, nor leave a word of a crash."""
    command = [sys.executable, "-c", HEAD + textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    assert "terminate called" not in done.stderr and "Segmentation" not in done.stderr, done.stderr
    return done


def test_ctrl_c(llm, idle):
    timer = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["Once upon a time"] * 200, LONG)
    assert time.monotonic() - begin < 10
    idle()
    assert llm.generate("Once", SamplingParams(max_tokens=2))[0].finished


def test_an_exception_of_the_callback_ends_the_batch(llm, idle):
    class Bar:
        def __init__(self, **_):
            pass

        def update(self, _):
            raise KeyError("of the bar")

        def close(self):
            pass

    with pytest.raises(KeyError):
        llm.generate(["a"] * 50, [SamplingParams(max_tokens=1), *[LONG] * 49], use_tqdm=Bar)
    idle()


def test_threads_share_a_model(llm):
    params = SamplingParams(temperature=0, max_tokens=12)
    expected = llm.generate("Once upon a time", params)[0].outputs[0].text
    texts = []

    def work():
        for _ in range(5):
            texts.extend(o.outputs[0].text for o in llm.generate(["Once upon a time"] * 3, params))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [expected] * 90


def test_other_threads_run_meanwhile(llm):
    """The interpreter's lock is free while a thread waits for answers."""
    ticks = []
    done = threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.005)

    ticker = threading.Thread(target=tick)
    ticker.start()
    begin = time.monotonic()
    llm.generate("Once upon a time", SamplingParams(max_tokens=600, ignore_eos=True))
    span = time.monotonic() - begin
    done.set()
    ticker.join()
    assert len(ticks) > span / 0.005 / 10


def test_closed():
    llm = LLM(str(MODEL))
    llm.close()
    llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate("a", LONG)
    with pytest.raises(RuntimeError, match="closed"):
        llm.get_tokenizer().encode("a")


def test_closing_ends_what_runs():
    llm = LLM(str(MODEL), backend="reference", threads=1)
    threading.Timer(0.3, llm.close).start()
    outputs = llm.generate(["Once"] * 64, LONG)  # takes minutes
    assert {output.outputs[0].finish_reason for output in outputs} == {"abort"}


def test_use_after_fork_is_an_error(llm):
    done = run(
        """
        llm = LLM(MODEL)
        child = os.fork()
        if child == 0:
            try:
                llm.generate("a", LONG)
            except RuntimeError as error:
                print(error, flush=True)
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print(llm.generate("a", SamplingParams(max_tokens=2))[0].finished)
        """
    )
    assert done.returncode == 0, done.stderr
    assert "forked process" in done.stdout and done.stdout.endswith("True\n")


def test_a_pool_of_forked_processes_gets_the_error():
    done = run(
        """
        llm = LLM(MODEL)
        def work(i):
            return llm.generate("a", LONG)
        with multiprocessing.get_context("fork").Pool(1) as pool:
            try:
                pool.map(work, range(2))
            except RuntimeError as error:
                print(error)
        """
    )
    assert done.returncode == 0 and "spawn" in done.stdout, done.stderr


@pytest.mark.parametrize(
    "ending",
    [
        "",  # the end of the script
        "sys.exit(3)",
        "raise KeyError",
        "os.kill(os.getpid(), signal.SIGINT); time.sleep(5)",
    ],
)
def test_exit_while_a_thread_generates(ending):
    done = run(
        f"""
        llm = LLM(MODEL)
        threads = [threading.Thread(target=llm.generate, args=(["Once"] * 4, LONG), daemon=True) for _ in range(4)]
        for thread in threads: thread.start()
        time.sleep(0.3)
        {ending}
        """
    )
    expected = {"": 0, "sys.exit(3)": 3, "raise KeyError": 1}.get(ending, -signal.SIGINT)
    assert done.returncode in (expected, 1 if expected < 0 else expected), done.stderr


def test_exit_while_asyncio_generates():
    done = run(
        """
        engine = AsyncLLM(MODEL)
        async def one(i):
            async for output in engine.generate("Once", LONG, str(i)):
                pass
        async def main():
            tasks = [asyncio.create_task(one(i)) for i in range(50)]
            await asyncio.sleep(0.3)
        asyncio.run(main())
        print("end")
        """
    )
    assert done.returncode == 0 and done.stdout == "end\n", done.stderr


def test_a_model_may_be_forgotten_while_it_generates():
    """What the engine's threads let go of last must not need the interpreter's lock, which waits for these threads."""
    done = run(
        """
        import gc; gc.disable()
        def stop(*_): raise KeyError
        for _ in range(5):
            llm = LLM(MODEL)
            signal.signal(signal.SIGALRM, stop)
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            try:
                llm.generate(["Once"] * 8, LONG)
            except KeyError as error:
                error.__traceback__ = None
            del llm
        print("end")
        """
    )
    assert done.returncode == 0 and done.stdout == "end\n", done.stderr


def test_a_model_that_is_forgotten_is_freed():
    done = run(
        """
        import gc; gc.disable()
        threads = []
        for _ in range(4):
            LLM(MODEL).generate("a", SamplingParams(max_tokens=1))
            threads.append(len(os.listdir("/proc/self/task")))
        print(len(set(threads)) == 1, threads)
        """
    )
    assert done.returncode == 0 and done.stdout.startswith("True"), (done.stdout, done.stderr)
