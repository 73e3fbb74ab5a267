"""A `sluice serve` process for tests: started on a free port and always stopped."""

import os
import pathlib
import re
import signal
import subprocess
import threading
import time

import httpx
import openai

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "minnow-6m"
ENGINE_FAILED = 70  # the exit status, see docs/serving.md
READY = re.compile(r"sluice: serving (?P<name>\S+) on (?P<url>https?://\S+)")


def binary() -> pathlib.Path:
    path = pathlib.Path(os.environ.get("SLUICE_BIN", ROOT / "build" / "release" / "bin" / "sluice"))
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; build it (./dev build) or set SLUICE_BIN")
    return path


class Server:
    """Usage: with Server("--max-num-seqs", "4") as server: server.client().chat...

    With model None, the arguments name the models; `name` is then all names, with commas between them. A launcher is a
    command that starts the server, as `mpirun -np 2` does; `process` is then the launcher's."""

    def __init__(
        self,
        *args: str,
        env: dict | None = None,
        model: pathlib.Path | None = MODEL,
        ready_s: float = 120,
        launcher: list[str] | None = None,
    ):
        models = [] if model is None else [str(model)]
        command = [*(launcher or []), str(binary()), "serve", *models, "--port", "0", *args]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **(env or {})}
        )
        self.lines: list[str] = []
        self.url = self.name = ""
        self._ready = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        if not self._ready.wait(ready_s) or not self.url:
            self.kill()
            raise RuntimeError(f"{' '.join(command)} did not become ready:\n" + "".join(self.lines))

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line)
            if match := READY.search(line):
                self.name, self.url = match["name"], match["url"]
                self._ready.set()
        self._ready.set()

    def client(self, api_key: str = "none", **options) -> openai.OpenAI:
        options = {"max_retries": 0, "timeout": 120, **options}
        return openai.OpenAI(base_url=self.url + "/v1", api_key=api_key, **options)

    def async_client(self, api_key: str = "none") -> openai.AsyncOpenAI:
        limits = httpx.Limits(max_connections=None)
        http = httpx.AsyncClient(limits=limits, timeout=120)
        return openai.AsyncOpenAI(base_url=self.url + "/v1", api_key=api_key, max_retries=0, http_client=http)

    def metrics(self) -> dict[str, float]:
        """Returns samples by name with labels, and by bare name (the sum over labels)."""
        out: dict[str, float] = {}
        for line in httpx.get(self.url + "/metrics").text.splitlines():
            if line.startswith("#"):
                continue
            name, value = line.rsplit(" ", 1)
            out[name] = float(value)
            bare = name.split("{")[0]
            if bare != name:
                out[bare] = out.get(bare, 0.0) + float(value)
        return out

    def wait_idle(self, timeout_s: float = 10) -> dict[str, float]:
        """Waits until no request runs or waits; then returns the metrics."""
        end = time.monotonic() + timeout_s
        while True:
            metrics = self.metrics()
            if metrics["vllm:num_requests_running"] == 0 and metrics["vllm:num_requests_waiting"] == 0:
                return metrics
            if time.monotonic() > end:
                raise AssertionError(f"still busy after {timeout_s} s: {metrics}")
            time.sleep(0.01)

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float = 30) -> int:
        return self.process.wait(timeout_s)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def resident_bytes(self) -> int:
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return sum(int(re.search(rf"^{key}:\s+(\d+) kB", status, re.M)[1]) * 1024 for key in ("RssAnon", "VmSwap"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


def children_of(server: Server) -> list[tuple[int, int]]:
    """The further ranks, with their process ids."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            parent = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError):
            continue
        if parent == server.process.pid and words[1:2] == [b"rank"]:
            found.append((int(words[3]), int(path.name)))
    return found


def ranks_of(server: Server) -> dict[int, int]:
    """The process ids of the further ranks, by rank."""
    return dict(children_of(server))
