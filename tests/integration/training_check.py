"""What training.t asks of training/mtp, in an interpreter that has PyTorch: prints one line of JSON.

  training_check.py golden TARGET.gguf ADAPTER.gguf GOLDEN.json    largest difference of mask states and sampler logits, over the RMS
  training_check.py folder TARGET.gguf FOLDER                      writes TARGET as a Hugging Face folder; largest difference of states
  training_check.py tokens VOCABULARY DIR                          writes random tokens to train on
  training_check.py same STATE STATE                               whether two runs have come to the same
"""
import json
import re
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "training" / "mtp"))
import target as targets
from adapter import load
from target import Target


@torch.no_grad()
def golden(target_path, adapter_path, golden_path):
    target = Target(target_path)
    adapter, worst, drafts, same = load(adapter_path, target), 0.0, 0, 0
    far = lambda got, want: ((got - want).abs().max() / want.square().mean().sqrt()).item()
    for prompt in json.loads(Path(golden_path).read_text())["prompts"]:
        for one in prompt["passes"]:
            n = one["prefix"]
            ids = torch.tensor([(prompt["ids"] + [prompt["next"]])[:n] + one["anchors"]])
            anchors = torch.arange(n, ids.shape[1])[None]
            masks = target.mask_states(target.states(ids)[0], anchors, adapter)[0]
            worst = max(worst, far(masks, torch.tensor(one["mask_hidden"])))
            for anchor, accepted in enumerate(one["if_accepted"]):
                token = accepted["bonus"]
                for j, want in enumerate(accepted["sampler_logits"]):
                    logits = target.logits(adapter.sampled(torch.tensor(token), masks[anchor, j]))
                    worst, token = max(worst, far(logits, torch.tensor(want))), int(logits.argmax())
                    drafts, same = drafts + 1, same + (token == accepted["next_anchors"][j + 1])
    return {"worst": worst, "drafts": drafts, "same": same}


@torch.no_grad()
def folder(target_path, to):
    """The folder's names and the order of its rows are those that transformers writes."""
    from safetensors.torch import save_file
    target, to = Target(target_path), Path(to)
    s, tensors = target.shape, {}
    back = {v: k for k, v in targets.HF_NAMES.items()}
    for name, w in target.w.items():
        block, _, stem = name.removeprefix("blk.").partition(".")
        if s.neighbours and stem in ("attn_q", "attn_k"):
            w = w.reshape(-1, s.head_dim // 2, 2, w.shape[1]).transpose(1, 2).reshape(w.shape)
        if stem.endswith("_exps"):
            for e, one in enumerate(w):
                tensors[f"model.layers.{block}.mlp.experts.{e}.{stem.split('_')[1]}_proj.weight"] = one.clone()
        elif stem:
            tensors[f"model.layers.{block}.{back[stem]}.weight"] = w.clone()
        else:
            tensors[{"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight", "output": "lm_head.weight"}[name]] = w.clone()
    to.mkdir()
    save_file(tensors, str(to / "model.safetensors"))
    (to / "config.json").write_text(json.dumps({
        "model_type": {"qwen3moe": "qwen3_moe"}.get(s.arch, s.arch), "num_hidden_layers": s.layers, "hidden_size": s.dim,
        "num_attention_heads": s.heads, "num_key_value_heads": s.kv_heads, "head_dim": s.head_dim, "num_experts": s.experts,
        "num_experts_per_tok": s.top_k, "norm_topk_prob": True, "rms_norm_eps": s.eps, "rope_theta": s.rope_base}))
    ids = torch.arange(1, 30)[None]
    return {"worst": (target.states(ids)[1] - Target(to).states(ids)[1]).abs().max().item()}


def tokens(vocabulary, to):
    Path(to).mkdir(exist_ok=True)
    np.save(Path(to) / "train_random.npy", np.random.default_rng(1).integers(0, int(vocabulary), 4000).astype(np.uint16))
    return {}


def same(a, b):
    a, b = (torch.load(f, weights_only=True) for f in (a, b))
    return {"steps": [a["step"], b["step"]], "same": all(torch.equal(v, b["adapter"][k]) for k, v in a["adapter"].items())}


print(json.dumps({"golden": golden, "folder": folder, "tokens": tokens, "same": same}[sys.argv[1]](*sys.argv[2:])))
