"""Ranks that mpirun starts, for tests."""

import os
import pathlib
import shutil

# Root may run mpirun, as in a container.
ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def missing() -> str:
    """Why mpirun cannot be used here; empty: it can."""
    return "" if shutil.which("mpirun") else "mpirun is not installed (openmpi-bin has it)"


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
