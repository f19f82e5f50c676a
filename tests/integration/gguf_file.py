"""GGUF files for tests: read one into keys and tensors, change them, write them, split them as llama.cpp's gguf-split does."""
import struct
from pathlib import Path

U32, U16, I32, F32, BOOL, STRING, ARRAY = 4, 2, 5, 6, 7, 8, 9
SCALAR = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def pack_string(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def pack_value(kind, value):
    if kind == STRING:
        return pack_string(value)
    if kind == ARRAY:
        element, items = value
        return struct.pack("<IQ", element, len(items)) + b"".join(pack_value(element, i) for i in items)
    return struct.pack("<" + SCALAR[kind], value)


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        value, = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return value

    def string(self):
        n = self.take("Q")
        self.at += n
        return self.data[self.at - n:self.at]

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            element, n = self.take("I"), self.take("Q")
            return element, [self.value(element) for _ in range(n)]
        return self.take(SCALAR[kind])


class Gguf:
    """keys: {name: (type, value)}; tensors: {name: (ne, type id, bytes)}; both in file order."""

    def __init__(self, path=None):
        self.keys, self.tensors = {}, {}
        if path is None:
            return
        r = Reader(Path(path).read_bytes())
        r.at = 8
        n_tensors, n_keys = r.take("Q"), r.take("Q")
        for _ in range(n_keys):
            name, kind = r.string().decode(), r.take("I")
            self.keys[name] = kind, r.value(kind)
        records = []
        for _ in range(n_tensors):
            name = r.string().decode()
            ne = [r.take("Q") for _ in range(r.take("I"))]
            records.append((name, ne, r.take("I"), r.take("Q")))
        alignment = self.keys.get("general.alignment", (U32, 32))[1]
        start = -(-r.at // alignment) * alignment
        ends = sorted({offset for *_, offset in records} | {len(r.data) - start})
        for name, ne, kind, offset in records:
            # With the padding behind it: its size is not needed to copy it.
            end = ends[ends.index(offset) + 1]
            self.tensors[name] = ne, kind, r.data[start + offset:start + end]

    def write(self, path):
        alignment = self.keys.get("general.alignment", (U32, 32))[1]
        parts = [b"GGUF", struct.pack("<IQQ", 3, len(self.tensors), len(self.keys))]
        for name, (kind, value) in self.keys.items():
            parts.append(pack_string(name) + struct.pack("<I", kind) + pack_value(kind, value))
        offset = 0
        for name, (ne, kind, data) in self.tensors.items():
            parts.append(pack_string(name) + struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, kind, offset))
            offset += -(-len(data) // alignment) * alignment
        head = b"".join(parts)
        with open(path, "wb") as out:
            out.write(head + bytes(-len(head) % alignment))
            for *_, data in self.tensors.values():
                out.write(data + bytes(-len(data) % alignment))

    def split(self, prefix, n, first_is_empty=False):
        """PREFIX-00001-of-0000N.gguf ...: tensors in order, about as many bytes in each. Returns the paths."""
        holders = n - first_is_empty
        total = sum(len(data) for *_, data in self.tensors.values())
        files, done = [Gguf() for _ in range(n)], 0
        for name, tensor in self.tensors.items():
            i = min(done * holders // total, holders - 1) + first_is_empty
            files[i].tensors[name] = tensor
            done += len(tensor[2])
        paths = []
        for i, part in enumerate(files):
            part.keys = dict(self.keys) if i == 0 else {}
            part.keys |= {"split.no": (U16, i), "split.count": (U16, n), "split.tensors.count": (I32, len(self.tensors))}
            paths.append(Path(f"{prefix}-{i + 1:05}-of-{n:05}.gguf"))
            part.write(paths[-1])
        return paths
