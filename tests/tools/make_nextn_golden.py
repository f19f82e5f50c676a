#!/usr/bin/env python3
"""Makes tests/data/golden/heads/blocks-glm4moe.json: what models with two and three layers for drafts draft, chains and trees. Needs numpy.

  python tests/tools/make_nextn_golden.py [FOLDER]

The models are those of make_nextn_blocks.py, from FOLDER/nextn-glm4moe.f32.gguf. Everything is computed here in float64, from the GGUF
file alone and without any cache: each call computes all rows of a block. What HEADS.md of the golden data says of one layer is checked first,
against nextn-glm4moe.json, which torch computed. Several layers are chained as in DeepSeek-V3, section 2.2: row t of block b reads token t
and the state that block b - 1 gives for token t - 1 (block 0: the target's); block i drafts the i-th token, and what lies beyond the last
block is drafted by that one, from its own states. Prompts for which a choice is close are left aside.
"""
import heapq
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

TOOLS = Path(__file__).resolve().parent
sys.path.insert(0, str(TOOLS.parent / "integration"))
from gguf_file import Gguf  # noqa: E402

CHAIN, CHAIN_AFTER, ACCEPT = 6, 4, (2, 0)
LEVELS, TOP, TOTAL = 4, 4, 16
MIN_TOKEN, MIN_TREE, MIN_ROUTE = 2e-3, 4e-4, 3e-5
N_BASE = 384  # ordinary tokens; the others are special
LENGTHS = {"one": 1, "two": 2, "seven": 7, "thirty": 30}


class Close(Exception):
    pass


def need(margin, least):
    if margin < least:
        raise Close


def silu(x):
    return x / (1 + np.exp(-x))


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def best(logits):
    second, first = np.argsort(logits)[-2:]
    need(logits[first] - logits[second], MIN_TOKEN)
    return int(first)


class Model:
    def __init__(self, path):
        file = Gguf(path)
        self.k = {name.split(".", 1)[1]: value for name, (_, value) in file.keys.items() if name.startswith("glm4moe.")}
        self.t = {name: np.frombuffer(data, "<f4").astype(np.float64).reshape(ne[::-1]) for name, (ne, kind, data) in file.tensors.items()}
        self.n_blocks = self.k["nextn_predict_layers"]
        self.n_layers = self.k["block_count"] - self.n_blocks

    def linear(self, x, name):
        return x @ self.t[name + ".weight"].T + self.t.get(name + ".bias", 0)

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.k["attention.layer_norm_rms_epsilon"]) * self.t[name + ".weight"]

    def rope(self, x):
        """x: [rows, heads, width]; turns the pairs (i, i + half) of the first values."""
        n = self.k["rope.dimension_count"]
        angle = np.arange(len(x))[:, None] / self.k["rope.freq_base"] ** (np.arange(0, n, 2) / n)
        c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
        a, b = x[..., :n // 2], x[..., n // 2:n]
        return np.concatenate([a * c - b * s, b * c + a * s, x[..., n:]], -1)

    def attention(self, x, layer):
        heads, kv, width = (self.k["attention." + name] for name in ("head_count", "head_count_kv", "key_length"))
        q = self.rope(self.norm(self.linear(x, layer + "attn_q").reshape(len(x), heads, width), layer + "attn_q_norm"))
        k = self.rope(self.norm(self.linear(x, layer + "attn_k").reshape(len(x), kv, width), layer + "attn_k_norm"))
        v = self.linear(x, layer + "attn_v").reshape(len(x), kv, width)
        out = np.empty_like(q)
        for h in range(heads):
            own = h * kv // heads
            score = q[:, h] @ k[:, own].T / np.sqrt(width)
            score[np.triu_indices(len(x), 1)] = -np.inf
            out[:, h] = np.exp(log_softmax(score)) @ v[:, own]
        return self.linear(out.reshape(len(x), -1), layer + "attn_output")

    def gated(self, x, gate, up, down):
        return (silu(x @ gate.T) * (x @ up.T)) @ down.T

    def feed_forward(self, x, layer):
        names = ("ffn_gate", "ffn_up", "ffn_down")
        if layer + "ffn_gate_inp.weight" not in self.t:
            return self.gated(x, *(self.t[layer + name + ".weight"] for name in names))
        out = self.gated(x, *(self.t[layer + name + "_shexp.weight"] for name in names))
        used = self.k["expert_used_count"]
        p = 1 / (1 + np.exp(-self.linear(x, layer + "ffn_gate_inp")))
        biased = p + self.t[layer + "exp_probs_b.bias"]
        order = np.argsort(-biased, -1)
        ranked = np.take_along_axis(biased, order, -1)
        need((ranked[:, used - 1] - ranked[:, used]).min(), MIN_ROUTE)
        for row in range(len(x)):
            chosen = order[row, :used]
            weights = p[row, chosen] / p[row, chosen].sum() * self.k["expert_weights_scale"]
            for weight, expert in zip(weights, chosen):
                out[row] += weight * self.gated(x[row], *(self.t[layer + name + "_exps.weight"][expert] for name in names))
        return out

    def block(self, x, number):
        layer = f"blk.{number}."
        x = x + self.attention(self.norm(x, layer + "attn_norm"), layer)
        return x + self.feed_forward(self.norm(x, layer + "post_attention_norm"), layer)

    def target(self, ids):
        """The state behind each token, and logits behind the last."""
        x = self.t["token_embd.weight"][ids]
        for number in range(self.n_layers):
            x = self.block(x, number)
        h = self.norm(x, "output_norm")
        return h, h[-1] @ self.t["output.weight"].T

    def draft(self, index, tokens, states):
        """Rows of a block for drafts: the state that it gives for each, and logits."""
        layer = f"blk.{self.n_layers + index}."
        e = self.norm(self.t[layer + "nextn.embed_tokens.weight"][tokens], layer + "nextn.enorm")
        x = self.linear(np.concatenate([e, self.norm(states, layer + "nextn.hnorm")], -1), layer + "nextn.eh_proj")
        y = self.norm(self.block(x, self.n_layers + index), layer + "nextn.shared_head_norm")
        return y, y @ self.t[layer + "nextn.shared_head_head.weight"].T


def behind(model, tokens, hidden, drafted):
    """The state and logits behind the session's tokens, of which the last has no state in hidden yet, and the drafted ones."""
    tokens, n, states = tokens + drafted, len(tokens), {t: h for t, h in enumerate(hidden)}
    for index in range(min(len(drafted) + 1, model.n_blocks)):
        first, last = index + 1, n - 1 + min(index, len(drafted))
        if index + 1 == model.n_blocks:
            last = len(tokens) - 1
        rows = [states[t - 1] for t in range(first, min(last, n - 1 + index) + 1)]
        y, logits = model.draft(index, tokens[first:first + len(rows)], np.array(rows))
        while first + len(rows) <= last:  # the last block, from its own states
            rows.append(y[-1])
            y, logits = model.draft(index, tokens[first:first + len(rows)], np.array(rows))
        states = {first + i: state for i, state in enumerate(y)}
    return y[-1], logits[-1]


def chain(model, tokens, hidden, steps):
    out, drafted = [], []
    for _ in range(steps):
        state, logits = behind(model, tokens, hidden, drafted)
        drafted = drafted + [best(logits)]
        out.append({"token_out": drafted[-1], "hidden": state, "logits": logits})
    return out


def tree(model, tokens, hidden):
    """EAGLE-2's dynamic tree: the best TOP of each level are expanded, and the best TOTAL of all candidates are kept."""
    nodes, beam, margin = [], [(-1, 0.0, [])], []
    for level in range(LEVELS):
        first = len(nodes)
        for parent, score, path in beam:
            logp = log_softmax(behind(model, tokens, hidden, path)[1])
            order = np.argsort(-logp)
            margin.append(logp[order[TOP - 1]] - logp[order[TOP]])
            nodes += [(parent, int(t), score + logp[t], path + [int(t)]) for t in order[:TOP]]
        ranked = heapq.nlargest(TOP + 1, range(first, len(nodes)), key=lambda i: nodes[i][2])
        margin += [nodes[a][2] - nodes[b][2] for a, b in zip(ranked, ranked[1:])][TOP - 1:]
        beam = [(i, nodes[i][2], nodes[i][3]) for i in ranked[:TOP]]
    ranked = sorted(range(len(nodes)), key=lambda i: -nodes[i][2])
    need(min(margin + [nodes[ranked[TOTAL - 1]][2] - nodes[ranked[TOTAL]][2]]), MIN_TREE)
    kept = sorted(ranked[:TOTAL])
    return {"tokens": [nodes[i][1] for i in kept], "parents": [kept.index(nodes[i][0]) if nodes[i][0] >= 0 else -1 for i in kept],
            "scores": [round(float(nodes[i][2]), 6) for i in kept]}


def brief(rows):
    return [{"token_out": row["token_out"]} for row in rows]


def prompt(model, name, ids):
    hidden, logits = model.target(ids)
    following = best(logits)
    rows = chain(model, ids + [following], hidden, CHAIN)
    out = {"name": name, "ids": ids, "next": following, "chain": brief(rows), "tree": tree(model, ids + [following], hidden), "after_accept": []}
    if len({row["token_out"] for row in rows}) < 3:
        raise Close
    for n in ACCEPT:
        kept = ids + [following] + [row["token_out"] for row in rows[:n]]
        states, logits = model.target(kept)
        bonus = best(logits)
        out["after_accept"].append({"accepted": n, "ids": kept, "bonus": bonus,
                                    "chain": brief(chain(model, kept + [bonus], states, CHAIN_AFTER))})
    return out


def check_one_layer(folder):
    """The golden chains of the model with one layer, within the tolerance that their page names."""
    model = Model(folder / "nextn-glm4moe.f32.gguf")
    for golden in json.loads((folder / "nextn-glm4moe.json").read_text())["prompts"]:
        hidden, _ = model.target(golden["ids"])
        rows = chain(model, golden["ids"] + [golden["next"]], hidden, len(golden["chain"]))
        for got, want in zip(rows, golden["chain"]):
            assert got["token_out"] == want["token_out"], golden["name"]
            for what in ("hidden", "logits"):
                a = np.array(want[what])
                worst = np.abs(got[what] - a).max() / np.sqrt((a * a).mean())
                assert worst < 5e-4, (golden["name"], what, worst)


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else TOOLS.parent / "data/golden/heads"
    check_one_layer(folder)
    random, out = np.random.default_rng(31), {"kind": "nextn blocks", "target": "nextn-glm4moe.f32.gguf", "blocks": {}}
    for n in (2, 3):
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "blocks.gguf"
            subprocess.run([sys.executable, TOOLS / "make_nextn_blocks.py", folder / "nextn-glm4moe.f32.gguf", path, str(n)], check=True)
            model = Model(path)
        prompts = out["blocks"][str(n)] = []
        for name, length in LENGTHS.items():
            while len(prompts) < len(LENGTHS) and (not prompts or prompts[-1]["name"] != name):
                try:
                    prompts.append(prompt(model, name, random.integers(0, N_BASE, length).tolist()))
                except Close:
                    pass
    (folder / "blocks-glm4moe.json").write_text(json.dumps(out, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
