"""Trains an adapter for multi-token prediction with gated LoRA (Samragh et al., arXiv 2507.11851).

  train.py --model MODEL --data DIR --out ADAPTER.gguf [--minutes 30 | --steps N] [--resume] ...

MODEL is a GGUF file or a Hugging Face folder: llama, qwen2, qwen3, qwen3moe, dense or not. DIR has train*.npy: arrays of token ids, best
of answers of the model itself (models/recipe/answers.py makes them for the demo model; tokens.py encodes texts). The model does not change.

A step runs the model over some windows, which also gives the labels; then rows of masks behind some of their tokens attend to its keys
and values. The losses are those of the source, with the model's probabilities as labels: cross-entropy of the sampler, of the plain
head, and the distance between a mask's state and the model's own state for the same token.

State goes to ADAPTER.state every minute and at the end, and on SIGTERM and SIGINT; --resume goes on from there as if nothing had
happened. ADAPTER.log has a line of JSON for every 20 steps, and for every measurement with --answers. plot.py draws it.
"""
import argparse
import json
import math
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
from accept import measure, read_answers
from adapter import Adapter
from target import ATTENTION, DENSE, EXPERTS, Target, Unsuitable

MATRICES = {"attention": ATTENTION, "dense": DENSE, "experts": EXPERTS, "none": ()}


class Data:
    """Windows of the files, all files alike. What a step gets depends on seed and step alone."""

    def __init__(self, folder, seed, vocabulary):
        self.streams, self.seed = [np.load(f, mmap_mode="r") for f in sorted(folder.glob("train*.npy"))], seed
        if not self.streams:
            raise Unsuitable(f"{folder}: there is no train*.npy")
        largest = max(int(s.max()) for s in self.streams)
        if largest >= vocabulary:
            raise Unsuitable(f"{folder}: token {largest}; the model has {vocabulary}")

    def batch(self, step, windows, length, anchors, k):
        """(ids [windows, length], anchors [windows, anchors], sorted)"""
        r = np.random.default_rng((self.seed, step))
        ids, at = [], []
        for i in range(windows):
            stream = self.streams[(step * windows + i) % len(self.streams)]
            start = int(r.integers(max(1, len(stream) - length)))
            ids.append(stream[start:start + length].astype(np.int64))
            at.append(np.sort(r.choice(length - k - 1, min(anchors, length - k - 1), replace=False)))
        return torch.from_numpy(np.stack(ids)), torch.from_numpy(np.stack(at))


def losses(target, adapter, ids, at, a):
    """(loss, its parts) for the masks behind the tokens `at` of each window. Mask j drafts the token that comes j + 2 behind."""
    past, states = target.states(ids)
    masks, rows = target.mask_states(past, at, adapter), torch.arange(len(ids), device=target.device)[:, None]
    parts, total = np.zeros(3), 0
    for j in range(adapter.k):
        with torch.no_grad():
            wanted = states[rows, at + 1 + j]
            chance = target.logits(wanted).float().softmax(-1)
        cross = lambda state: -(chance * target.logits(state).float().log_softmax(-1)).sum(-1).mean()
        sampled = cross(adapter.sampled(ids[rows, at + 1 + j], masks[:, :, j]))
        plain = cross(masks[:, :, j]) if len(adapter.sampler) and a.plain else sampled.detach() * 0
        latent = (masks[:, :, j] - wanted).float().square().mean() / wanted.float().square().mean()
        total = total + a.fade ** j * (sampled + a.plain * plain + a.latent * latent)
        parts += [x.item() / adapter.k for x in (sampled, plain, latent)]
    return total, parts


class Run:
    """The state that --resume takes up: parameters, the optimizer's moments, the step, the seconds so far."""

    def __init__(self, a, target):
        self.a, self.target, self.step, self.seconds, self.anchors = a, target, 0, 0.0, 0
        torch.manual_seed(a.seed)
        kinds = [m for group in a.matrices for m in MATRICES[group]]
        self.adapter = Adapter(target, a.k, a.rank, a.alpha, kinds, not a.no_sampler, a.skip, a.one_mask).to(a.device)
        mask = [self.adapter.mask]
        rest = [p for p in self.adapter.parameters() if p is not mask[0]]
        self.optimizer = torch.optim.AdamW([{"params": rest, "base": a.lr}, {"params": mask, "base": 3 * a.lr}], lr=a.lr,
                                           betas=(0.9, 0.98), weight_decay=0.0)
        self.state_path, self.log_path = (a.out.with_suffix(s) for s in (".state", ".log"))
        self.stopping = False

    def save(self):
        """At once, or not at all: a run that is killed meanwhile finds the state before."""
        part = self.state_path.with_suffix(".part")
        torch.save({"adapter": self.adapter.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step,
                    "seconds": self.seconds, "anchors": self.anchors, "made_with": made_with(self.a)}, part)
        os.replace(part, self.state_path)

    def load(self):
        state = torch.load(self.state_path, map_location=self.a.device, weights_only=True)
        differ = [n for n, v in made_with(self.a).items() if state["made_with"].get(n) != v]
        if differ:
            raise Unsuitable(f"{self.state_path}: made with another value of {', '.join('--' + n.replace('_', '-') for n in differ)}")
        self.adapter.load_state_dict(state["adapter"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds, self.anchors = state["step"], state["seconds"], state["anchors"]

    def fraction(self):
        """How much is done, 0 to 1."""
        return self.step / self.a.steps if self.a.steps else self.seconds / (60 * self.a.minutes)

    def rate(self):
        """Warms up for 50 steps, stays, then falls to nothing over the second half."""
        return min(1, (self.step + 1) / 50) * min(1, max(0.02, 2 * (1 - self.fraction())))

    def one(self, data):
        a, rate = self.a, self.rate()
        for group in self.optimizer.param_groups:
            group["lr"] = group["base"] * rate
        ids, at = data.batch(self.step, a.windows, a.length, a.anchors, a.k)
        loss, parts = losses(self.target, self.adapter, ids.to(a.device), at.to(a.device), a)
        if not math.isfinite(loss.item()):
            raise Unsuitable(f"step {self.step}: the loss is {loss.item()}; try a lower --lr")
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.adapter.parameters(), 1.0)
        self.optimizer.step()
        self.step, self.anchors = self.step + 1, self.anchors + at.numel()
        return loss.item(), parts

    def log(self, **row):
        row = {"step": self.step, "seconds": round(self.seconds, 1), "anchors": self.anchors, **row}
        print(json.dumps(row), flush=True)
        with self.log_path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def measured(self, answers):
        with torch.no_grad():
            self.log(accepted=measure(self.target, self.adapter, answers, self.a.per_domain))

    def train(self, data, answers):
        mean, saved, measure_at = None, time.monotonic(), math.floor(self.fraction() * 10 + 1) / 10 if self.step else 0.0
        while self.fraction() < 1 and not self.stopping:
            if answers and self.fraction() >= measure_at:
                self.measured(answers)
                measure_at += 0.1
            began = time.monotonic()
            loss, parts = self.one(data)
            self.seconds += time.monotonic() - began
            now = np.array([loss, *parts])
            mean = now if mean is None else 0.95 * mean + 0.05 * now
            if self.step % 20 == 0:
                self.log(loss=round(mean[0], 4), sampler=round(mean[1], 4), plain=round(mean[2], 4), latent=round(mean[3], 4),
                         rate=round(self.rate(), 4), left_s=self.left())
            if time.monotonic() - saved > self.a.save_every:
                self.save()
                saved = time.monotonic()
        self.save()
        if not self.stopping and answers:
            self.measured(answers)

    def left(self):
        """Seconds to go, of training alone."""
        return round(self.seconds * (1 / self.fraction() - 1)) if self.fraction() else None


def made_with(a):
    """The options that a state depends on, as plain values."""
    names = ("model", "k", "rank", "alpha", "matrices", "no_sampler", "skip", "one_mask", "seed", "windows", "length", "anchors", "lr",
             "plain", "latent", "fade")
    return {n: str(getattr(a, n)) for n in names}


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", type=Path, required=True)
    p.add_argument("--data", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--answers", type=Path, help="measure on these answers ten times, as accept.py does")
    p.add_argument("--per-domain", type=int, default=4, help="answers of each kind of text that are measured")
    p.add_argument("--name", default="gated LoRA for multi-token prediction")
    p.add_argument("--minutes", type=float, default=30, help="of training, without the measurements")
    p.add_argument("--steps", type=int, default=0, help="the schedule follows the steps, not the clock")
    p.add_argument("--resume", action="store_true", help="go on from ADAPTER.state")
    p.add_argument("--save-every", type=float, default=60, help="seconds between two states")
    p.add_argument("--k", type=int, default=3, help="masks behind a token, and drafts of a pass")
    p.add_argument("--rank", type=int, default=16)
    p.add_argument("--alpha", type=float, default=32)
    p.add_argument("--matrices", nargs="+", choices=MATRICES, default=["attention"], help="the matrices that get additions")
    p.add_argument("--no-sampler", action="store_true", help="draft from the masks' states alone")
    p.add_argument("--skip", type=float, default=1.0, help="the share of a mask's state that the sampler passes on")
    p.add_argument("--one-mask", action="store_true", help="the same embedding for all masks")
    p.add_argument("--windows", type=int, default=2, help="sequences of a step")
    p.add_argument("--length", type=int, default=256, help="tokens of a sequence")
    p.add_argument("--anchors", type=int, default=160, help="tokens of a sequence that have masks behind them")
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--plain", type=float, default=0.3, help="weight of the plain head's cross-entropy")
    p.add_argument("--latent", type=float, default=0.3, help="weight of the distance of the states")
    p.add_argument("--fade", type=float, default=0.9, help="weight of each next mask, relative to the one before")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--dtype", choices=("float32", "bfloat16"), help="of the frozen model; default: float32 on a CPU, else bfloat16")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    a = p.parse_args()
    a.dtype = getattr(torch, a.dtype or ("float32" if a.device == "cpu" else "bfloat16"))
    if not (a.k >= 1 and a.rank >= 1 and a.windows >= 1 and a.anchors >= 1 and a.length > a.k + 1):
        p.error("--k, --rank, --windows and --anchors must be at least 1, and --length greater than k + 1")
    return a


def main():
    a = parse()
    torch.set_num_threads(a.threads)
    try:
        target = Target(a.model, a.device, a.dtype)
        data = Data(a.data, a.seed, len(target.w["token_embd"]))
        run = Run(a, target)
        if a.resume:
            run.load()
        else:
            run.log_path.unlink(missing_ok=True)
        for sig in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sig, lambda *_: setattr(run, "stopping", True))
        print(f"{sum(p.numel() for p in run.adapter.parameters())} parameters are trained", flush=True)
        run.train(data, read_answers(a.answers) if a.answers else None)
    except (Unsuitable, OSError) as error:
        sys.exit(f"train.py: {error}")
    run.adapter.save(a.out, a.name)


if __name__ == "__main__":
    main()
