"""A `sluice route` process in front of replicas: started on a free port and always stopped."""

import re
import subprocess
import threading

from serving import Server, binary

READY = re.compile(r"sluice: routing on (?P<url>https?://\S+) \((?P<healthy>\d+) of \d+ replicas are healthy\)")


class Route(Server):
    """Usage: with Route([server.url for server in servers], "--policy", "cache") as route: route.client().chat..."""

    def __init__(self, replicas: list[str], *args: str, ready_s: float = 30):
        command = [str(binary()), "route", "--port", "0", *args]
        for replica in replicas:
            command += ["--replica", replica]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
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
                self.url, self.healthy = match["url"], int(match["healthy"])
                self._ready.set()
        self._ready.set()
