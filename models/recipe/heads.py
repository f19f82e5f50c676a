"""Train a head that drafts for the target: EAGLE-3, or a layer for multi-token prediction in the target's own file.

  heads.py eagle3 --target TARGET.gguf --data DIR [DIR2] --out HEAD.gguf [--minutes 25]
  heads.py mtp --target TARGET.gguf --data DIR [DIR2] --out MODEL.gguf [--minutes 25]

DIR is that of tok.py, DIR2 that of answers.py: steps take them in turn, and the last one is measured. The target's weights are those of
the file, dequantised, and do not change. Both heads are trained as they draft (the training-time test of EAGLE-3, arXiv 2503.01840,
section 3): step 0 reads the target's states, each further step the states of the step before, and attention sees what it will see: the
target's rows up to where the draft began, then the draft's. The target's probabilities are the labels, and its states a second aim
(latent consistency). What projects into the head begins as the least-squares map to the stream that the target itself has there. The
EAGLE-3 head shares the target's embedding and output. MODEL.gguf is TARGET.gguf and one block more (qwen3moe with the tensors of
nextn); other programs than Outrider do not read that. Runs on the CPU in float32; the learning rate follows the clock.
"""
import argparse
import json
import math
import time
from pathlib import Path

import gguf
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from export import add, finish, sizes
from gguf import GGMLQuantizationType as Q
from model import Experts, Optimizer
from reference import Reference
from train import Data, TARGET, schedule

TAPS = (1, 3, 5)  # residual streams before these layers
STEPS, FADE = 3, 0.8  # drafted tokens in training, and the weight of each next one
EAGLE_FF = 512
LATENT = 0.3  # weight of the distance between the head's states and the target's


def norm(x, w):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + TARGET.eps) * w


class Rope:
    """pairs: neighbours, as EAGLE-3 files have them, or halves, as Qwen's."""

    def __init__(self, neighbours):
        frequency = TARGET.rope_base ** (-torch.arange(0, TARGET.head_dim, 2).float() / TARGET.head_dim)
        angle = torch.outer(torch.arange(TARGET.context).float(), frequency)
        self.cos, self.sin, self.neighbours = angle.cos()[:, None], angle.sin()[:, None], neighbours

    def __call__(self, x):
        """x: [batch, position, head, head_dim]."""
        cos, sin = self.cos[:x.shape[1]], self.sin[:x.shape[1]]
        if self.neighbours:
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Target:
    """The target's states for a batch of sequences."""

    def __init__(self, path):
        self.ref = Reference(path)
        self.w, self.rope = self.ref.w, Rope(False)

    def block(self, i, x):
        w, (b, s, d) = lambda name: self.w[f"blk.{i}.{name}"], x.shape
        h = norm(x, w("attn_norm"))
        heads = lambda name, n: (h @ w(name).t()).view(b, s, n, TARGET.head_dim)
        q = self.rope(norm(heads("attn_q", TARGET.heads), w("attn_q_norm")))
        k = self.rope(norm(heads("attn_k", TARGET.kv_heads), w("attn_k_norm")))
        v = heads("attn_v", TARGET.kv_heads)
        k, v = (t.repeat_interleave(TARGET.heads // TARGET.kv_heads, 2) for t in (k, v))
        a = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        x = x + a.transpose(1, 2).reshape(b, s, -1) @ w("attn_output").t()
        h = norm(x, w("ffn_norm"))
        return x + self.ref.moe(f"blk.{i}.", h.view(-1, d), None).view(b, s, d)

    @torch.no_grad()
    def __call__(self, ids):
        """(taps [batch, position, 3 dim], the last residual stream, states after the output norm)"""
        x, taps = F.embedding(ids, self.w["token_embd"]), []
        for i in range(TARGET.layers):
            if i in TAPS:
                taps.append(x)
            x = self.block(i, x)
        return torch.cat(taps, -1), x, norm(x, self.w["output_norm"])


class Head(nn.Module):
    """What both kinds share: one layer of attention whose rows may be of several steps."""

    def __init__(self, target, neighbours, inputs):
        super().__init__()
        c, self.target, self.rope = TARGET, [target], Rope(neighbours)
        matrix = lambda rows, cols: nn.Parameter(torch.randn(rows, cols) * 0.02)
        self.attn_q, self.attn_k = matrix(c.heads * c.head_dim, inputs), matrix(c.kv_heads * c.head_dim, inputs)
        self.attn_v, self.attn_output = matrix(c.kv_heads * c.head_dim, inputs), matrix(c.dim, c.heads * c.head_dim)
        self.ones = lambda n: nn.Parameter(torch.ones(n))
        self.matrix = matrix

    def qk(self, q, k):
        return q, k

    def attend(self, h, step, past):
        """h: [batch, position, inputs] rows of a step. Row q sees rows of step 0 up to q - step, those of the steps between on
        its own draft, and itself. past: (k, v) of each step so far."""
        c, (b, s, _) = TARGET, h.shape
        q, k, v = (( h @ w.t()).view(b, s, -1, c.head_dim) for w in (self.attn_q, self.attn_k, self.attn_v))
        q, k = self.qk(q, k)
        q, k = self.rope(q), self.rope(k)
        k, v = (t.repeat_interleave(c.heads // c.kv_heads, 2) for t in (k, v))
        past.append((k, v))
        scale = c.head_dim ** -0.5
        scores = torch.einsum("bqhd,bkhd->bhqk", q, past[0][0]) * scale
        seen = torch.arange(s)[None] <= torch.arange(s)[:, None] - step
        scores = [scores.masked_fill(~seen, -math.inf)]
        for i in range(1, step + 1):  # the row of step i lies step - i positions before
            key = F.pad(past[i][0], (0, 0, 0, 0, step - i, 0))[:, :s]
            scores.append((q * key).sum(-1).transpose(1, 2)[..., None] * scale)
        weights = torch.softmax(torch.cat(scores, -1), -1)
        out = torch.einsum("bhqk,bkhd->bqhd", weights[..., :s], past[0][1])
        for i in range(1, step + 1):
            value = F.pad(past[i][1], (0, 0, 0, 0, step - i, 0))[:, :s]
            out = out + weights[..., s + i - 1].transpose(1, 2)[..., None] * value
        return out.reshape(b, s, -1) @ self.attn_output.t()


class Eagle(Head):
    def __init__(self, target):
        d = TARGET.dim
        super().__init__(target, True, 2 * d)
        self.fc = nn.Parameter(torch.cat((torch.zeros(d, 2 * d), torch.eye(d)), 1))
        self.attn_norm, self.attn_norm_2, self.ffn_norm, self.output_norm = (self.ones(d) for _ in range(4))
        self.ffn_gate, self.ffn_up, self.ffn_down = self.matrix(EAGLE_FF, d), self.matrix(EAGLE_FF, d), self.matrix(d, EAGLE_FF)
        with torch.no_grad():
            self.output_norm.copy_(target.w["output_norm"])

    @torch.no_grad()
    def fit(self, streams):
        """The state that the target itself has one token later, as well as a linear map tells it."""
        self.fc.copy_(least_squares(((taps[:, :-1], last[:, 1:]) for _, taps, last, _ in streams)))

    def begin(self, taps, _):
        return taps @ self.fc.t()

    def row(self, embedding, state, step, past):
        """(state after the head's norm, state for the next step)"""
        h = torch.cat((norm(embedding, self.attn_norm), norm(state, self.attn_norm_2)), -1)
        u = state + self.attend(h, step, past)
        h = norm(u, self.ffn_norm)
        u = u + (F.silu(h @ self.ffn_gate.t()) * (h @ self.ffn_up.t())) @ self.ffn_down.t()
        return norm(u, self.output_norm), u


class Mtp(Head):
    """A block like the target's last one, which it begins as."""

    def __init__(self, target):
        d, last = TARGET.dim, f"blk.{TARGET.layers - 1}."
        super().__init__(target, False, d)
        self.eh_proj = nn.Parameter(torch.cat((torch.randn(d, d) * 0.02, torch.eye(d)), 1))
        self.enorm, self.hnorm = self.ones(d), self.ones(d)
        self.shared_head_norm = nn.Parameter(target.w["output_norm"].clone())
        own = {name.removeprefix(last): w for name, w in target.w.items() if name.startswith(last)}
        self.ffn_gu_exps = nn.Parameter(torch.cat((own.pop("ffn_gate_exps"), own.pop("ffn_up_exps")), 1))
        for name, w in own.items():
            setattr(self, name, nn.Parameter(w.clone()))

    def qk(self, q, k):
        return norm(q, self.attn_q_norm), norm(k, self.attn_k_norm)

    @torch.no_grad()
    def fit(self, streams):
        """The residual stream that the target itself has before its last layer, one token later."""
        self.eh_proj.copy_(least_squares(((torch.cat((norm(F.embedding(ids[:, 1:], self.target[0].w["token_embd"]), self.enorm),
                                                      norm(states[:, :-1], self.hnorm)), -1), taps[:, 1:, -TARGET.dim:])
                                          for ids, taps, _, states in streams)))

    def begin(self, _, states):
        return states

    def row(self, embedding, state, step, past):
        x = torch.cat((norm(embedding, self.enorm), norm(state, self.hnorm)), -1) @ self.eh_proj.t()
        x = x + self.attend(norm(x, self.attn_norm), step, past)
        h = norm(x, self.ffn_norm).reshape(-1, TARGET.dim)
        weight, chosen = torch.softmax(h @ self.ffn_gate_inp.t(), -1).topk(TARGET.top_k, -1)
        y = Experts.apply(h, weight / weight.sum(-1, keepdim=True), chosen, self.ffn_gu_exps, self.ffn_down_exps)
        y = norm(x + y.view(x.shape), self.shared_head_norm)
        return y, y


def least_squares(pairs):
    """The matrix [outputs, inputs] that maps the first of each pair to the second as well as it can."""
    squares = products = 0
    for x, y in pairs:
        x, y = x.flatten(0, 1).double(), y.flatten(0, 1).double()
        squares, products = squares + x.t() @ x, products + x.t() @ y
    ridge = 1e-3 * squares.diagonal().mean() * torch.eye(len(squares))
    return torch.linalg.solve(squares + ridge, products).t().float()


def unroll(head, ids, steps=STEPS):
    """Yields (logits, the target's probabilities for the same token, distance of the states) of each step. Row q of a step drafts
    the token q + 2."""
    target = head.target[0]
    taps, _, states = target(ids)
    with torch.no_grad():
        probabilities = torch.softmax(states[:, 1:] @ target.w["output"].t(), -1)
    embedding = F.embedding(ids, target.w["token_embd"])[:, 1:]
    state, past = head.begin(taps, states)[:, :-1], []
    for step in range(steps):
        normed, after = head.row(embedding, state, step, past)
        # The first rows of a step have no draft behind which they could come.
        distance = (normed - states[:, 1:])[:, step:].square().mean() / states.square().mean()
        yield (normed @ target.w["output"].t())[:, step:], probabilities[:, step:], distance
        state = F.pad(after, (0, 0, 1, 0))[:, :-1]


def train(head, a):
    sources = [Data(folder, "train", 7) for folder in a.data]
    optimizer, began, step, fraction, mean = Optimizer(head, 0.6 * a.lr, a.lr), time.time(), 0, 0.0, None
    while fraction < 1:
        ids, _ = sources[step % len(sources)].batch(a.batch, a.window)
        entropies, latent = [], 0
        for i, (logits, wanted, distance) in enumerate(unroll(head, ids)):
            entropies.append(-(wanted * torch.log_softmax(logits, -1)).sum(-1).mean())
            latent = latent + FADE ** i * distance
        (sum(FADE ** i * entropy for i, entropy in enumerate(entropies)) + LATENT * latent).backward()
        optimizer.step(schedule(step, fraction))
        optimizer.zero()
        fraction = (step + 1) / a.steps if a.steps else (time.time() - began) / (60 * a.minutes)
        step, now = step + 1, [entropy.item() for entropy in entropies] + [latent.item()]
        mean = now if mean is None else [0.95 * m + 0.05 * n for m, n in zip(mean, now)]
        if step % 20 == 0 or step == 1:
            print(json.dumps({"step": step, "sec": round(time.time() - began), "loss": [round(m, 3) for m in mean]}), flush=True)
    return step


@torch.no_grad()
def agreement(head, a):
    """For each depth: how often the drafted token is the target's own, where the text before is the data's."""
    data, found = Data(a.data[-1], "held", 11), []
    for _ in range(4):
        ids, _ = data.batch(4, a.window)
        found.append([(logits.argmax(-1) == wanted.argmax(-1)).float().mean().item() for logits, wanted, _ in unroll(head, ids, 6)])
    return [round(float(x), 3) for x in np.mean(found, 0)]


def keys_of(reader, writer, skip=()):
    """Copies the keys of a file."""
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in skip or field.name == "general.architecture":
            continue
        element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=element)


def write_eagle3(head, a):
    reader, writer, c = gguf.GGUFReader(str(a.target)), gguf.GGUFWriter(str(a.out), "eagle3"), TARGET
    keys_of(reader, writer, skip=[name for name in reader.fields if not name.startswith("tokenizer.")])
    writer.add_name("Outrider demo EAGLE-3 head")
    sizes(writer, c, 1, EAGLE_FF)
    writer.add_array("eagle3.target_layers", list(TAPS))
    writer.add_uint32("eagle3.target_hidden_size", c.dim)
    for name, value in head.named_parameters():
        own = name in ("fc", "output_norm")
        add(writer, f"{name}.weight" if own else f"blk.0.{name}.weight", value.detach().numpy(), Q.Q8_0)
    finish(writer)


def write_mtp(head, a):
    reader, writer = gguf.GGUFReader(str(a.target)), gguf.GGUFWriter(str(a.out), "qwen3moe")
    keys_of(reader, writer, skip=("qwen3moe.block_count",))
    writer.add_block_count(TARGET.layers + 1)
    writer.add_uint32("qwen3moe.nextn_predict_layers", 1)
    for t in reader.tensors:
        writer.add_tensor(t.name, t.data, raw_dtype=t.tensor_type)
    block = f"blk.{TARGET.layers}."
    for name, value in head.named_parameters():
        value = value.detach().numpy()
        if name == "ffn_gu_exps":
            add(writer, block + "ffn_gate_exps.weight", value[:, :TARGET.ffn], Q.Q8_0)
            add(writer, block + "ffn_up_exps.weight", value[:, TARGET.ffn:], Q.Q8_0)
        else:
            of_head = name in ("eh_proj", "enorm", "hnorm", "shared_head_norm")
            add(writer, f"{block}{'nextn.' if of_head else ''}{name}.weight", value, Q.Q8_0)
    finish(writer)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("kind", choices=("eagle3", "mtp"))
    p.add_argument("--target", type=Path, required=True)
    p.add_argument("--data", type=Path, nargs="+", required=True)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--minutes", type=float, default=25)
    p.add_argument("--steps", type=int, default=0, help="the schedule follows the steps, not the clock")
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--window", type=int, default=256)
    p.add_argument("--lr", type=float, default=5e-3)
    a = p.parse_args()
    torch.manual_seed(3)
    target = Target(a.target)
    head, data = (Eagle if a.kind == "eagle3" else Mtp)(target), Data(a.data[-1], "train", 5)
    head.fit((ids, *target(ids)) for ids, _ in (data.batch(4, a.window) for _ in range(12)))
    before = agreement(head, a)
    print(json.dumps({"agreement_before": before}), flush=True)
    steps = train(head, a)
    print(json.dumps({"steps": steps, "agreement_before": before, "agreement_by_depth": agreement(head, a)}))
    (write_eagle3 if a.kind == "eagle3" else write_mtp)(head, a)


if __name__ == "__main__":
    main()
