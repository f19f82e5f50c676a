#!/usr/bin/env python3
"""outrider-gateway under load and under attack, in front of a real service: very many streams at once, every one whole, in bounded
memory; 10,000 connections, of which most send nothing, half a request, or one byte after another; bodies and headers without end,
nonsense, bad UTF-8 and pipelined requests. Meanwhile a client that behaves gets its answers, and afterwards all memory and all places
are free. OUTRIDER_TEST_LONG=1: 1,000 streams and 10,000 connections; else 250 and 1,500."""
import json
import os
import random
import resource
import selectors
import socket
import sys
import time
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from gateway_test import Gateway, text_of  # noqa: E402
from outrider_test import PATIENCE, TARGET, Service, Tap, until  # noqa: E402

tap = Tap()
ok = tap.ok
LONG = bool(os.environ.get("OUTRIDER_TEST_LONG"))
STREAMS, CONNECTIONS = (1000, 10000) if LONG else (250, 1500)
BODY = {"prompt": "In the beginning", "max_tokens": 24, "temperature": 0.8, "seed": 5}


def request_of(body, path="/v1/completions"):
    data = json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data


def memory_kib(process):
    """(resident now, the most ever)"""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return tuple(int(line.split()[1]) for name in ("VmRSS", "VmHWM") for line in lines if line.startswith(name))


def connect(gateway):
    peer = socket.socket()
    peer.setblocking(False)
    try:
        peer.connect(("127.0.0.1", gateway.port))
    except BlockingIOError:
        pass
    return peer


def stream_text(data):
    """The text of a whole stream of server-sent events in a chunked response; None: it is not whole."""
    head, _, rest = data.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        return None
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        n = int(size, 16)
        if n == 0:
            break
        body, rest = body + rest[:n], rest[n + 2:]
    events = [line[6:].decode() for line in body.split(b"\n") if line.startswith(b"data: ")]
    if not events or events[-1] != "[DONE]":
        return None
    return text_of([json.loads(e) for e in events[:-1]])


def streams_at_once(gateway, n):
    """What each of n streams says that are all open at once."""
    selector, data = selectors.DefaultSelector(), {}
    wanted = request_of({**BODY, "stream": True}).replace(b"Host: x", b"Host: x\r\nConnection: close")
    for _ in range(n):
        peer = connect(gateway)
        data[peer] = b""
        selector.register(peer, selectors.EVENT_WRITE)
    left, most = n, 0
    last = time.monotonic()
    while left and time.monotonic() - last < 300 * PATIENCE:
        for key, events in selector.select(1):
            peer, last = key.fileobj, time.monotonic()
            if events & selectors.EVENT_WRITE:
                peer.sendall(wanted)
                selector.modify(peer, selectors.EVENT_READ)
                continue
            got = peer.recv(1 << 16)
            data[peer] += got
            if not got:
                selector.unregister(peer)
                peer.close()
                left -= 1
        most = max(most, left)
    return [stream_text(d) for d in data.values()]


def check_streams(gateway):
    expected = gateway.post("/v1/completions", BODY)[1]["choices"][0]["text"]
    before = memory_kib(gateway.process)
    begun = time.monotonic()
    texts = streams_at_once(gateway, STREAMS)
    seconds = time.monotonic() - begun
    after = memory_kib(gateway.process)
    wrong = [t for t in texts if t != expected]
    ok(not wrong, f"{STREAMS} streams at once: every one is whole, and has the same bytes", (len(wrong), wrong[:3]))
    tap.note(f"{STREAMS} streams of {BODY['max_tokens']} tokens in {seconds:.1f} s; the gateway's memory: {before[0] / 1024:.1f} MiB before, "
             f"at most {after[1] / 1024:.1f} MiB, {after[0] / 1024:.1f} MiB after")
    ok(after[1] - before[0] < STREAMS * 96 + 32768, "in less than 96 KiB for each, and 32 MiB", (before, after))


def check_alive(gateway, what):
    status, answer = gateway.post("/v1/completions", {**BODY, "max_tokens": 4})
    ok(status == 200 and gateway.process.poll() is None and gateway.get("/health")[0] == 200, f"with {what}, another client is answered", answer)


def slow(peers):
    """One byte more to each: a request that never ends."""
    for peer, text in peers:
        try:
            peer.send(text[:1])
        except OSError:
            pass


def check_connections(gateway):
    """Very many connections that keep what they can."""
    peers = []
    for i in range(CONNECTIONS):
        peers.append(connect(gateway))
        if i % 500 == 499:
            time.sleep(0.05)
    pieces = (b"", b"POST /v1/comp", b"GET /health HTTP/1.1\r\nX: ", b"\x16\x03\x01\x02\x00", b"POST /v1/completions HTTP/1.1\r\nContent-Length: 999999\r\n\r\n{")
    for i, peer in enumerate(peers):
        try:
            peer.send(pieces[i % len(pieces)])
        except OSError:
            pass
    check_alive(gateway, f"{CONNECTIONS} connections that send nothing or half a request")
    for _ in range(5):
        slow([(p, b"a") for p in peers[::7]])
        check_alive(gateway, "more of them, byte by byte") if _ == 2 else None
    for peer in peers:
        peer.close()
    ok(until(lambda: json_metric(gateway, "outrider_http_connections") < 50), "when they have gone, their places are free",
       json_metric(gateway, "outrider_http_connections"))


def json_metric(gateway, name):
    for line in gateway.get("/metrics")[2].decode().splitlines():
        if line.startswith(name + " "):
            return float(line.split()[1])
    return None


def send_all(gateway, data, limit=1 << 20, patience=300):
    """What the gateway says to these bytes, until it closes, or nothing more comes for so many seconds."""
    said = b""
    with socket.create_connection(("127.0.0.1", gateway.port)) as peer:
        peer.settimeout(patience * PATIENCE)
        try:
            peer.sendall(data)
            while len(said) < limit:
                got = peer.recv(1 << 16)
                if not got:
                    break
                said += got
        except OSError:
            pass
    return said


def check_nonsense(gateway):
    random.seed(11)
    good = request_of(BODY)
    for name, data in (("a body without end", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * (8 << 20)),
                       ("a body in chunks without end", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" +
                        (b"10000\r\n" + b"x" * 65536 + b"\r\n") * 128),
                       ("a header without end", b"GET /health HTTP/1.1\r\nX: " + b"y" * (4 << 20)),
                       ("headers without number", b"GET /health HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % i for i in range(100000)))):
        said = send_all(gateway, data, 65536, 2)
        ok(not said or said.startswith(b"HTTP/1.") and said[9:12] in (b"400", b"413", b"414", b"431"), f"{name} is refused", said[:200])
    bad = b'{"messages": [{"role": "user", "content": "\xff\xfe\x80"}]}'
    said = send_all(gateway, b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(bad) + bad)
    ok(said[9:12] == b"400" and b"not JSON" in said, "bad UTF-8 is refused", said[-300:])
    deep = b"[" * 200000
    said = send_all(gateway, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(deep) + deep)
    ok(said[9:12] == b"400", "JSON of any depth is refused", said[-300:])
    for _ in range(300):
        data = bytearray(good)
        for _ in range(random.randrange(1, 8)):
            data[random.randrange(len(data))] = random.randrange(256)
        with socket.create_connection(("127.0.0.1", gateway.port)) as peer:
            peer.sendall(bytes(data[:random.randrange(1, len(data) + 1)]))
    check_alive(gateway, "300 requests with wrong bytes behind it")
    n = 30
    said = send_all(gateway, good * (n - 1) + good.replace(b"Host: x", b"Host: x\r\nConnection: close"), 1 << 22)
    ok(said.count(b"HTTP/1.1 200 OK") == n, f"{n} pipelined completions are answered", said[-300:])


soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
wanted_files = max(STREAMS, CONNECTIONS) + 500
if hard < wanted_files:
    tap.skip("the gateway under load", f"{wanted_files} descriptors are needed, {hard} are allowed")
    tap.done()
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
with Service(model=TARGET, sets=("verifier.sessions_max=256", "verifier.context=256", "verifier.kv_tokens=32768")) as service:
    gateway = Gateway(service, "--set", "connections=1200")
    check_streams(gateway)
    check_connections(gateway)
    check_nonsense(gateway)
    ok(until(lambda: json_metric(gateway, "outrider_http_answers_running") == 0 and json_metric(gateway, "outrider_http_answers_waiting") == 0),
       "nothing is left of all this")
    status, said = gateway.stop()
    ok(status == 0, "it ends as it should", said[-2000:])
tap.done()
