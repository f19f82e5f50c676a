"""What a client that knows no manners sends: raw bytes, ZeroMQ's wire protocol (ZMTP 3) by hand, and protobuf by hand."""
import socket
import struct

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)


def connect(path, kind=socket.SOCK_STREAM, timeout=60):
    s = socket.socket(socket.AF_UNIX, kind)
    # A connect that waits while the other end's backlog is full, but not for ever.
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", min(timeout, 10), 0))
    s.connect(str(path))
    s.settimeout(timeout)
    return s


def frame(data, flags=0):
    """One ZMTP frame; flags 1: more follow, 4: a command."""
    if len(data) < 256:
        return bytes([flags, len(data)]) + data
    return bytes([flags | 2]) + struct.pack(">Q", len(data)) + data


def ready(kind=b"DEALER"):
    return frame(b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind, 4)


def varint(n):
    out = bytearray()
    n &= (1 << 64) - 1
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes(out) + bytes([n])


def field(number, value):
    """An int becomes a varint, a float fixed32, a list a TokenList, the rest length-delimited."""
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, list):
        packed = b"".join(map(varint, value))
        value = b"\x0a" + varint(len(packed)) + packed
    return varint(number << 3 | 2) + varint(len(value)) + value


def message(*fields):
    return b"".join(field(n, v) for n, v in fields)


def envelope(body, content, version=1, request=7):
    return message((1, version), (2, request), (body, content))


def read_varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at


def parse(data):
    """{field: last value} of a message."""
    out, at = {}, 0
    while at < len(data):
        key, at = read_varint(data, at)
        if key & 7 == 0:
            out[key >> 3], at = read_varint(data, at)
            continue
        if key & 7 == 2:
            size, at = read_varint(data, at)
        else:
            size = {1: 8, 5: 4}[key & 7]
        out[key >> 3] = data[at:at + size]
        at += size
    return out


class Peer:
    """A ZeroMQ DEALER made of bytes."""

    def __init__(self, path, kind=b"DEALER", timeout=60):
        self.socket = connect(path, timeout=timeout)
        self.socket.sendall(GREETING + ready(kind))
        self.exactly(64)
        self.receive()  # its READY

    def exactly(self, n):
        data = b""
        while len(data) < n:
            more = self.socket.recv(n - len(data))
            if not more:
                raise ConnectionResetError("the other end closed")
            data += more
        return data

    def receive(self):
        """The next frame's bytes."""
        flags = self.exactly(1)[0]
        size = struct.unpack(">Q", self.exactly(8))[0] if flags & 2 else self.exactly(1)[0]
        return self.exactly(size)

    def send(self, *frames):
        for i, data in enumerate(frames):
            self.socket.sendall(frame(data, int(i + 1 < len(frames))))

    def ask(self, data):
        self.send(data)
        return parse(self.receive())

    def close(self):
        self.socket.close()


def hello(kind=1, name=b"drafter", region=b"", magic=0x4c48524f, version=1, generation=5, pid=1):
    """The first packet on NAME.sock (shared/ipc/hello.h)."""
    return struct.pack("<IIIiQ32s32s", magic, version, kind, pid, generation, name, region)
