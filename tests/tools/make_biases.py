#!/usr/bin/env python3
"""Makes tests/data/golden/biases.json: what Hugging Face's classes say of the golden models once their linear layers have the
biases that the configuration allows (attention_bias, mlp_bias). Needs torch, transformers (5.24 made what is there), numpy
and gguf from PyPI.

  python tests/tools/make_biases.py

Weights are those of the golden files, which is checked: without biases the logits must be the files' own golden ones. A
bias's values follow from its tensor's name (bias_values of tests/integration/forms.py), so that no file holds them.
"""
import json
import pathlib
import sys

import gguf
import numpy as np
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "integration"))
from forms import bias_values

GOLDEN = ROOT / "tests" / "data" / "golden"
# Golden model: (file with the layout that Hugging Face's weights have, what its configuration is given).
MODELS = {"llama-dense": ("llama-dense", {"attention_bias": True, "mlp_bias": True}),
          "qwen3": ("qwen3", {"attention_bias": True}), "qwen3moe": ("qwen3moe", {"attention_bias": True}),
          "olmoe": ("olmoe", {"attention_bias": True}),
          "deepseek2-lite": ("deepseek2-lite.legacy", {"attention_bias": True, "mlp_bias": True}),
          "deepseek2-v3": ("deepseek2-v3.legacy", {"attention_bias": True}),
          "qwen3next": ("qwen3next", {"attention_bias": True}), "qwen35moe": ("qwen35moe", {"attention_bias": True})}
SPECIAL = {"qwen35moe": "Qwen3_5MoeTextConfig"}
COMMON = {"max_position_embeddings": 512, "tie_word_embeddings": False}
NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
         "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
         "self_attn.kv_b_proj": "attn_kv_b", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "mlp.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp"}
for _plural in ("", "s"):
    for _kind in ("gate", "up", "down"):
        NAMES[f"mlp.shared_expert{_plural}.{_kind}_proj"] = f"ffn_{_kind}_shexp"


class F(float):
    """A float32 in nine digits."""

    def __repr__(self):
        return "%.9g" % float(self)


def unpermuted(x, heads):
    """Rotated pairs lie side by side in llama's files, half a head apart in Hugging Face's weights."""
    return x.reshape(heads, x.shape[0] // heads // 2, 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def untiled(x, c, length, axis=0):
    """Value heads by key head first."""
    x = np.moveaxis(x, axis, 0)
    keys = c.linear_num_key_heads
    heads = x.reshape((c.linear_num_value_heads // keys, keys, length) + x.shape[1:])
    return np.moveaxis(np.swapaxes(heads, 0, 1).reshape(x.shape), 0, axis)


def delta_weight(t, blk, rest, c):
    """A weight of a gated delta net, from the files' layout."""
    keys = 2 * c.linear_num_key_heads * c.linear_key_head_dim
    tiled = blk + "ssm_beta.weight" in t
    values = (lambda x, n, axis=0: untiled(x, c, n, axis)) if tiled else (lambda x, n, axis=0: x)
    both = lambda x: np.concatenate([x[:keys], values(x[keys:], c.linear_value_head_dim)])
    if rest == "in_proj_qkvz.weight":
        heads = c.linear_num_key_heads
        qkv, z = t[blk + "attn_qkv.weight"], t[blk + "attn_gate.weight"]
        parts = [qkv[:keys // 2], qkv[keys // 2:keys], qkv[keys:], z]
        return np.concatenate([x.reshape(heads, -1, x.shape[1]) for x in parts], axis=1).reshape(-1, qkv.shape[1])
    if rest == "in_proj_qkv.weight":
        return both(t[blk + "attn_qkv.weight"])
    if rest == "conv1d.weight":
        return both(t[blk + "ssm_conv1d.weight"])[:, None]
    if rest == "A_log":
        return np.log(-values(t[blk + "ssm_a"], 1))
    if rest == "out_proj.weight":
        return values(t[blk + "ssm_out.weight"], c.linear_value_head_dim, 1)
    name, length = {"in_proj_ba.weight": ("ssm_ba.weight", 1), "in_proj_z.weight": ("attn_gate.weight", c.linear_value_head_dim),
                    "in_proj_b.weight": ("ssm_beta.weight", 1), "in_proj_a.weight": ("ssm_alpha.weight", 1),
                    "dt_bias": ("ssm_dt.bias", 1), "norm.weight": ("ssm_norm.weight", 0)}[rest]
    return values(t[blk + name], length) if length else t[blk + name]


def weight(t, name, kind, c):
    """The parameter's value from the tensors; (None, tensor's name) of a bias that they lack."""
    if not name.startswith("model.layers."):
        return t[{"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
                  "lm_head.weight": "output.weight"}[name]] - (name == "model.norm.weight" and one_more(kind))
    _, _, layer, rest = name.split(".", 3)
    blk = "blk.%s." % layer
    if rest.startswith("linear_attn."):
        return delta_weight(t, blk, rest.removeprefix("linear_attn."), c)
    if rest == "mlp.experts.gate_up_proj":
        return np.concatenate([t[blk + "ffn_gate_exps.weight"], t[blk + "ffn_up_exps.weight"]], axis=1)
    if rest == "mlp.experts.down_proj":
        return t[blk + "ffn_down_exps.weight"]
    if rest == "mlp.gate.e_score_correction_bias":
        return t[blk + "exp_probs_b.bias"]
    base, last = rest.rsplit(".", 1)
    if base == "post_attention_layernorm":
        ours = "post_attention_norm" if blk + "post_attention_norm.weight" in t else "ffn_norm"
    else:
        ours = NAMES[base]
    x = t[blk + ours + "." + last]
    if kind.startswith("Llama") and ours in ("attn_q", "attn_k"):
        x = unpermuted(x, c.num_attention_heads if ours == "attn_q" else c.num_key_value_heads)
    return x - (x.ndim == 1 and last == "weight" and "norm" in ours and one_more(kind))


def one_more(kind):
    return kind.startswith(("Qwen3Next", "Qwen3_5"))


def build(golden, more):
    kind = golden["hf_class"]
    config = getattr(transformers, SPECIAL.get(golden["name"], kind.replace("ForCausalLM", "Config")))
    c = config(**{**COMMON, **golden["config"], **more}, bos_token_id=384, eos_token_id=385, pad_token_id=None)
    c._attn_implementation = "eager"
    c._experts_implementation = "eager"
    return getattr(transformers, kind)(c).to(torch.float32).eval()


def fill(model, t, golden):
    kind, biases = golden["hf_class"], {}
    state = dict(model.named_parameters())
    state.update((n, b) for n, b in model.named_buffers() if n.endswith("e_score_correction_bias"))
    for name, p in state.items():
        if name.endswith("_proj.bias") or name.endswith("_mqa.bias"):
            _, _, layer, rest = name.split(".", 3)
            ours = "blk.%s.%s.bias" % (layer, NAMES[rest.removesuffix(".bias")])
            biases[ours] = p.numel()
            t = {**t, ours: np.array(bias_values(ours, p.numel()), dtype=np.float32)}
        x = np.ascontiguousarray(weight(t, name, kind, model.config), dtype=np.float32)
        assert tuple(p.shape) == x.shape, (name, tuple(p.shape), x.shape)
        p.copy_(torch.from_numpy(x))
    if golden["config"].get("tie_word_embeddings"):
        model.tie_weights()
    return biases


def logits(model, ids):
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].float()


def off(got, expected):
    expected = torch.tensor(expected)
    return float((got - expected).abs().max() / expected.square().mean().sqrt())


def main():
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    out = {"made_by": "tests/tools/make_biases.py, transformers %s, torch %s" % (transformers.__version__, torch.__version__),
           "models": {}}
    for name, (file, more) in MODELS.items():
        golden = json.loads((GOLDEN / "models" / (name + ".json")).read_text())
        t = {x.name: np.array(x.data) for x in gguf.GGUFReader(GOLDEN / "models" / (file + ".f32.gguf")).tensors}
        prompts = [p for p in golden["prompts"] if p["n"] <= 40]
        plain, model = build(golden, {}), build(golden, more)
        fill(plain, t, golden)
        gap = max(off(logits(plain, p["ids"]), p["logits_last"]) for p in prompts)
        assert gap < 1e-3, (name, gap)
        biases = fill(model, t, golden)
        changed = min(off(logits(model, p["ids"]), p["logits_last"]) for p in prompts)
        assert changed > 0.05, (name, changed)
        out["models"][name] = {"biases": biases, "prompts": [
            {"ids": p["ids"], "logits_last": [F(x) for x in logits(model, p["ids"]).tolist()]} for p in prompts[1:]]}
        print("%s: %d biases, without them off by %.1e, with them by %.2f" % (name, len(biases), gap, changed))
    (GOLDEN / "biases.json").write_text(json.dumps(out) + "\n")


if __name__ == "__main__":
    main()
