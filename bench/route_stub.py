#!/usr/bin/env python3
"""A replica for bench/route.py: route_stub.py SECONDS SLOTS. Prints its port.

It answers after a fixed time and has a fixed number of slots, as an engine with a full batch has.
"""

import asyncio
import json
import sys

STUB_ANSWER = json.dumps({"choices": [{"index": 0, "text": "x" * 200, "finish_reason": "length"}]}).encode()


class StubProtocol(asyncio.Protocol):
    """Just enough of HTTP/1.1 for keep-alive requests with a Content-Length."""

    seconds = 0.0
    slots = asyncio.Semaphore(1)

    def connection_made(self, transport):
        self.transport, self.rest = transport, b""

    def data_received(self, data):
        self.rest += data
        while (end := self.rest.find(b"\r\n\r\n")) >= 0:
            head = self.rest[:end].lower()
            at = head.find(b"content-length: ")
            length = int(head[at + 16 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.rest) < end + 4 + length:
                return
            self.rest = self.rest[end + 4 + length :]
            if head.startswith(b"post") and self.seconds > 0:
                asyncio.ensure_future(self.work())
            else:
                self.answer()

    async def work(self):
        async with self.slots:
            await asyncio.sleep(self.seconds)
        self.answer()

    def answer(self):
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(STUB_ANSWER)}\r\n\r\n"
        self.transport.write(head.encode() + STUB_ANSWER)


async def run_stub(seconds, slots):
    StubProtocol.seconds, StubProtocol.slots = seconds, asyncio.Semaphore(slots)
    server = await asyncio.get_running_loop().create_server(StubProtocol, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(run_stub(float(sys.argv[1]), int(sys.argv[2])))
