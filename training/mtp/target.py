"""A frozen language model in PyTorch: llama, qwen2, qwen3 and qwen3moe, from a GGUF file or a Hugging Face folder.

Names of tensors, and the order of rows of attention's matrices, are those of GGUF, so that an adapter trained here fits the GGUF file
that llama.cpp's converter makes of the same model. Shapes are [outputs, inputs].
"""
import json
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
import torch.nn.functional as F

ARCHITECTURES = ("llama", "qwen2", "qwen3", "qwen3moe")
# Matrices that may have low-rank additions, by their inputs' width.
ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")
DENSE, EXPERTS = ("ffn_gate", "ffn_up", "ffn_down"), ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")


class Unsuitable(Exception):
    """A model that this script does not compute."""


@dataclass
class Shape:
    arch: str
    layers: int
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    top_k: int
    renormalise: bool  # the weights of the chosen experts
    eps: float
    rope_base: float
    neighbours: bool  # rotary pairs are neighbours (llama's GGUF files), not halves


def norm(x, weight, eps):
    return x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps).to(x.dtype) * weight


def read_gguf(path):
    """(shape, {name without .weight: float32 array})"""
    reader = gguf.GGUFReader(str(path))
    keys = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("tokenizer.")}
    arch = keys["general.architecture"]
    if arch not in ARCHITECTURES:
        raise Unsuitable(f"{path}: architecture {arch}; {', '.join(ARCHITECTURES)} can be trained for")
    get = lambda key, default=None: keys.get(f"{arch}.{key}", default)
    if get("rope.scaling.type", "none") not in ("none", "linear") or get("rope.scaling.factor", 1.0) != 1.0:
        raise Unsuitable(f"{path}: its rotary positions are scaled, which is not supported")
    weights = {}
    for t in reader.tensors:
        values = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        weights[t.name.removesuffix(".weight")] = values.reshape([int(n) for n in reversed(t.shape)])
    heads, dim = get("attention.head_count"), get("embedding_length")
    layers = get("block_count") - get("nextn_predict_layers", 0)
    return Shape(arch, layers, dim, heads, get("attention.head_count_kv", heads), get("attention.key_length", dim // heads),
                 get("expert_count", 0), get("expert_used_count", 0), True, get("attention.layer_norm_rms_epsilon"),
                 get("rope.freq_base", 10000.0), arch == "llama"), weights


HF_NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
            "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
            "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
            "mlp.gate": "ffn_gate_inp"}
HF_MODELS = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe"}


def as_neighbours(x, heads):
    """Rows of q or k for pairs of neighbours, from rows for pairs of halves."""
    return x.reshape(heads, 2, -1, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def read_hf(folder):
    from safetensors import safe_open
    config = json.loads((folder / "config.json").read_text())
    arch = HF_MODELS.get(config["model_type"])
    if not arch:
        raise Unsuitable(f"{folder}: model type {config['model_type']}; {', '.join(HF_MODELS)} can be trained for")
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise Unsuitable(f"{folder}: its rotary positions are scaled, which is not supported")
    if config.get("sliding_window") and config.get("use_sliding_window", arch == "llama"):
        raise Unsuitable(f"{folder}: its attention has a sliding window, which is not supported")
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise Unsuitable(f"{folder}: some of its layers have experts and some have none, which is not supported")
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads") or config["num_attention_heads"]
    weights, experts = {}, {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(str(file), "pt") as tensors:
            for name in tensors.keys():
                place(name, tensors.get_tensor(name).float().numpy(), weights, experts)
    for name, rows in experts.items():
        weights[name] = np.stack([rows[e] for e in range(len(rows))])
    if arch == "llama":
        for name in [n for n in weights if n.endswith(("attn_q", "attn_k"))]:
            weights[name] = as_neighbours(weights[name], heads if name.endswith("q") else kv_heads)
    dim = config["hidden_size"]
    n_experts, base = config["num_experts"] if arch == "qwen3moe" else 0, config.get("rope_theta") or rope.get("rope_theta", 10000.0)
    return Shape(arch, config["num_hidden_layers"], dim, heads, kv_heads, config.get("head_dim") or dim // heads, n_experts,
                 config.get("num_experts_per_tok", 0), config.get("norm_topk_prob", True), config["rms_norm_eps"], base,
                 arch == "llama"), weights


def place(name, values, weights, experts):
    """Files a tensor of a checkpoint under its name in GGUF."""
    top = {"model.embed_tokens.weight": "token_embd", "model.norm.weight": "output_norm", "lm_head.weight": "output"}
    if name in top:
        weights[top[name]] = values
        return
    _, _, layer, rest = name.split(".", 3)
    stem, kind = rest.rsplit(".", 1)
    if stem.startswith("mlp.experts."):
        _, _, expert, which = stem.split(".")
        experts.setdefault(f"blk.{layer}.ffn_{which.removesuffix('_proj')}_exps", {})[int(expert)] = values
    elif stem in HF_NAMES:
        weights[f"blk.{layer}.{HF_NAMES[stem]}" + (".bias" if kind == "bias" else "")] = values
    else:
        raise Unsuitable(f"tensor {name} is not known")


class Target:
    """Weights never change. `gated` arguments take an adapter, whose additions the rows get; None: the model itself."""

    def __init__(self, path, device="cpu", dtype=torch.float32):
        path = Path(path)
        self.shape, weights = (read_hf if path.is_dir() else read_gguf)(path)
        weights.setdefault("output", weights["token_embd"])
        self.w = {name: torch.from_numpy(np.ascontiguousarray(x)).to(device, dtype) for name, x in weights.items()}
        frequency = self.shape.rope_base ** (-torch.arange(0, self.shape.head_dim, 2).double() / self.shape.head_dim)
        self.frequency = frequency.float().to(device)
        if "rope_freqs" in self.w:
            self.frequency = self.frequency / self.w["rope_freqs"].float()
        self.device, self.dtype = torch.device(device), dtype

    def matrices(self, kinds):
        """Names of the matrices of these kinds that the model has."""
        return [n for i in range(self.shape.layers) for kind in kinds if (n := f"blk.{i}.{kind}") in self.w]

    def embed(self, ids):
        return F.embedding(ids, self.w["token_embd"])

    def logits(self, states):
        return states @ self.w["output"].t()

    def linear(self, x, name, gated):
        y = F.linear(x, self.w[name], self.w.get(name + ".bias"))
        return y + gated.addition(name, x) if gated and gated.has(name) else y

    def rope(self, x, positions):
        """x: [..., head, head_dim], positions: [...]"""
        angle = positions[..., None, None].float() * self.frequency
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = (x[..., 0::2], x[..., 1::2]) if self.shape.neighbours else x.chunk(2, -1)
        pair = a * cos - b * sin, b * cos + a * sin
        return torch.stack(pair, -1).flatten(-2) if self.shape.neighbours else torch.cat(pair, -1)

    def qkv(self, i, x, positions, gated):
        """x: [..., dim] in front of the layer's norm; [..., head, head_dim] each, keys and values as stored."""
        s, block = self.shape, f"blk.{i}."
        h = norm(x, self.w[block + "attn_norm"], s.eps)
        q, k, v = (self.linear(h, block + name, gated).unflatten(-1, (-1, s.head_dim)) for name in ATTENTION[:3])
        if block + "attn_q_norm" in self.w:
            q, k = norm(q, self.w[block + "attn_q_norm"], s.eps), norm(k, self.w[block + "attn_k_norm"], s.eps)
        return self.rope(q, positions), self.rope(k, positions), v

    def feed_forward(self, i, x, gated):
        block, shape = f"blk.{i}.", x.shape
        h = norm(x, self.w[block + "ffn_norm"], self.shape.eps).reshape(-1, self.shape.dim)
        if not self.shape.experts:
            gate, up = (self.linear(h, block + name, gated) for name in DENSE[:2])
            return self.linear(F.silu(gate) * up, block + DENSE[2], gated).view(shape)
        chance = (h @ self.w[block + "ffn_gate_inp"].t()).float().softmax(-1)
        weight, chosen = chance.topk(self.shape.top_k, -1)
        weight = (weight / weight.sum(-1, keepdim=True) if self.shape.renormalise else weight).to(h.dtype).flatten()
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=self.shape.experts).tolist()
        rows = order.div(self.shape.top_k, rounding_mode="floor")
        parts = [self.expert(block, e, part, gated) for e, part in enumerate(h[rows].split(counts)) if len(part)]
        return torch.zeros_like(h).index_add(0, rows, torch.cat(parts) * weight[order, None]).view(shape)

    def expert(self, block, e, x, gated):
        def product(name, x):
            y = x @ self.w[block + name][e].t()
            return y + gated.addition(block + name, x, e) if gated and gated.has(block + name) else y
        return product(EXPERTS[2], F.silu(product(EXPERTS[0], x)) * product(EXPERTS[1], x))

    @torch.no_grad()
    def states(self, ids):
        """ids: [batch, position]. Keys and values of each layer, [batch, position, head, head_dim], and states after the output norm."""
        x, past = self.embed(ids), []
        positions = torch.arange(ids.shape[1], device=self.device).expand(ids.shape)
        for i in range(self.shape.layers):
            q, k, v = self.qkv(i, x, positions, None)
            past.append((k, v))
            k, v = self.repeated(k), self.repeated(v)
            a = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
            x = x + self.linear(a.transpose(1, 2).flatten(-2), f"blk.{i}.attn_output", None)
            x = x + self.feed_forward(i, x, None)
        return past, norm(x, self.w["output_norm"], self.shape.eps)

    def repeated(self, x):
        return x.repeat_interleave(self.shape.heads // self.shape.kv_heads, -2)

    def mask_states(self, past, anchors, adapter):
        """States after the output norm, [batch, anchor, mask, dim], of the masks behind anchors [batch, anchor], which are positions of
        `past`. A mask sees the text up to its anchor, and the masks of its own group up to itself."""
        k, device = adapter.k, self.device
        x = adapter.masks().to(self.dtype).expand(*anchors.shape, k, self.shape.dim)
        positions = anchors[..., None] + 1 + torch.arange(k, device=device)
        length = past[0][0].shape[1]
        unseen = (torch.arange(length, device=device) > anchors[..., None])[:, None, :, None]  # batch, head, anchor, mask, position
        later = torch.ones(k, k, dtype=torch.bool, device=device).triu(1)
        for i in range(self.shape.layers):
            q, own_k, own_v = self.qkv(i, x, positions, adapter)
            own_k, own_v, text_k, text_v = (self.repeated(t) for t in (own_k, own_v, *past[i]))
            text = torch.einsum("bamhd,blhd->bhaml", q, text_k).masked_fill(unseen, -torch.inf)
            own = torch.einsum("bamhd,banhd->bhamn", q, own_k).masked_fill(later, -torch.inf)
            weight = (torch.cat((text, own), -1) * self.shape.head_dim ** -0.5).float().softmax(-1).to(self.dtype)
            a = torch.einsum("bhaml,blhd->bamhd", weight[..., :length], text_v)
            a = a + torch.einsum("bhamn,banhd->bamhd", weight[..., length:], own_v)
            x = x + self.linear(a.flatten(-2), f"blk.{i}.attn_output", adapter)
            x = x + self.feed_forward(i, x, adapter)
        return norm(x, self.w["output_norm"], self.shape.eps)
