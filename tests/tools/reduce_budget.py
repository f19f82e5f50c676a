#!/usr/bin/env python3
"""Reduces golden data of the expert budget to what tests/model/test_budget.c compares: of each row of logits the five greatest.

  tests/tools/reduce_budget.py FROM TO     FROM holds NAME.json and units.json; TO gets the same files, smaller
"""
import json
import sys
from pathlib import Path


def top(rows):
    return [[[i, float("%.8g" % row[i])] for i in sorted(range(len(row)), key=lambda i: -row[i])[:5]] for row in rows]


def rms(rows):
    return (sum(x * x for row in rows for x in row) / sum(map(len, rows))) ** 0.5


def layer(of):
    return {"layer": of["layer"], "shortlist": of["shortlist"], "experts": of["experts"],
            "weights": [[float("%.7g" % w) for w in row] for row in of["weights"]], "affected": of["affected"]}


def reduced(run):
    if run.get("equals_unbudgeted"):
        return run
    out = {key: run[key] for key in ("budget", "ranking", "policy", "affected_pairs", "argmax", "accepted", "next")}
    out["rms"] = rms(run["logits"])
    out["top"] = top(run["logits"])
    out["layers"] = [layer(x) for x in run["layers"]]
    if "after" in run:
        out["after"] = {"kept_argmax": run["after"]["kept_argmax"], "kept_top": top([run["after"]["kept_logits"]])[0]}
    return out


def main(source, target):
    for path in sorted(source.glob("*.json")):
        data = json.loads(path.read_text())
        if "runs" in data:
            kept = {key: data[key] for key in ("model", "sha256", "n_expert", "top_k", "prompt", "tree")}
            kept["counts"] = data["calibration"]["counts"]
            kept["unbudgeted"] = {"argmax": data["unbudgeted"]["argmax"], "rms": rms(data["unbudgeted"]["logits"]),
                                  "top": top(data["unbudgeted"]["logits"])}
            kept["runs"] = [reduced(run) for run in data["runs"]]
            data = kept
        (target / path.name).write_text(json.dumps(data, separators=(",", ":")) + "\n")


main(Path(sys.argv[1]), Path(sys.argv[2]))
