"""The same model with its tensors in other forms: fused, single experts, 16-bit vectors. For tests: what an engine computes
with must not depend on the form. Tensors are as gguf_file.Gguf has them: (ne, type id, bytes)."""
import math
import re
import struct
import zlib

from gguf_file import Gguf

F32, F16, BF16 = 0, 1, 30
# Type id: weights and bytes of a block.
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84), 11: (256, 110),
          12: (256, 144), 13: (256, 176), 14: (256, 210), 16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
          23: (256, 136), 24: (1, 1), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17), 40: (64, 36)}


def size(ne, kind):
    weights, each = BLOCKS[kind]
    return math.prod(ne) // weights * each


def trimmed(tensor):
    """Without the padding behind it."""
    ne, kind, data = tensor
    return ne, kind, data[:size(ne, kind)]


def stack(tensors, bias):
    """The rows of several tensors, matrix by matrix: along ne[1], of a bias along ne[0]."""
    tensors = [trimmed(t) for t in tensors]
    axis = 0 if bias else 1
    kind = tensors[0][1]
    if any(t[1] != kind for t in tensors):
        return None
    ne = list(tensors[0][0])
    ne[axis] = sum(t[0][axis] for t in tensors)
    n = math.prod(ne[axis + 1:])
    each = [len(t[2]) // n for t in tensors]
    return ne, kind, b"".join(t[2][i * b:(i + 1) * b] for i in range(n) for t, b in zip(tensors, each))


def equal_scales(g):
    """One scale for the matrices that can be fused: a fused tensor has no more. Returns how many were changed."""
    done = 0
    for name in list(g.tensors):
        m = re.fullmatch(r"(blk\.\d+)\.(?:attn_(?:k|v)|ffn_up(_exps|_shexp|))\.scale", name)
        first = m and f"{m[1]}.{'attn_q' if m[2] is None else 'ffn_gate' + m[2]}.scale"
        if first in g.tensors:
            g.tensors[name] = g.tensors[first]
            done += 1
    return done


def one_scale(g, block, names):
    """Whether the matrices have one scale, or none has any."""
    scales = [g.tensors.get(f"{block}.{n}.scale") for n in names]
    return all(s is None for s in scales) or all(s is not None and trimmed(s) == trimmed(scales[0]) for s in scales)


def can_be_fused(g):
    """Whether any block has queries, keys and values, or gate and up, of one type, or experts."""
    def one_type(block, names):
        tensors = [g.tensors.get(f"{block}.{n}.weight") for n in names]
        return all(tensors) and len({t[1] for t in tensors}) == 1
    blocks = {name.rpartition(".attn_norm")[0] for name in g.tensors if ".attn_norm" in name}
    return any("_exps." in name for name in g.tensors) or any(
        one_type(b, ("attn_q", "attn_k", "attn_v")) or one_type(b, ("ffn_gate", "ffn_up")) for b in blocks)


def fuse(g, first, names, fused):
    """Replaces blk.N.NAMES by blk.N.FUSED, weights, biases and scales, where all are there, of one type and scale. Returns how
    many."""
    out, done = {}, 0
    for name, tensor in g.tensors.items():
        m = re.fullmatch(rf"(blk\.\d+)\.({'|'.join(names)})\.(weight|bias|scale|input_scale)", name)
        parts = [g.tensors.get(f"{m[1]}.{n}.{m[3]}") for n in names] if m else [None]
        if all(parts) and not one_scale(g, m[1], names):
            parts = [None]
        whole = None if not all(parts) else trimmed(parts[0]) if "scale" in m[3] else stack(parts, m[3] == "bias")
        if whole is None:
            out[name] = tensor
        elif m[2] == first:
            out[f"{m[1]}.{fused}.{m[3]}"] = whole
            done += 1
    g.tensors = out
    return done


def qkv(g):
    return fuse(g, "attn_q", ("attn_q", "attn_k", "attn_v"), "attn_qkv")


def gate_up(g, suffix):
    return fuse(g, "ffn_gate" + suffix, ("ffn_gate" + suffix, "ffn_up" + suffix), "ffn_gate_up" + suffix)


def all_in_up(g, suffix):
    """As files of Phi-3 and GLM-4 have it: ffn_up holds the rows of gate too. None of them has scales."""
    if any(name.endswith(f"ffn_up{suffix}.scale") for name in g.tensors):
        return 0
    return fuse(g, "ffn_gate" + suffix, ("ffn_gate" + suffix, "ffn_up" + suffix), "ffn_up" + suffix)


def single(g, parts="gate|up|down"):
    """One tensor for each expert."""
    out, done = {}, 0
    for name, tensor in g.tensors.items():
        m = re.fullmatch(rf"(blk\.\d+\.ffn_(?:{parts}))_exps\.(weight|bias|scale|input_scale)", name)
        if not m:
            out[name] = tensor
            continue
        ne, kind, data = trimmed(tensor)
        each = len(data) // ne[-1]
        for e in range(ne[-1]):
            out[f"{m[1]}.{e}.{m[2]}"] = ne[:-1] or [1], kind, data[e * each:(e + 1) * each]
        done += 1
    g.tensors = out
    return done


def is_vector(name, tensor):
    """What the engine adds, multiplies or compares value by value: no matrix."""
    return tensor[1] in (F32, F16, BF16) and not re.search(
        r"(token_embd|output|attn_(q|k|v|qkv|output|gate|q_a|q_b|kv_a_mqa|kv_b|k_b|v_b)|ffn_.*|ssm_(in|out|ba|alpha|beta))\.weight$", name) \
        or re.search(r"ffn_norm\.weight$", name) is not None


def widened(kind, data):
    """16-bit numbers as float32."""
    if kind == F16:
        return struct.pack(f"<{len(data) // 2}f", *struct.unpack(f"<{len(data) // 2}e", data))
    return b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))


def narrowed(kind, data):
    """float32 as 16-bit numbers: any that are near, since what is compared is made of them."""
    values = struct.unpack(f"<{len(data) // 4}f", data)
    if kind == F16:
        return struct.pack(f"<{len(values)}e", *values)
    return b"".join(data[i + 2:i + 4] for i in range(0, len(data), 4))


def narrow_vectors(g, kind):
    """(the vectors as F16 or BF16, the same values as F32), two models that must compute the same. Returns both and how many."""
    small, large, done = Gguf(), Gguf(), 0
    for out in (small, large):
        out.keys, out.tensors = dict(g.keys), dict(g.tensors)
    for name, tensor in g.tensors.items():
        if not is_vector(name, tensor):
            continue
        ne, _, data = trimmed(tensor)
        data = narrowed(kind, data)
        small.tensors[name] = ne, kind, data
        large.tensors[name] = ne, F32, widened(kind, data)
        done += 1
    return small, large, done


def bias_values(name, n):
    """What a bias of that name has as values in the tests: float32 between -0.5 and 0.5, each from its place."""
    return [(zlib.crc32(f"{name} {i}".encode()) % 2001 - 1000) / 2048 for i in range(n)]


def add_bias(g, name, n, kind=F32):
    data = struct.pack(f"<{n}f", *bias_values(name, n))
    g.tensors[name] = [n], kind, data if kind == F32 else narrowed(kind, data)
