"""What is trained: gated low-rank additions, embeddings of the masks, and a sampler that draws each draft behind the one before.

The file is a GGUF adapter: llama.cpp's layout for LoRA, with keys adapter.mtp.* and tensors mtp.*. llama.cpp refuses it because of these
names; without gates it would change the model's answers.
"""
import gguf
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from gguf import GGMLQuantizationType as Q
from target import norm


class Adapter(nn.Module):
    def __init__(self, target, k, rank, alpha, kinds, sampler=True, skip=1.0, one_mask=False):
        """kinds: which matrices get additions of this rank (target.ATTENTION and so on). skip: how much of a mask's state the sampler
        passes on. It begins as the plain head if that is 1."""
        super().__init__()
        s = target.shape
        self.target, self.k, self.rank, self.alpha, self.skip = [target], k, rank, alpha, skip
        self.scale = alpha / rank
        self.a, self.b, self.names = nn.ParameterDict(), nn.ParameterDict(), target.matrices(kinds)
        self.own = set(self.names)
        for name in self.names:
            *experts, outputs, inputs = target.w[name].shape
            self.a[key(name)] = nn.Parameter(torch.randn(*experts, rank, inputs) * inputs ** -0.5)
            self.b[key(name)] = nn.Parameter(torch.zeros(*experts, outputs, rank))
        embeddings = target.w["token_embd"].float().cpu()
        self.mask = nn.Parameter(embeddings.mean(0) + torch.randn(1 if one_mask else k, s.dim) * embeddings.std())
        self.sampler = nn.ParameterList()
        if sampler:
            first, second = torch.randn(s.dim, 2 * s.dim) * (2 * s.dim) ** -0.5, torch.randn(s.dim, s.dim) * s.dim ** -0.5
            # The parts begin small beside the state, which has the scale of the output norm.
            small = 0.2 * target.w["output_norm"].float().abs().mean().item() * torch.ones(s.dim)
            self.sampler.extend(nn.Parameter(x) for x in (first, small, second, small.clone()))

    def has(self, name):
        return name in self.own

    def addition(self, name, x, expert=None):
        a, b = self.a[key(name)].to(x.dtype), self.b[key(name)].to(x.dtype)
        if expert is not None:
            a, b = a[expert], b[expert]
        return self.scale * ((x @ a.t()) @ b.t())

    def masks(self):
        """[k, dim]"""
        return self.mask.expand(self.k, -1)

    def sampled(self, before, states):
        """The states whose logits draft the next token. before: [...] ids of the tokens in front; states: [..., dim] of the masks."""
        if not len(self.sampler):
            return states
        w0, n0, w1, n1 = (p.to(states.dtype) for p in self.sampler)
        eps = self.target[0].shape.eps
        u = norm(F.silu(torch.cat((self.target[0].embed(before), states), -1) @ w0.t()), n0, eps)
        return u + norm(F.silu(u @ w1.t()), n1, eps) + self.skip * states

    def save(self, path, name):
        """Matrices in float16, vectors in float32."""
        writer = gguf.GGUFWriter(str(path), self.target[0].shape.arch)
        writer.add_type("adapter")
        writer.add_name(name)
        writer.add_string("adapter.type", "lora")
        writer.add_float32("adapter.lora.alpha", self.alpha)
        writer.add_uint32("adapter.mtp.draft_length", self.k)
        writer.add_bool("adapter.mtp.gated", True)
        if len(self.sampler):
            writer.add_float32("adapter.mtp.sampler_skip", self.skip)
        for tensor, value in self.tensors():
            value = value.detach().float().cpu().numpy()
            plain = value.ndim == 1 or tensor == "mtp.mask_embd.weight"
            writer.add_tensor(tensor, value if plain else value.astype(np.float16), raw_dtype=Q.F32 if plain else Q.F16)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def tensors(self):
        for name in self.names:
            yield name + ".weight.lora_a", self.a[key(name)]
            yield name + ".weight.lora_b", self.b[key(name)]
        yield "mtp.mask_embd.weight", self.mask
        for i in range(0, len(self.sampler), 2):
            yield f"mtp.sampler.{i // 2}.weight", self.sampler[i]
            yield f"mtp.sampler.{i // 2}.norm.weight", self.sampler[i + 1]


def key(name):
    """A name without points, which PyTorch's dictionaries of parameters do not take."""
    return name.replace(".", "_")


def load(path, target):
    """The adapter of a file."""
    reader = gguf.GGUFReader(str(path))
    keys = {k: f.contents() for k, f in reader.fields.items()}
    if keys["general.architecture"] != target.shape.arch:
        raise ValueError(f"{path}: for architecture {keys['general.architecture']}; the model's is {target.shape.arch}")
    values = {t.name: torch.from_numpy(t.data.astype(np.float32).reshape([int(n) for n in reversed(t.shape)])) for t in reader.tensors}
    named = [n.removesuffix(".weight.lora_a") for n in values if n.endswith(".lora_a")]
    rank = values[named[0] + ".weight.lora_a"].shape[-2] if named else 1
    adapter = Adapter(target, keys["adapter.mtp.draft_length"], rank, keys["adapter.lora.alpha"],
                      dict.fromkeys(n.split(".")[2] for n in named), "mtp.sampler.0.weight" in values,
                      keys.get("adapter.mtp.sampler_skip", 0.0), len(values["mtp.mask_embd.weight"]) == 1)
    with torch.no_grad():
        for name, parameter in adapter.tensors():
            parameter.copy_(values[name])
    return adapter.to(target.device)
