"""Ranks that mpirun starts, for tests."""

import functools
import os
import pathlib
import shutil
import subprocess

# Root may run mpirun, as in a container.
ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@functools.cache
def missing() -> str:
    """Why mpirun cannot be used here; empty: it can."""
    if not shutil.which("mpirun"):
        return "mpirun is not installed (openmpi-bin has it)"
    # Open MPI needs a host name and a network interface, which some containers lack.
    try:
        environment = {**os.environ, **ENVIRONMENT}
        done = subprocess.run([*mpirun(2), "true"], capture_output=True, text=True, timeout=30, env=environment)
    except subprocess.TimeoutExpired:
        return "mpirun cannot start two processes here within 30 s"
    return "" if done.returncode == 0 else f"mpirun cannot start two processes here: {done.stderr.strip()[-300:]}"


def mpirun(ranks: int, *options: str) -> list[str]:
    return ["mpirun", "--oversubscribe", "-np", str(ranks), *options]


def environment_of(pid: int) -> dict[bytes, bytes]:
    try:
        words = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(word.split(b"=", 1) for word in words if b"=" in word)


def launched_ranks(program: pathlib.Path, mark: str) -> dict[int, int]:
    """The process ids of ranks by rank; `mark` is the value of SLUICE_TEST_MARK in their environment."""
    found = {}
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(path / "exe") != str(program.resolve()):
                continue
        except OSError:
            continue
        variables = environment_of(int(path.name))
        if variables.get(b"SLUICE_TEST_MARK") == mark.encode():
            found[int(variables[b"OMPI_COMM_WORLD_RANK"])] = int(path.name)
    return found
