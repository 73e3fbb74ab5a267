#!/usr/bin/env python3
"""Runs the test suite of another server against Sluice, and counts what passes:

    bench/compat/run.py PEER CHECKOUT [arguments of pytest]

PEER has a file in cases/, which names the files of the suite and the cases that are left out. CHECKOUT is the peer's
repository. README.md says where to get it and which Python packages are needed."""
import os
import pathlib
import subprocess
import sys
import tomllib

HERE = pathlib.Path(__file__).resolve().parent


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    peer, checkout = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    cases = tomllib.loads((HERE / "cases" / f"{peer}.toml").read_text())
    folder = checkout / cases["folder"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "counting"]
    command += ["-p", f"adapters.{peer}", *cases.get("pytest", [])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE), *(str(checkout / path) for path in cases.get("python_path", []))]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "COMPAT_PEER": peer,
        "COMPAT_CHECKOUT": str(checkout),
    }
    sys.exit(subprocess.call([*command, *cases["files"], *sys.argv[3:]], cwd=folder, env=environment))


if __name__ == "__main__":
    main()
