"""Fixtures of the end-to-end tests. A missing binary is a failure, never a skip."""

import json
import os

import pytest

import serving


def pytest_collection_modifyitems(config, items):
    """With SLUICE_E2E_HALF, 0 or 1, only every other file: CTest runs the halves beside each other."""
    half = os.environ.get("SLUICE_E2E_HALF")
    if half is None:
        return
    kept = sorted({item.path for item in items})[int(half) :: 2]
    config.hook.pytest_deselected(items=[item for item in items if item.path not in kept])
    items[:] = [item for item in items if item.path in kept]


def pytest_terminal_summary(terminalreporter):
    for report in terminalreporter.stats.get("skipped", []):
        terminalreporter.write_line(f"skipped {report.nodeid}: {report.longrepr[2]}")


@pytest.fixture(scope="session")
def server():
    """The demo model in float32: greedy answers must equal the reference's exactly."""
    with serving.Server("--dtype", "float32") as running:
        yield running
        assert running.process.poll() is None, "the server died:\n" + "".join(running.lines[-20:])


@pytest.fixture(scope="session")
def client(server):
    return server.client()


@pytest.fixture(scope="session")
def model(server):
    return server.name


@pytest.fixture(scope="session")
def goldens():
    path = serving.ROOT / "tests" / "goldens" / "minnow" / "minnow-6m-greedy.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]
