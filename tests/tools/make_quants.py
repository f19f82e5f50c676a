#!/usr/bin/env python3
"""Small models in the types of make_types.py, beside those in tests/data/golden/quants, and what they say: a plain numpy
implementation of both architectures in float64, on the weights as gguf-py dequantises them (PyPI gguf 0.19.0 and numpy made
what is there). Before it writes anything it computes the files' older variants again, whose numbers are those of Hugging
Face transformers, and ends where they differ by more than 1e-4 of their RMS.

  python tests/tools/make_quants.py

Blocks are random, with scales that give a matrix the deviation that it has in the Q8_0 or F16 file; only the ternary types are
quantised from its weights.
"""
import hashlib
import json
import pathlib

import gguf
import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as Q
from make_types import put_half, values

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "data/golden/quants"
SEED, GREEDY = 4545, 48
# By label the type of each matrix, by the order in which they are named; the last one is of all others.
MIXES = {
    "qwen3moe-256": ("Q8_0", {
        "IQ2": {"gate_exps": "IQ2_XXS", "up_exps": "IQ2_XS", "down_exps": "IQ2_S", "token_embd": "IQ2_S", "": "IQ2_XS"},
        "IQ1_IQ3": {"blk.0.ffn_gate_exps": "IQ1_S", "blk.0.ffn_up_exps": "IQ1_M", "blk.0.ffn_down_exps": "IQ3_XXS",
                    "blk.1.ffn_gate_exps": "IQ3_S", "blk.1.ffn_up_exps": "IQ3_XXS", "blk.1.ffn_down_exps": "IQ1_M",
                    "token_embd": "IQ3_S", "": "IQ3_XXS"},
        "NVFP4": {"": "NVFP4"}}),
    "llama-dense-256": ("F16", {
        "IQ": {"attn_q": "IQ1_S", "attn_k": "IQ2_XXS", "attn_v": "IQ3_S", "attn_output": "IQ2_S", "ffn_gate": "IQ1_M",
               "ffn_up": "IQ3_XXS", "ffn_down": "IQ2_XS", "output": "IQ3_S", "": "IQ2_XXS"},
        "TQ": {"ffn_": "TQ1_0", "token_embd": "TQ1_0", "": "TQ2_0"}}),
}


def read(path):
    """Fields, and by name a tensor's type, dimensions (rows last) and bytes."""
    reader = gguf.GGUFReader(path)
    return reader, {t.name: (Q(t.tensor_type), [int(n) for n in t.shape], np.array(t.data)) for t in reader.tensors}


def dequantised(tensors):
    """The weights, times what NAME.scale says of all of a matrix or of each expert's."""
    out = {}
    for name, (kind, shape, data) in tensors.items():
        if name.endswith("scale"):
            continue
        out[name] = quants.dequantize(data, kind).reshape(shape[::-1]).astype(np.float64)
        if name.removesuffix("weight") + "scale" in tensors:
            scale = tensors[name.removesuffix("weight") + "scale"][2].astype(np.float64)
            out[name] *= scale[:, None, None] if len(shape) == 3 else scale
    return out


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rope(x, positions, base, neox):
    """x [tokens, heads, dim]; pairs of halves, or of neighbours."""
    half = x.shape[-1] // 2
    angle = positions[:, None] * base ** (-np.arange(half) / half)
    c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = (x[..., :half], x[..., half:]) if neox else (x[..., 0::2], x[..., 1::2])
    out = np.empty_like(x)
    if neox:
        out[..., :half], out[..., half:] = a * c - b * s, a * s + b * c
    else:
        out[..., 0::2], out[..., 1::2] = a * c - b * s, a * s + b * c
    return out


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def gated(x, gate, up, down):
    g = x @ gate.T
    return (g / (1 + np.exp(-g)) * (x @ up.T)) @ down.T


class Model:
    def __init__(self, config, weights):
        self.c, self.w = config, weights

    def attention(self, x, i):
        c, w = self.c, lambda name: self.w["blk.%d.%s.weight" % (i, name)]
        n, dim, heads, kv = len(x), c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
        q = (x @ w("attn_q").T).reshape(n, heads, dim)
        k = (x @ w("attn_k").T).reshape(n, kv, dim)
        v = (x @ w("attn_v").T).reshape(n, kv, dim).repeat(heads // kv, 1)
        moe = "num_experts" in c
        if moe:
            q, k = rms_norm(q, w("attn_q_norm"), c["rms_norm_eps"]), rms_norm(k, w("attn_k_norm"), c["rms_norm_eps"])
        base = c["rope_parameters"]["rope_theta"]
        q, k = rope(q, np.arange(n), base, moe), rope(k, np.arange(n), base, moe).repeat(heads // kv, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim)
        scores[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
        return np.einsum("hqk,khd->qhd", softmax(scores), v).reshape(n, heads * dim) @ w("attn_output").T

    def experts(self, x, i, routing):
        c, w = self.c, lambda name: self.w["blk.%d.%s.weight" % (i, name)]
        logits = x @ w("ffn_gate_inp").T
        best = np.argsort(-logits, 1, kind="stable")[:, :c["num_experts_per_tok"] + 1]
        chosen = best[:, :-1]
        share = np.take_along_axis(softmax(logits), chosen, 1)
        share /= share.sum(1, keepdims=True)
        sorted_logits = np.take_along_axis(logits, best, 1)
        routing.append((chosen, share, (sorted_logits[:, -2] - sorted_logits[:, -1]).min()))
        out = np.zeros_like(x)
        for t, (experts, shares) in enumerate(zip(chosen, share)):
            for e, s in zip(experts, shares):
                out[t] += s * gated(x[t], w("ffn_gate_exps")[e], w("ffn_up_exps")[e], w("ffn_down_exps")[e])
        return out

    def run(self, ids):
        """Logits of every position, and by layer the experts, their weights and the least margin."""
        c, w, routing = self.c, self.w, []
        x = w["token_embd.weight"][ids]
        for i in range(c["num_hidden_layers"]):
            x = x + self.attention(rms_norm(x, w["blk.%d.attn_norm.weight" % i], c["rms_norm_eps"]), i)
            y = rms_norm(x, w["blk.%d.ffn_norm.weight" % i], c["rms_norm_eps"])
            x = x + (self.experts(y, i, routing) if "num_experts" in c else
                     gated(y, *(w["blk.%d.ffn_%s.weight" % (i, n)] for n in ("gate", "up", "down"))))
        x = rms_norm(x, w["output_norm.weight"], c["rms_norm_eps"])
        return x @ w.get("output.weight", w["token_embd.weight"]).T, routing


def number(x):
    return float("%.9g" % x)


def prompt_json(model, name, ids):
    logits, routing = model.run(ids)
    out = {"name": name, "logits_last": [number(x) for x in logits[-1]], "argmax_all": [int(i) for i in logits.argmax(1)],
           "greedy": {"ids": [], "margin": []}}
    longer = list(ids)
    for _ in range(GREEDY):
        row = model.run(longer)[0][-1] if len(longer) > len(ids) else logits[-1]
        second, first = np.sort(row)[-2:]
        longer.append(int(row.argmax()))
        out["greedy"]["ids"].append(longer[-1])
        out["greedy"]["margin"].append(number(first - second))
    if routing:
        out["routing_min_margin"] = number(min(margin for _, _, margin in routing))
        out["routing"] = [{"layer": i, "experts": chosen.tolist(), "weights": [[number(x) for x in row] for row in share]}
                          for i, (chosen, share, _) in enumerate(routing)]
    return out


def check_known(golden):
    """The numbers that transformers gave for the older files."""
    for variant in golden["variants"]:
        path = FOLDER / variant["file"]
        if not path.exists() or variant["type"] in MIXES[golden["name"]][1]:
            continue
        model = Model(golden["config"], dequantised(read(path)[1]))
        for prompt, expected in zip(golden["prompts"], variant["prompts"]):
            last, known = model.run(prompt["ids"])[0][-1], np.array(expected["logits_last"])
            off = np.abs(last - known).max() / np.sqrt((known ** 2).mean())
            assert off < 1e-4, (path.name, prompt["name"], off)
            assert [int(i) for i in model.run(prompt["ids"])[0].argmax(1)] == expected["argmax_all"]


def random_blocks(name, weights, rng):
    """Blocks of the type with the deviation of the weights."""
    per, size = GGML_QUANT_SIZES[Q[name]]
    if name.startswith("TQ"):
        return quants.quantize(weights.astype(np.float32), Q[name])
    raw = rng.integers(0, 256, (weights.size // per, size), dtype=np.uint8)
    for block in raw:
        put_half(name, block, 1.0)
    unit, wanted = values(name, raw).std(), weights.std()
    for block in raw:
        # Mixed signs: shifted grids have a mean.
        put_half(name, block, wanted / unit * rng.uniform(0.7, 1.3) * rng.choice([-1, 1]))
        if name == "NVFP4":
            block[:4] = np.clip(block[:4] + rng.integers(-4, 5, 4), 1, 126)
    return raw.reshape(*weights.shape[:-1], -1)


def write_variant(stem, base, label, mix):
    reader, tensors = read(FOLDER / ("%s.%s.gguf" % (stem, base)))
    plain, kinds = dequantised(tensors), {}
    path = FOLDER / ("%s.%s.gguf" % (stem, label))
    rng = np.random.default_rng([SEED, len(label), sum(label.encode())])
    writer = gguf.GGUFWriter(path, bytes(reader.get_field("general.architecture").parts[-1]).decode())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key not in ("general.architecture", "general.file_type"):
            sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], sub_type=sub)
    for name, (kind, _, data) in tensors.items():
        kinds[name] = kind.name
        if kind == Q.F32:
            writer.add_tensor(name, data)
            continue
        kinds[name] = next(t for part, t in mix.items() if part in name)
        weights = plain[name]
        if kinds[name] == "NVFP4" and name.startswith("blk."):
            # As converted checkpoints have it: a scale of the tensor, or of each expert, below those of the blocks.
            scale = rng.uniform(0.5, 2, len(weights) if weights.ndim == 3 else 1).astype(np.float32) * np.float32(1e-3)
            base = name.removesuffix("weight")
            writer.add_tensor(base + "scale", scale)
            writer.add_tensor(base + "input_scale", np.full(scale.shape, 0.01, np.float32))
            weights = weights / scale.mean()
        writer.add_tensor(name, random_blocks(kinds[name], weights, rng), raw_dtype=Q[kinds[name]])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, kinds


def main():
    for stem, (base, mixes) in MIXES.items():
        file = FOLDER / (stem + ".json")
        golden = json.loads(file.read_text())
        check_known(golden)
        text = file.read_text().rstrip()
        known = [v["type"] for v in golden["variants"]]
        assert text.endswith("]}") and not set(known) & set(mixes), "take the mixes out of %s first" % file
        text = text[:-2]
        for label, mix in mixes.items():
            path, kinds = write_variant(stem, base, label, mix)
            model = Model(golden["config"], dequantised(read(path)[1]))
            data = path.read_bytes()
            entry = {"type": label, "file": path.name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(),
                     "made_by": "tests/tools/make_quants.py", "tensor_types": kinds}
            prompts = [prompt_json(model, p["name"], p["ids"]) for p in golden["prompts"]]
            print(path.name, len(data), [p.get("routing_min_margin") for p in prompts],
                  [sum(m >= 2e-3 for m in p["greedy"]["margin"]) for p in prompts],
                  [len(set(p["greedy"]["ids"])) for p in prompts])
            text += ",\n  " + json.dumps(entry)[:-1] + ', "prompts": [\n    '
            text += ",\n    ".join(json.dumps(p) for p in prompts) + "]}"
        file.write_text(text + "]}\n")


if __name__ == "__main__":
    main()
