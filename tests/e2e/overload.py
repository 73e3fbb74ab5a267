"""Overload: twenty times more requests than the server can answer, while probes ask for its health.

  ./dev bench overload [--times 20] [--seconds 20]

First the peak is measured: answers per second to as many clients as sequences run at a time. Then requests come at
--times that rate, whether earlier ones were answered or not. The server and the clients have a CPU each. Gates: goodput
of at least 90 % of the peak, refusals within 5 ms and health within 10 ms, both at the 99th percentile. Exits with 1
when a gate is missed.
"""

import argparse
import os
import selectors
import statistics
import sys
import threading
import time
import urllib.parse

import serving
from raw_http import Connection, chat, http


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def ask(address, sent):
    connection = Connection(address)
    connection.socket.sendall(sent)
    status, _, _ = connection.answer()
    connection.close()
    return status


def peak(address, body, clients, seconds):
    """Answers per second to clients that ask again as soon as they are answered."""
    done, end = [], time.monotonic() + seconds

    def client():
        connection = Connection(address)
        while time.monotonic() < end:
            connection.socket.sendall(body)
            status, _, _ = connection.answer()
            assert status == 200, status
            done.append(time.monotonic())
        connection.close()

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counted = [t for t in done if end - seconds * 0.75 <= t < end]
    return len(counted) / (seconds * 0.75)


class Load:
    """Sends requests at a rate, each on a connection of its own, and reads the answers as they come. One thread."""

    def __init__(self, address, body, rate, seconds):
        self.address, self.body, self.rate, self.seconds = address, body, rate, seconds
        self.answers, self.refusals, self.others, self.late = [], [], [], 0

    def run(self):
        selector, begin, sent = selectors.DefaultSelector(), time.monotonic(), 0
        while (now := time.monotonic()) < begin + self.seconds:
            due = int((now - begin) * self.rate)
            self.late = max(self.late, due - sent)
            if sent < due:
                connection = Connection(self.address)
                connection.begin = time.monotonic()
                connection.socket.sendall(self.body)
                selector.register(connection.socket, selectors.EVENT_READ, connection)
                sent += 1
            for key, _ in selector.select(0 if sent < due else 0.0005):
                selector.unregister(key.fileobj)
                self.finish(key.data)
        self.sent = sent
        for key in list(selector.get_map().values()):
            key.data.close(reset=True)

    def finish(self, connection):
        status, _, _ = connection.answer()
        now = time.monotonic()
        kind = {200: self.answers, 503: self.refusals}.get(status, self.others)
        kind.append((now, now - connection.begin))
        connection.close()


def probe(address, end, times):
    request = http("GET", "/health")
    while time.monotonic() < end:
        begin = time.monotonic()
        status = ask(address, request)
        times.append((status, time.monotonic() - begin))
        time.sleep(0.05)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=float, default=20)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("options", nargs="*", help="for `sluice serve`, after --")
    args = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    assert len(cpus) > 1, "the server and the clients need a CPU each"
    os.sched_setaffinity(0, cpus[-1:])
    options = ["--max-num-seqs", str(args.sequences), "--max-num-queued-reqs", str(args.sequences), "--threads", "1"]
    os.sched_setaffinity(0, cpus[:1])  # the server inherits it
    with serving.Server("--log-level", "warning", *options, *args.options) as server:
        os.sched_setaffinity(0, cpus[-1:])
        url = urllib.parse.urlparse(server.url)
        address = (url.hostname, url.port)
        body = chat(server.name, "Tell me a story", max_tokens=args.max_tokens, ignore_eos=True)
        peak(address, body, args.sequences, 2)  # warm-up
        best = peak(address, body, args.sequences, args.seconds / 2)
        load, health = Load(address, body, args.times * best, args.seconds), []
        prober = threading.Thread(target=probe, args=(address, time.monotonic() + args.seconds, health))
        prober.start()
        begin = time.monotonic()
        load.run()
        prober.join()
        after = ask(address, body)
        server.terminate()
        ended = server.wait()

    steady = [t for t, _ in load.answers if t > begin + args.seconds / 4]
    goodput = len(steady) / (args.seconds * 0.75)
    refusal, healthy = (percentile([s for _, s in values], 0.99) * 1000 for values in (load.refusals, health))
    median = statistics.median(s for _, s in load.refusals) * 1000 if load.refusals else float("nan")
    print(f"peak {best:.1f} answers/s; {load.sent / args.seconds:.0f} requests/s sent, {load.late} late at most")
    print(f"goodput {goodput:.1f} answers/s, {100 * goodput / best:.1f} % of the peak; {len(load.refusals)} refusals, "
          f"p50 {median:.2f} ms, p99 {refusal:.2f} ms; {len(health)} probes, p99 {healthy:.2f} ms")  # fmt: skip
    failures = []
    if goodput < 0.9 * best:
        failures.append("goodput")
    if not refusal < 5:
        failures.append("refusals")
    if not healthy < 10 or any(status != 200 for status, _ in health):
        failures.append("health")
    if load.others or after != 200 or ended != 0:
        failures.append(f"{len(load.others)} other answers, status {after} afterwards, exit status {ended}")
    for failure in failures:
        print("FAILED:", failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
