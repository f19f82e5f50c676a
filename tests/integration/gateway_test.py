"""A gateway beside a real service, asked over HTTP: what the tests of outrider-gateway share."""
import contextlib
import http.client
import json
import random
import signal
import socket
import subprocess

from outrider_test import PATIENCE, finish, program, until

QUESTION = [{"role": "user", "content": "Add 1354 and 5437 digit by digit."}]


def free_port():
    """A port that nobody listens on. Below those that the kernel gives away: a connection of another test could have it a moment later."""
    while True:
        port = random.randrange(10000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Gateway:
    """A gateway of its own beside a service."""

    def __init__(self, service, *options):
        self.service, self.port = service, free_port()
        self.process = subprocess.Popen([program("outrider-gateway"), "--runtime-dir", service.runtime, "--listen", f"127.0.0.1:{self.port}",
                                         *options], stderr=subprocess.PIPE, text=True)
        until(lambda: self.get("/health")[0] == 200)

    def connection(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=300 * PATIENCE)

    def ask(self, method, path, body=None, headers=()):
        """(status, headers, body)"""
        connection = self.connection()
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, dict(headers))
            reply = connection.getresponse()
            return reply.status, dict(reply.getheaders()), reply.read()
        finally:
            connection.close()

    def get(self, path, **more):
        try:
            return self.ask("GET", path, **more)
        except OSError:
            return 0, {}, b""

    def post(self, path, body, **more):
        status, _, data = self.ask("POST", path, body, **more)
        return status, json.loads(data)

    def chat(self, **fields):
        return self.post("/v1/chat/completions", {"messages": QUESTION, **fields})

    def events(self, path, body, on_event=None):
        """The objects of a stream; on_event(n) after each."""
        connection = self.connection()
        connection.request("POST", path, json.dumps({"stream": True, **body}).encode())
        reply = connection.getresponse()
        found = []
        for line in reply:
            if line.startswith(b"data: "):
                found.append(line[6:].strip().decode())
                if on_event:
                    on_event(len(found))
        connection.close()
        return [json.loads(e) if e != "[DONE]" else e for e in found]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        said = finish(self.process, 60)[1]
        return self.process.returncode, said


def text_of(events):
    return "".join(c.get("text", c.get("delta", {}).get("content", "")) for e in events if e != "[DONE]" for c in e["choices"])
