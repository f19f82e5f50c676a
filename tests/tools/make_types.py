#!/usr/bin/env python3
"""Golden data of the tensor types IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, TQ1_0, TQ2_0 and NVFP4, from gguf-py's
dequantisation (numpy; PyPI gguf 0.19.0 made what is there), and the grids of kernels/cpu from gguf-py's tables.

  python tests/tools/make_types.py grids    # writes kernels/cpu/grid_iq*.c (clang-format them)
  python tests/tools/make_types.py blocks   # writes tests/data/golden/blocks/T.* and the types' entries of blocks.json
"""
import json
import pathlib
import sys

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as Q

TOP = pathlib.Path(__file__).resolve().parents[2]
BLOCKS = TOP / "tests/data/golden/blocks"
TYPES = ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0", "NVFP4"]
# Where a block's float16 scale is. IQ1_M's lies in the upper four bits of four 16-bit words; NVFP4 has others.
HALF_AT = {"TQ1_0": 52, "TQ2_0": 64, "IQ1_M": None, "NVFP4": None}
COLS, ROWS, SEED = 1024, 4, 4343

EIGHTS = "Byte j of an entry: codes of weight j, low nibble, and of weight 4 + j."
FOURS = "Byte j of an entry: the code of weight j."
GRIDS = {"grid_iq1.c": (EIGHTS, ["IQ1_S"]), "grid_iq2.c": (EIGHTS, ["IQ2_XXS", "IQ2_XS", "IQ2_S"]),
         "grid_iq3.c": (FOURS, ["IQ3_XXS", "IQ3_S"])}


def grid_codes(name):
    """The place of each weight of each entry in the type's list of magnitudes."""
    of = getattr(quants, name)
    of.init_grid()
    return np.searchsorted(of.grid_map, of.grid.reshape(of.grid_shape)).astype(np.uint32)


def write_grids():
    for file, (what, grids) in GRIDS.items():
        text = "/* %s tests/tools/make_types.py wrote this file. */\n" % what
        text += '#include "kernels/cpu/grids.h"\n'
        for name in grids:
            codes = grid_codes(name)
            shifts = [0, 8, 16, 24, 4, 12, 20, 28][:codes.shape[1]]
            words = [sum(int(c) << s for c, s in zip(row, shifts)) for row in codes]
            text += "\nGRID(kernels_grid_%s, %d) = {" % (name.lower(), len(words))
            text += ", ".join("0x%08x" % w for w in words) + "};\n"
        (TOP / "kernels/cpu" / file).write_text(text)


def put_half(name, block, value):
    bits = int(np.float16(value).view(np.uint16))
    if name == "IQ1_M":
        for i in range(4):
            block[49 + 2 * i] = block[49 + 2 * i] & 0x0F | (bits >> 4 * i & 15) << 4
    elif name == "NVFP4":
        # The nearest scale above 0 that there is, in all four places.
        codes = np.arange(1, 127, dtype=np.uint8)
        block[:4] = codes[np.argmin(np.abs(quants.NVFP4.ue4m3_to_fp32(codes) - abs(float(value))))]
    else:
        at = HALF_AT.get(name, 0)
        block[at:at + 2] = [bits & 255, bits >> 8]


def blocks_of(name, rng):
    size = GGML_QUANT_SIZES[Q[name]][1]
    names, rows = [], []

    def add(label, block, scale):
        block = np.asarray(block, np.uint8).copy()
        if scale is not None:
            put_half(name, block, scale)
        names.append(label)
        rows.append(block)

    for _ in range(24):
        add("random", rng.integers(0, 256, size), rng.normal() * 10.0 ** rng.integers(-4, 1))
    for label, value in (("zero", 0.0), ("minus zero", -0.0), ("one", 1.0), ("minus one", -1.0),
                         ("smallest subnormal", 6e-8), ("smallest normal", 6.104e-5), ("largest", 65504.0),
                         ("minus largest", -65504.0)):
        if name != "NVFP4":
            add("d " + label, rng.integers(0, 256, size), value)
    for label, fill in (("zeros", 0), ("ones", 255), ("0x80", 0x80), ("0x7F", 0x7F), ("0x0F", 0x0F), ("0xF0", 0xF0),
                        ("0x55", 0x55), ("0xAA", 0xAA)):
        add("payload " + label, np.full(size, fill), 0.5)
    add("payload 0,1,2,...", np.arange(size), 0.25)
    if name == "NVFP4":
        # Every code of a scale but the two NaNs, 0x7F and 0xFF.
        codes = [c for c in range(256) if c & 127 != 127]
        for i in range(0, len(codes), 4):
            block = rng.integers(0, 256, size)
            block[:4] = (codes + codes)[i:i + 4]
            add("scales from 0x%02X" % codes[i], block, None)
    for i, index in enumerate(every_entry(name)):
        block = rng.integers(0, 256, size, dtype=np.uint8)
        put_indices(name, block, index)
        add("grid part %d" % i, block, rng.normal())
    if name == "TQ1_0":
        for first in range(0, 256, 32):
            block = rng.integers(0, 256, size)
            block[:32] = range(first, first + 32)
            block[32:48] = block[:16]
            block[48:52] = block[28:32]
            add("bytes from %d" % first, block, 1.0)
    return names, np.stack(rows)


GRID_OF = {"IQ1_M": "IQ1_S"}


def every_entry(name):
    """Indices of all entries of the type's grid, a block's at a time."""
    if not name.startswith("IQ"):
        return []
    n, weights = getattr(quants, GRID_OF.get(name, name)).grid_shape
    return np.arange(n).reshape(-1, 256 // weights)


def put_indices(name, b, index):
    """The indices of a block's grid entries, in the order of its weights."""
    low, high = index & 255, index >> 8
    if name == "IQ2_XXS":
        b[2:66].reshape(8, 8)[:, :4] = low.reshape(8, 4)
    elif name == "IQ2_XS":
        words = b[2:66].view("<u2")
        words[:] = words & 0xFE00 | index
    elif name == "IQ2_S":
        b[2:34] = low
        b[66:74] = (high.reshape(8, 4) << np.array([0, 2, 4, 6])).sum(1)
    elif name == "IQ3_XXS":
        b[2:66] = low
    elif name == "IQ3_S":
        b[2:66] = low
        b[66:74] = (high.reshape(8, 8) << np.arange(8)).sum(1)
    elif name == "IQ1_S":
        b[2:34] = low
        words = b[34:50].view("<u2")
        words[:] = words & 0xF000 | (high.reshape(8, 4) << np.array([0, 3, 6, 9])).sum(1)
    elif name == "IQ1_M":
        b[:32] = low
        b[32:48] = b[32:48] & 0x88 | (high.reshape(16, 2) << np.array([0, 4])).sum(1)


def rows_of(name, rng):
    """Four rows of weights of the order of 0.02, 1, 30 and 0.001."""
    per, size = GGML_QUANT_SIZES[Q[name]]
    wanted = np.array([0.02, 1.0, 30.0, 1e-3])
    if name.startswith("TQ"):
        return quants.quantize((rng.normal(size=(ROWS, COLS)) * wanted[:, None]).astype(np.float32), Q[name])
    out = rng.integers(0, 256, (ROWS, COLS // per, size), dtype=np.uint8)
    for row, deviation in zip(out, wanted):
        for block in row:
            put_half(name, block, 1.0)
            unit = values(name, block).std()
            put_half(name, block, deviation / unit)
    return out.reshape(ROWS, -1)


def values(name, raw):
    return quants.dequantize(np.ascontiguousarray(raw).reshape(1, -1), Q[name]).reshape(-1).astype("<f4")


def write_blocks():
    x = np.fromfile(BLOCKS / "activation.f32", "<f4").astype(np.float64)
    lines = [line for line in (BLOCKS / "blocks.json").read_text().rstrip().removesuffix("]}").split("\n")]
    lines = [line.rstrip(",") for line in lines if not any('{"type": "%s"' % t in line for t in TYPES)]
    head, entries = lines[:lines.index(' "types": [') + 1], lines[lines.index(' "types": [') + 1:]
    for name in TYPES:
        rng = np.random.default_rng([SEED, int(Q[name])])
        per, size = GGML_QUANT_SIZES[Q[name]]
        labels, raw = blocks_of(name, rng)
        rows = rows_of(name, rng)
        wide = values(name, rows).reshape(ROWS, COLS)
        raw.tofile(BLOCKS / (name + ".blocks"))
        values(name, raw).tofile(BLOCKS / (name + ".f32"))
        rows.tofile(BLOCKS / (name + ".rows"))
        wide.tofile(BLOCKS / (name + ".rows.f32"))
        terms = wide.astype(np.float64) * x
        entries.append("  " + json.dumps({
            "type": name, "id": int(Q[name]), "weights_per_block": per, "bytes_per_block": size,
            "n_blocks": len(labels), "blocks": labels, "made_by": "gguf-py",
            "dot_float64": [repr(float(v)) for v in terms.sum(1)],
            "dot_sum_of_absolute_terms": [float("%.9g" % v) for v in np.abs(terms).sum(1)]}))
    head = [line if line.endswith("[") or line == "{" else line + "," for line in head]
    (BLOCKS / "blocks.json").write_text("\n".join(head) + "\n" + ",\n".join(entries) + "]}\n")


if __name__ == "__main__":
    {"grids": write_grids, "blocks": write_blocks}[sys.argv[1]]()
