#!/usr/bin/env python3
"""Ranks on two machines: two network namespaces of this one, connected by a virtual cable. mpirun starts ranks in both,
by `ip netns exec` in place of ssh. Checks that the answers are those of ranks on one machine, and what happens when a
rank of the other machine is killed. Needs root; exits with status 77 and the reason where it cannot run.

Usage: mpi_namespaces.py [--bench MODEL]   # --bench: also print times of `sluice bench latency MODEL -tp 2`"""

import argparse
import concurrent.futures
import ctypes
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid

from launching import ENVIRONMENT, launched_ranks, missing
from serving import MODEL, ROOT, Server, binary

MPI = ["--distributed-executor-backend", "mpi"]
ADDRESSES = ["10.77.31.1", "10.77.31.2"]
CLONE_NEWNET = 0x40000000


def cannot_run() -> str:
    if missing():
        return missing()
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "ip is not installed (iproute2 has it)"
    name = f"sluice-{os.getpid()}-probe"
    probes = [
        ["ip", "netns", "add", name],
        ["ip", "-n", name, "link", "add", "near", "type", "veth", "peer", "name", "far"],
        ["ip", "netns", "exec", name, "unshare", "--uts", "true"],
        ["ip", "netns", "delete", name],
    ]
    for probe in probes:
        done = subprocess.run(probe, capture_output=True, text=True)
        if done.returncode != 0:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)
            return f"`{' '.join(probe)}` fails here: {done.stderr.strip()[-200:]}"
    return ""


class Machines:
    """Two namespaces. This process and its children are in the first one from then on."""

    def __init__(self):
        self.names = [f"sluice-{os.getpid()}-{side}" for side in "ab"]
        self.folder = tempfile.TemporaryDirectory()

    def __enter__(self):
        for name in self.names:
            ip("netns", "add", name)
        ends = [f"slu{os.getpid() % 100000}{side}" for side in "ab"]
        near, far = ([end, "netns", name] for end, name in zip(ends, self.names))
        ip("link", "add", *near, "type", "veth", "peer", "name", *far)
        for name, end, address in zip(self.names, ends, ADDRESSES):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", end, "up")
        self.agent = pathlib.Path(self.folder.name) / "agent"
        # Open MPI names its shared memory by the host. A machine of its own has a name and a /dev/shm of its own.
        start = f"hostname {self.names[1]} && mount -t tmpfs tmpfs /dev/shm && exec sh -c"
        self.agent.write_text(
            f'#!/bin/sh\n# HOST COMMAND...\nshift\n'
            f"exec ip netns exec {self.names[1]} unshare --uts sh -c '{start} \"$0\"' \"$*\"\n"
        )
        self.agent.chmod(0o755)
        with open(f"/run/netns/{self.names[0]}") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        return self

    def __exit__(self, *_):
        for name in self.names:
            ip("netns", "delete", name)
        self.folder.cleanup()

    def mpirun(self, ranks_each: int, *options: str) -> list[str]:
        hosts = ",".join(f"{address}:{ranks_each}" for address in ADDRESSES)
        command = ["mpirun", "--mca", "plm_rsh_agent", str(self.agent), "--host", hosts, "--bind-to", "none"]
        return [*command, "-x", "SLUICE_TEST_MARK", *options, "-np", str(2 * ranks_each)]


def ip(*words: str):
    subprocess.run(["ip", *words], check=True)


def environment(mark: str = "", kill_after: int = 1) -> dict[str, str]:
    """mpirun kills the ranks that are left so many seconds after it asked them to end."""
    return {**ENVIRONMENT, "SLUICE_TEST_MARK": mark, "OMPI_MCA_odls_base_sigkill_timeout": str(kill_after)}


def logits(launcher: list[str], path: pathlib.Path, ways: list[str]) -> bytes:
    command = [*launcher, str(binary()), "logits", str(MODEL), "--ids", "1 2 3 400 5", "--dtype", "float32", *ways]
    subprocess.run([*command, "-o", str(path)], check=True, env={**os.environ, **environment()}, timeout=60)
    return path.read_bytes()


def check_logits(machines: Machines):
    folder = pathlib.Path(machines.folder.name)
    for ways, ranks_each in ((["-tp", "2"], 1), (["-pp", "2"], 1), (["-tp", "2", "-pp", "2"], 2), (["-tp", "4"], 2)):
        far = logits(machines.mpirun(ranks_each), folder / "far", [*ways, *MPI])
        near = logits([], folder / "near", ways)
        assert far == near, f"{ways}: the logits differ from those of one machine"
        print(f"{' '.join(ways)}: the logits are those of one machine, bit for bit")


def check_answers(machines: Machines):
    rows = [json.loads(line) for line in (ROOT / "tests/goldens/minnow/minnow-6m-greedy.jsonl").open()][:8]
    for ways, ranks_each in ((["-tp", "2"], 1), (["-tp", "2", "-pp", "2"], 2)):
        launcher = machines.mpirun(ranks_each)
        with Server(*ways, *MPI, "--dtype", "float32", launcher=launcher, env=environment()) as server:

            def ask(row):
                answer = server.client().chat.completions.create(
                    model=server.name, messages=row["messages"], temperature=0, max_tokens=len(row["greedy_ids"])
                )
                return answer.choices[0].message.content

            with concurrent.futures.ThreadPoolExecutor(len(rows)) as pool:  # few steps, each of which waits for TCP
                assert list(pool.map(ask, rows)) == [row["greedy_text"] for row in rows]
            server.process.terminate()
            server.process.wait(30)
        print(f"{' '.join(ways)}: {len(rows)} answers are exact")


def check_loss(machines: Machines, victim: int):
    mark = uuid.uuid4().hex
    ways = ["-tp", "2", "--dtype", "float32"]
    with Server(*ways, *MPI, launcher=machines.mpirun(1), env=environment(mark, 1 + 2 * victim)) as server:
        stream = server.client().completions.create(
            model=server.name, prompt="Once", max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
        )
        next(stream)
        os.kill(launched_ranks(binary(), mark)[victim], signal.SIGKILL)
        killed = time.monotonic()
        message = ""
        try:
            for _ in stream:
                pass
        except Exception as error:  # an APIError; if rank 0 is gone, an error of the client's HTTP library
            message = str(error)
        told = time.monotonic() - killed
        server.process.wait(30)
        while launched_ranks(binary(), mark):
            assert time.monotonic() - killed < 20, "ranks still run"
            time.sleep(0.05)
        assert victim == 0 or "rank 1 of 2 was lost" in message, message + "".join(server.lines)
        print(f"rank {victim} killed: the request ended after {told:.1f} s with '{message}'")


def bench(machines: Machines, model: str):
    arguments = ["bench", "latency", model, "-tp", "2", "--threads", "2"]
    two = [*machines.mpirun(1), binary(), *arguments, *MPI]
    for name, command in (("one machine", [binary(), *arguments]), ("two", two)):
        print(f"{name}:", flush=True)
        subprocess.run(command, check=True, env={**os.environ, **environment()}, timeout=300)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bench", metavar="MODEL")
    arguments = parser.parse_args()
    if reason := cannot_run():
        print(f"skipped: {reason}")
        return 77
    with Machines() as machines:
        check_logits(machines)
        check_answers(machines)
        for victim in (0, 1):
            check_loss(machines, victim)
        if arguments.bench:
            bench(machines, arguments.bench)
    return 0


if __name__ == "__main__":
    sys.exit(main())
