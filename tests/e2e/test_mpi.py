"""Ranks that mpirun starts (--distributed-executor-backend mpi): exact answers, orderly ends, errors and lost ranks."""

import concurrent.futures
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import uuid

import openai
import pytest

from launching import ENVIRONMENT, launched_ranks, missing, mpirun
from serving import MODEL, Server, binary

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "never")

MPI = ["--distributed-executor-backend", "mpi"]


def run(ranks: int, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess:
    command = [*mpirun(ranks), str(binary()), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env={**os.environ, **ENVIRONMENT})


class LaunchedServer(Server):
    def __init__(self, ranks: int, *arguments: str):
        self.mark = uuid.uuid4().hex
        super().__init__(
            *arguments, *MPI, launcher=mpirun(ranks), env={**ENVIRONMENT, "SLUICE_TEST_MARK": self.mark}
        )

    def ranks(self) -> dict[int, int]:
        return launched_ranks(binary(), self.mark)

    def wait_until_gone(self, seconds: float = 10):
        end = time.monotonic() + seconds
        while self.ranks():
            assert time.monotonic() < end, f"ranks {self.ranks()} still run"
            time.sleep(0.05)

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()  # so that mpirun ends its processes
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                pass
        self.kill()


@pytest.mark.parametrize("ways", [["-tp", "2"], ["-pp", "2"], ["-tp", "2", "-pp", "2"]])
def test_greedy_answers_are_exact(goldens, ways):
    ranks = 2 ** (len(ways) // 2)

    def ask(row):
        answer = server.client().chat.completions.create(
            model=server.name, messages=row["messages"], temperature=0, max_tokens=len(row["greedy_ids"])
        )
        return answer.choices[0].message.content

    with LaunchedServer(ranks, "--dtype", "float32", "--threads", "2", *ways) as server:
        assert sorted(server.ranks()) == list(range(ranks))
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert list(pool.map(ask, goldens)) == [row["greedy_text"] for row in goldens]
        os.kill(server.ranks()[0], signal.SIGTERM)  # rank 0 drains and ends the others
        assert server.process.wait(20) == 0, "".join(server.lines)


@pytest.mark.parametrize("adapter", [[], ["--lora", f"{MODEL}-lora-pirate"]])
def test_logits_are_those_of_local_ranks(tmp_path, adapter):
    arguments = ["logits", str(MODEL), "-tp", "2", "--ids", "1 2 3 400 5", "--dtype", "float32", *adapter]
    launched, local = tmp_path / "launched.safetensors", tmp_path / "local.safetensors"
    done = run(2, *arguments, *MPI, "-o", str(launched))
    assert done.returncode == 0, done.stderr
    subprocess.run([binary(), *arguments, "-o", local], check=True, capture_output=True)
    assert launched.read_bytes() == local.read_bytes()


def test_other_commands():
    text = run(2, "run", str(MODEL), "What is 2 + 2?", "-tp", "2", *MPI)
    alone = subprocess.run([binary(), "run", MODEL, "What is 2 + 2?", "-tp", "2"], capture_output=True, text=True)
    assert text.returncode == 0 and text.stdout.strip() == alone.stdout.strip() != "", text.stderr
    bench = run(2, "bench", "latency", str(MODEL), "-pp", "2", *MPI, timeout=120)
    assert bench.returncode == 0 and bench.stdout.count("backend") <= 1, bench.stderr
    plan = run(2, "inspect", str(MODEL), "-tp", "2", *MPI)
    assert plan.returncode == 0 and plan.stdout.count("minnow") == 1, (plan.stdout, plan.stderr)


@pytest.mark.parametrize(
    "ranks, arguments, message",
    [
        (2, ["-tp", "4"], "started 2 processes, but --tensor-parallel-size 4 x --pipeline-parallel-size 1 needs 4"),
        (3, ["-tp", "2"], "started 3 processes, but --tensor-parallel-size 2 x --pipeline-parallel-size 1 needs 2"),
        (2, [], "started 2 processes, but --tensor-parallel-size 1 x --pipeline-parallel-size 1 needs 1"),
        (1, ["-pp", "2"], "started 1 process, but --tensor-parallel-size 1 x --pipeline-parallel-size 2 needs 2"),
        (2, ["-tp", "2", "-dp", "2"], "--data-parallel-size 2 cannot be used with --distributed-executor-backend mpi"),
        (2, ["-tp", "64", "-pp", "2"], "128 ranks (expected at most 64)"),
        (2, ["-tp", "2", "--numa", "3"], "--numa 3 cannot be used with --tensor-parallel-size 2"),
    ],
)
def test_wrong_sizes_are_refused(ranks, arguments, message):
    done = run(ranks, "run", str(MODEL), "Hello", *arguments, *MPI)
    assert done.returncode != 0 and message in done.stderr, done.stderr


def test_several_models_are_refused():
    models = [f"a={MODEL}", f"b={MODEL}"]
    done = run(2, "serve", *models, "--port", "0", "-tp", "2", *MPI)
    assert done.returncode != 0 and "the launched ranks compute one model" in done.stderr, done.stderr


def test_a_model_that_is_missing():
    nowhere = run(2, "run", "/nowhere", "Hello", "-tp", "2", *MPI)
    assert nowhere.returncode != 0 and nowhere.stderr.count("sluice: ") == 1 and "/nowhere" in nowhere.stderr
    # The same command in two folders, of which only rank 0's has the model.
    command = [str(binary()), "run", "./" + MODEL.name, "Hello", "-tp", "2", *MPI]
    both = ["mpirun", "--oversubscribe", "-np", "1", "--wdir", str(MODEL.parent), *command]
    both += [":", "-np", "1", "--wdir", "/", *command]
    done = subprocess.run(both, capture_output=True, text=True, timeout=60, env={**os.environ, **ENVIRONMENT})
    assert done.returncode != 0 and "rank 1 of 2 was lost" in done.stderr and MODEL.name in done.stderr, done.stderr


def test_without_a_launcher():
    done = subprocess.run(
        [binary(), "run", MODEL, "Hello", "-tp", "2", *MPI], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and "no launcher started this process" in done.stderr, done.stderr


@pytest.mark.parametrize("value, status, message", [("ray", 2, "expected one of: local, mpi, mp, uni"), ("mp", 0, "")])
def test_values_of_vllm(value, status, message):
    command = [binary(), "run", MODEL, "Hello", "--distributed-executor-backend", value]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == status and message in done.stderr, done.stderr


@pytest.mark.parametrize("ways", ["-tp", "-pp"])
def test_a_killed_rank_ends_requests_with_an_error(ways):
    with LaunchedServer(2, ways, "2", "--dtype", "float32") as server:
        stream = server.client().completions.create(
            model=server.name, prompt="Once", max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
        )
        next(stream)
        os.kill(server.ranks()[1], signal.SIGKILL)
        killed = time.monotonic()
        with pytest.raises(openai.APIError, match="rank 1 of 2 was lost"):
            for _ in stream:
                pass
        assert time.monotonic() - killed < 2
        assert server.process.wait(20) != 0
        server.wait_until_gone()


def test_an_idle_server_notices_a_killed_rank():
    with LaunchedServer(2, "-tp", "2") as server:
        os.kill(server.ranks()[1], signal.SIGKILL)
        assert server.process.wait(20) != 0
        server.wait_until_gone()
        assert any("rank 1 of 2 was lost" in line for line in server.lines), "".join(server.lines)


def test_ranks_end_when_rank_0_is_killed():
    with LaunchedServer(2, "-tp", "2") as server:
        os.kill(server.ranks()[0], signal.SIGKILL)
        assert server.process.wait(20) != 0
        server.wait_until_gone()


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.skipif(shutil.which("ip") is None, reason="ip is not installed (iproute2 has it)")
def test_two_network_namespaces():
    """Ranks that share no memory: all of their data goes through Open MPI and TCP."""
    script = pathlib.Path(__file__).with_name("mpi_namespaces.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
    if done.returncode == 77:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
