"""A kernel that faults on a CUDA device: requests in flight get an error, and the server ends with a status of its own."""

import pathlib
import re
import shutil
import subprocess
import threading
import time

import httpx
import openai
import pytest

from serving import ENGINE_FAILED, Server, binary


def has_cuda() -> bool:
    facts = subprocess.run([str(binary()), "--version"], text=True, capture_output=True).stdout
    return re.search(r"\bcuda[,\n]", facts) is not None  # else "(not here)" follows


@pytest.mark.skipif(not has_cuda(), reason="needs a CUDA device and a build with CUDA")
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_faulting_kernel_ends_requests_and_the_server(tmp_path):
    library, trigger = tmp_path / "fault.so", tmp_path / "fault"
    source = pathlib.Path(__file__).with_name("device_fault.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl", "-lpthread"], check=True)
    with Server(env={"LD_PRELOAD": str(library), "SLUICE_TEST_FAULT": str(trigger)}) as server:
        errors: list[str] = []
        begun = threading.Barrier(5)

        def ask(number: int):
            stream = server.client().completions.create(
                model=server.name, prompt=f"Once {number}", max_tokens=1900, stream=True, extra_body={"ignore_eos": True}
            )
            next(stream)
            begun.wait(30)
            try:
                for _ in stream:
                    pass
                errors.append("")
            except (openai.APIError, httpx.TransportError) as error:
                errors.append(str(error))

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        begun.wait(30)
        trigger.touch()
        begin = time.monotonic()
        for thread in threads:
            thread.join(30)
        assert time.monotonic() - begin < 10
        assert len(errors) == 4
        assert all(errors), errors
        assert server.process.wait(timeout=10) == ENGINE_FAILED
        assert any("CUDA" in line for line in server.lines), server.lines  # clients need not know
