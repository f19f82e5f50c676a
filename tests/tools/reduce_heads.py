#!/usr/bin/env python3
"""Reduces golden data of draft heads to what tests/model/test_head.c and tests/drafter/test_heads.c compare.

usage: reduce_heads.py FOLDER OUT

FOLDER has eagle3-NAME.json and nextn-NAME.json, their heads, and the targets (NAME.f32.gguf), as
tests/data/golden/README.md describes. The model files are copied; of each JSON file the chains, the
chains after a rejection, the trees that were drafted and the states of the last position are kept.
"""
import glob
import json
import os
import shutil
import sys

TREE = ("tokens", "parents", "scores")
ROW = ("pos", "token_in", "token_out", "hidden", "logits")


def chain(rows):
    return [{key: row[key] for key in ROW} for row in rows]


def prompt(p):
    out = {"name": p["name"], "ids": p["ids"], "next": p["next"], "chain": chain(p["chain"])}
    for key in ("taps", "fused", "hidden"):
        if key in p:
            out[key] = p[key][-1]
    if "tree" in p:
        out["tree"] = {key: p["tree"][key] for key in TREE}
    out["after_accept"] = [
        {"accepted": a["accepted"], "ids": a["ids"], "bonus": a["bonus"], "chain": chain(a["chain"])}
        for a in p["after_accept"]]
    return out


def main():
    folder, to = sys.argv[1:]
    for path in sorted(glob.glob(folder + "/eagle3-*.json") + glob.glob(folder + "/nextn-*.json")):
        golden = json.load(open(path))
        target = golden.get("target", golden.get("model"))["file"]
        kept = {"kind": golden["kind"], "target": target,
                "prompts": [prompt(p) for p in golden["prompts"]]}
        name = os.path.basename(path)
        with open(os.path.join(to, name), "w") as out:
            json.dump(kept, out, separators=(",", ":"))
            out.write("\n")
        for model in {target, name.replace(".json", ".f32.gguf")}:
            shutil.copyfile(os.path.join(folder, model), os.path.join(to, model))


if __name__ == "__main__":
    main()
