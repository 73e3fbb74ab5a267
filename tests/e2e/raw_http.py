"""HTTP over plain sockets, for load that a client library would be too slow for, or too polite."""

import json
import socket
import struct


def http(method, path, body=b""):
    if isinstance(body, dict):
        body = json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def chat(model, text, **fields):
    fields = {"temperature": 0, "max_tokens": 4, **fields}
    message = {"role": "user", "content": text}
    return http("POST", "/v1/chat/completions", {"model": model, "messages": [message], **fields})


class Connection:
    def __init__(self, address):
        self.socket = socket.create_connection(address, timeout=120)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rest = b""

    def close(self, reset=False):
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def more(self):
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionError("the connection ended")
        self.rest += data

    def take(self, size):
        while len(self.rest) < size:
            self.more()
        out, self.rest = self.rest[:size], self.rest[size:]
        return out

    def until(self, mark):
        while mark not in self.rest:
            self.more()
        out, self.rest = self.rest.split(mark, 1)
        return out

    def answer(self):
        """Status, body and whether the connection stays open."""
        head = self.until(b"\r\n\r\n").lower()
        status, stays = int(head[9:12]), b"connection: close" not in head
        if b"transfer-encoding: chunked" not in head:
            at = head.index(b"content-length: ") + 16
            return status, self.take(int(head[at:].split(b"\r\n", 1)[0])), stays
        body = b""
        while size := int(self.until(b"\r\n"), 16):
            body += self.take(size)
            self.take(2)
        self.take(2)
        return status, body, stays
