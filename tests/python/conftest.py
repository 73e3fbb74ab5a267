"""Fixtures of the Python package's tests. They run against the package of the build, or against an installed one."""

import json
import pathlib
import time

import pytest
import sluice

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "minnow-6m"


def pytest_terminal_summary(terminalreporter):
    for report in terminalreporter.stats.get("skipped", []):
        terminalreporter.write_line(f"skipped {report.nodeid}: {report.longrepr[2]}")


@pytest.fixture(scope="session")
def llm():
    """The demo model in float32: greedy answers must equal the reference's exactly."""
    with sluice.LLM(str(MODEL), dtype="float32", enable_lora=True) as model:
        yield model


@pytest.fixture(scope="session")
def embedder():
    with sluice.LLM(str(MODEL), task="embed", matryoshka=True, dtype="float32") as model:
        yield model


def golden(name):
    return [json.loads(line) for line in (ROOT / "tests/goldens/minnow" / name).read_text().splitlines()]


@pytest.fixture(scope="session")
def goldens():
    return golden("minnow-6m-greedy.jsonl")


@pytest.fixture(scope="session")
def idle(llm):
    """Waits until no request of the model runs or waits."""

    def wait(model=None, timeout_s=10):
        core = (model or llm)._session.core
        end = time.monotonic() + timeout_s
        while core.unfinished() > 0:
            assert time.monotonic() < end, f"{core.unfinished()} sequences still run"
            time.sleep(0.01)

    return wait
