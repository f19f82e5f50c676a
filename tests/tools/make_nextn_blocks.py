#!/usr/bin/env python3
"""Copies a model with one layer for drafts and gives the copy N of them: each further one has the numbers of the first in another order.
Nobody trained them; they are for comparing how they are chained. make_nextn_blocks.py FROM TO N"""
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
from gguf_file import Gguf  # noqa: E402

source, to, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
file = Gguf(source)
arch = file.keys["general.architecture"][1]
arch = arch.decode() if isinstance(arch, bytes) else arch
kind, blocks = file.keys[f"{arch}.block_count"]
for key, value in (("block_count", blocks + n - 1), ("nextn_predict_layers", n)):
    file.keys[f"{arch}.{key}"] = (kind, value)
prefix = f"blk.{blocks - 1}."
for name, (ne, kind, data) in [item for item in file.tensors.items() if item[0].startswith(prefix)]:
    values = struct.unpack(f"<{len(data) // 4}f", data)
    for i in range(1, n):
        turned = values[i:] + values[:i] if len(values) > ne[0] else values
        file.tensors[f"blk.{blocks - 1 + i}.{name[len(prefix):]}"] = ne, kind, struct.pack(f"<{len(turned)}f", *turned[::-1] if len(turned) > ne[0] else turned)
file.write(to)
