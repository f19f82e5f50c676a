#!/usr/bin/env python3
"""Makes tests/data/golden/models/qwen35moe.{f32.gguf,json}: a tiny random Qwen3.5-MoE and what Hugging Face's own
implementation says of it. Needs torch, transformers (5.23 made what is there), numpy and gguf from PyPI.

  python tests/tools/make_qwen35moe.py [FOLDER]

The tokenizer is the one of qwen3next.f32.gguf in the same folder. Value heads are longer than key heads and three
share a key head, the attention layer is not the last: what a mistake in one of these would change is in the numbers.
"""
import hashlib
import json
import math
import pathlib
import sys

import gguf
import numpy as np
import torch
import transformers

SEED, VOCAB, SPECIAL, GREEDY = 20301, 401, 384, 48
CONFIG = dict(
    vocab_size=VOCAB, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
    layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    linear_conv_kernel_dim=4, linear_key_head_dim=16, linear_value_head_dim=24, linear_num_key_heads=2,
    linear_num_value_heads=6, moe_intermediate_size=32, shared_expert_intermediate_size=48, num_experts=8,
    num_experts_per_tok=3, rms_norm_eps=1e-6, max_position_embeddings=512, tie_word_embeddings=False,
    rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25, mrope_section=[2, 1, 1]))
ARCH = "qwen35moe"


class F(float):
    """A float32 in nine digits."""

    def __repr__(self):
        return "%.9g" % float(self)


def floats(values):
    return [F(x) for x in values]


def build(seed):
    """Weights of which every part matters: norms away from one, gates and decays spread."""
    config = transformers.Qwen3_5MoeTextConfig(**CONFIG)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = transformers.Qwen3_5MoeForCausalLM(config).to(torch.float32).eval()
    g = torch.Generator().manual_seed(seed)

    def normal(p, std, mean=0.0):
        p.copy_(torch.randn(p.shape, generator=g) * std + mean)

    for name, p in sorted(model.named_parameters()):
        if name.endswith("linear_attn.norm.weight"):
            p.copy_(torch.rand(p.shape, generator=g) * 0.8 + 0.6)
        elif name.endswith("norm.weight"):
            p.copy_(torch.rand(p.shape, generator=g) * 0.8 - 0.4)
        elif name.endswith("A_log"):
            p.copy_(torch.log(torch.rand(p.shape, generator=g) * 4 + 0.05))
        elif name.endswith("dt_bias"):
            normal(p, 1.0, -1.0)
        elif "conv1d" in name:
            normal(p, 0.5)
        elif name == "model.embed_tokens.weight":
            normal(p, 1.0)
        elif name == "lm_head.weight":
            normal(p, 3.0 / math.sqrt(p.shape[1]))
            p[SPECIAL:] *= 0.05  # never the best, so that no answer ends early
        elif name.endswith(("mlp.gate.weight", "q_proj.weight", "k_proj.weight", "gate_up_proj", "down_proj")):
            normal(p, 1.5 / math.sqrt(p.shape[-1]))
        else:
            normal(p, 1.2 / math.sqrt(p.shape[-1]))
    return model


def forward(model, ids):
    """Logits of all positions, (experts, weights, margin) by layer, residual stream of the last position."""
    routing, hidden, hooks = {}, [], []
    for i, layer in enumerate(model.model.layers):
        def routed(_, __, out, i=i):
            logits, weights, experts = out
            order = torch.argsort(weights, dim=-1, descending=True)
            top = logits.sort(dim=-1, descending=True)[0]
            k = experts.shape[-1]
            routing[i] = (experts.gather(1, order), weights.gather(1, order), top[:, k - 1] - top[:, k])

        def left(_, __, out):
            hidden.append((out[0] if isinstance(out, tuple) else out).reshape(-1, CONFIG["hidden_size"])[-1])

        hooks.append(layer.mlp.gate.register_forward_hook(routed))
        hooks.append(layer.register_forward_hook(left))
    logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()
    for hook in hooks:
        hook.remove()
    return logits, routing, [model.model.embed_tokens.weight[ids[-1]]] + hidden


def greedy(model, ids):
    """Every step computes all positions again: no cache."""
    ids, new, margins = list(ids), [], []
    for _ in range(GREEDY):
        best, token = forward(model, ids)[0][-1].topk(2)
        new.append(int(token[0]))
        margins.append(float(best[0] - best[1]))
        ids.append(new[-1])
    return new, margins


def prompt(model, name, ids):
    logits, routing, hidden = forward(model, ids)
    tokens, margins = greedy(model, ids)
    least = min(float(margin.min()) for _, _, margin in routing.values())
    at = sorted({p for p in (0, 1, len(ids) // 3, len(ids) // 2, len(ids) - 2) if 0 <= p < len(ids) - 1})
    j = {"name": name, "n": len(ids), "ids": ids, "logits_last": floats(logits[-1].tolist()), "logits_at": []}
    for p in at:
        best, token = logits[p].topk(10)
        j["logits_at"].append({"pos": p, "top": [[t, F(b)] for t, b in zip(token.tolist(), best.tolist())],
                               "logsumexp": F(torch.logsumexp(logits[p].double(), 0))})
    j["argmax_all"] = logits.argmax(1).tolist()
    j["greedy"] = {"ids": tokens, "margin": floats(margins), "min_margin": F(min(margins))}
    j["routing_min_margin"] = F(least)
    j["routing"] = [{"layer": i, "experts": e.tolist(),
                     **({"weights": [floats(x) for x in w.tolist()]} if len(ids) <= 40 else {})}
                    for i, (e, w, _) in sorted(routing.items())]
    if name == "twenty":
        j["hidden_last"] = [floats(h.tolist()) for h in hidden]
    return j, min(margins) >= 2e-3 and least >= 2e-5 and max(tokens) < SPECIAL


def tiled(x, length, axis=0):
    """Value heads by key head first (k0v0 k0v1 k0v2 k1v0 ...) -> by their place in the group first (k0v0 k1v0 k0v1 ...)."""
    keys = CONFIG["linear_num_key_heads"]
    x = np.moveaxis(x, axis, 0)
    heads = x.reshape((keys, CONFIG["linear_num_value_heads"] // keys, length) + x.shape[1:])
    return np.ascontiguousarray(np.moveaxis(np.swapaxes(heads, 0, 1).reshape(x.shape), 0, axis))


def delta_tensors(blk, w):
    key = 2 * CONFIG["linear_num_key_heads"] * CONFIG["linear_key_head_dim"]
    d_v = CONFIG["linear_value_head_dim"]
    split = lambda x: np.concatenate([x[:key], tiled(x[key:], d_v)])
    return {blk + "attn_qkv.weight": split(w["in_proj_qkv.weight"]),
            blk + "attn_gate.weight": tiled(w["in_proj_z.weight"], d_v),
            blk + "ssm_beta.weight": tiled(w["in_proj_b.weight"], 1),
            blk + "ssm_alpha.weight": tiled(w["in_proj_a.weight"], 1),
            blk + "ssm_conv1d.weight": split(w["conv1d.weight"][:, 0]),
            blk + "ssm_a": tiled(-np.exp(w["A_log"]), 1),
            blk + "ssm_dt.bias": tiled(w["dt_bias"], 1),
            blk + "ssm_norm.weight": w["norm.weight"],
            blk + "ssm_out.weight": tiled(w["out_proj.weight"], d_v, axis=1)}


def tensors(model):
    w = {name: p.numpy() for name, p in model.named_parameters()}
    out = {"token_embd.weight": w["model.embed_tokens.weight"], "output.weight": w["lm_head.weight"],
           "output_norm.weight": 1 + w["model.norm.weight"]}
    for i, kind in enumerate(CONFIG["layer_types"]):
        blk = "blk.%d." % i
        part = lambda prefix: {k.removeprefix("model.layers.%d.%s" % (i, prefix)): v for k, v in w.items()
                               if k.startswith("model.layers.%d.%s" % (i, prefix))}
        mlp = part("mlp.")
        norms = part("")
        out[blk + "attn_norm.weight"] = 1 + norms["input_layernorm.weight"]
        out[blk + "post_attention_norm.weight"] = 1 + norms["post_attention_layernorm.weight"]
        if kind == "linear_attention":
            out.update(delta_tensors(blk, part("linear_attn.")))
        else:
            a = part("self_attn.")
            out.update({blk + "attn_q.weight": a["q_proj.weight"], blk + "attn_k.weight": a["k_proj.weight"],
                        blk + "attn_v.weight": a["v_proj.weight"], blk + "attn_output.weight": a["o_proj.weight"],
                        blk + "attn_q_norm.weight": 1 + a["q_norm.weight"],
                        blk + "attn_k_norm.weight": 1 + a["k_norm.weight"]})
        n = CONFIG["moe_intermediate_size"]
        out.update({blk + "ffn_gate_inp.weight": mlp["gate.weight"],
                    blk + "ffn_gate_exps.weight": mlp["experts.gate_up_proj"][:, :n],
                    blk + "ffn_up_exps.weight": mlp["experts.gate_up_proj"][:, n:],
                    blk + "ffn_down_exps.weight": mlp["experts.down_proj"],
                    blk + "ffn_gate_inp_shexp.weight": mlp["shared_expert_gate.weight"]})
        for kind_of in ("gate", "up", "down"):
            out[blk + "ffn_%s_shexp.weight" % kind_of] = mlp["shared_expert.%s_proj.weight" % kind_of]
    return out


def write(path, model, tokenizer):
    c = CONFIG
    w = gguf.GGUFWriter(path, ARCH)
    w.add_name("qwen35moe golden")
    for key, value in {
            "block_count": c["num_hidden_layers"], "context_length": c["max_position_embeddings"],
            "embedding_length": c["hidden_size"], "attention.head_count": c["num_attention_heads"],
            "attention.head_count_kv": c["num_key_value_heads"], "attention.key_length": c["head_dim"],
            "attention.value_length": c["head_dim"], "expert_count": c["num_experts"],
            "expert_used_count": c["num_experts_per_tok"], "expert_feed_forward_length": c["moe_intermediate_size"],
            "expert_shared_feed_forward_length": c["shared_expert_intermediate_size"],
            "ssm.conv_kernel": c["linear_conv_kernel_dim"], "ssm.state_size": c["linear_key_head_dim"],
            "ssm.group_count": c["linear_num_key_heads"], "ssm.time_step_rank": c["linear_num_value_heads"],
            "ssm.inner_size": c["linear_num_value_heads"] * c["linear_value_head_dim"],
            "full_attention_interval": 4, "rope.dimension_count": 8}.items():
        w.add_uint32(ARCH + "." + key, value)
    w.add_array(ARCH + ".rope.dimension_sections", c["rope_parameters"]["mrope_section"] + [0])
    w.add_array(ARCH + ".attention.recurrent_layers", [t == "linear_attention" for t in c["layer_types"]])
    w.add_float32(ARCH + ".rope.freq_base", c["rope_parameters"]["rope_theta"])
    w.add_float32(ARCH + ".attention.layer_norm_rms_epsilon", c["rms_norm_eps"])
    for key, field in gguf.GGUFReader(tokenizer).fields.items():
        if key.startswith("tokenizer."):
            array = field.types[0] == gguf.GGUFValueType.ARRAY
            w.add_key_value(key, field.contents(), field.types[0], sub_type=field.types[-1] if array else None)
    for name, data in tensors(model).items():
        w.add_tensor(name, np.ascontiguousarray(data, dtype=np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "tests/data/golden/models")
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    for seed in range(SEED, SEED + 60):
        model = build(seed)
        g = torch.Generator().manual_seed(seed)
        prompts, good = [], True
        for name, n in (("one", 1), ("seven", 7), ("twenty", 20), ("forty", 40), ("long150", 150)):
            j, ok = prompt(model, name, torch.randint(0, SPECIAL, (n,), generator=g).tolist())
            prompts.append(j)
            good = good and ok
            if not good:
                break
        if good:
            break
    else:
        raise SystemExit("no seed with wide margins")
    path = folder / (ARCH + ".f32.gguf")
    write(path, model, folder / "qwen3next.f32.gguf")
    j = {"format": 1, "name": ARCH, "arch": ARCH, "hf_class": type(model).__name__, "seed": seed,
         "made_by": "tests/tools/make_qwen35moe.py, transformers %s, torch %s" % (
             transformers.__version__, torch.__version__),
         "n_vocab": VOCAB, "n_layer": CONFIG["num_hidden_layers"], "config": CONFIG,
         "files": {"f32": {"file": path.name, "bytes": path.stat().st_size,
                           "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}},
         "prompts": prompts}
    (folder / (ARCH + ".json")).write_text(json.dumps(j) + "\n")
    print("seed %d, %d bytes" % (seed, path.stat().st_size))
    return model


if __name__ == "__main__":
    main()
