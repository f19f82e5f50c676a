"""The policies of the expert-cache over routing traces of the demo models: bench/results/cache-policies.txt and .svg.

Records with `outrider-bench cache record`, replays with `outrider-bench cache replay`; this puts the figures side by side."""
import json
import subprocess

KS = (0, 1, 3, 7)
WORKLOADS = ("code", "math", "extract", "prose", "mixed")
BUDGETS = "17%,33%,50%"
AHEAD = (1, 2, 4, 8, 16, 32)
KINDS = ("uniform", "zipf", "phases")


def record(bench, target, draft, directory, root, workload, drafter, k):
    path = directory / f"{workload}-{drafter}-{k}.trace"
    if path.exists():
        return path
    subprocess.run([bench, "cache", "record", "--model", target, "--draft", draft, "--drafter", drafter, "--k", str(k), "--accept",
                    "80", "--workload", root / f"bench/workloads/{workload}.jsonl", "--out", path], check=True,
                   stdout=subprocess.DEVNULL)
    return path


def synthesize(bench, directory, kind, k):
    """Routing of a published shape (24 layers of Qwen3-30B-A3B's), which no demo model has."""
    path = directory / f"{kind}-{k}.synth.trace"
    subprocess.run([bench, "cache", "synth", "--kind", kind, "--layers", "24", "--experts", "128", "--used", "8", "--k", str(k),
                    "--passes", "400", "--hints", "60", "--seed", "3", "--out", path], check=True, stdout=subprocess.DEVNULL)
    return path


def replay(bench, traces, *options):
    out = subprocess.run([bench, "cache", "replay", *traces, "--budget", BUDGETS, "--format", "json", *options], check=True,
                         capture_output=True, text=True).stdout
    return json.loads(out)["rows"]


def quality(bench, traces):
    """Recall, precision and lead time by source, as the expert-cache counts them."""
    out = subprocess.run([bench, "cache", "replay", *traces, "--policy", "lru", "--budget", "50%", "--format", "json"], check=True,
                         capture_output=True, text=True).stdout
    return "\n".join([f"{'':34} {'source':>8} {'recall %':>9} {'precision %':>12} {'us ahead':>9}"] + [
        f"{h['name']:34} {h['source']:>8} {100 * h['found'] / h['used']:9.1f} {100 * h['found'] / h['hinted']:12.1f} "
        f"{h['lead_ns'] / max(1, h['found']) / 1e3:9.0f}" for h in json.loads(out)["hints"]])


def policies_of(rows):
    return list(dict.fromkeys(row["policy"] for row in rows))


def cells(rows):
    """{(name, budget): {policy: (KiB per token, ratio to Belady's bytes, stall us per token)}}, in the order of the rows."""
    out = {}
    for row in rows:
        d = row["decode"]
        out.setdefault((row["name"], row["budget_percent"]), {})[row["policy"]] = (
            d["bytes"] / 1024 / d["tokens"], d["bytes"], d["stall_ns"] / 1e3 / d["tokens"])
    for of in out.values():
        bound = of["belady"][1]
        for policy, (kib, total, stall) in of.items():
            of[policy] = (kib, total / bound, stall)
    return out


def table(rows):
    """Bytes as a multiple of Belady's, and microseconds of waiting per token."""
    names = policies_of(rows)
    lines = [f"{'':34} " + " ".join(f"{n:>11}" for n in names) + "   best other"]
    for (name, budget), of in cells(rows).items():
        others = [n for n in names if n not in ("outrider", "belady")]
        least = min(others, key=lambda n: of[n][1])
        fastest = min(others, key=lambda n: of[n][2])
        lines.append(f"{name + f', {budget:g}%':34} " + " ".join(f"{of[n][1]:6.2f}/{of[n][2]:4.0f}" for n in names) +
                     f"   {least} / {fastest}")
    return "\n".join(lines)


def prefetched(rows):
    """Prefetches per token, and the percentage of them that were used before they left."""
    names = [n for n in policies_of(rows) if n != "belady"]
    of = {}
    for row in rows:
        d = row["decode"]
        judged = d["prefetches_used"] + d["prefetches_wasted"]
        of.setdefault((row["name"], row["budget_percent"]), {})[row["policy"]] = (
            f"{d['prefetches'] / d['tokens']:6.2f}/" + (f"{100 * d['prefetches_used'] / judged:3.0f}%" if judged else "   -"))
    return "\n".join([f"{'':34} " + " ".join(f"{n:>11}" for n in names)] +
                     [f"{name + f', {budget:g}%':34} " + " ".join(cells[n] for n in names) for (name, budget), cells in of.items()])


def verdict(rows):
    """Where outrider is not at least as good as the best other, and where it is beyond 1.25 times the bound."""
    points = reads = waits = near = both = 0
    worse = []
    for (name, budget), of in cells(rows).items():
        others = [v for n, v in of.items() if n not in ("outrider", "belady")]
        kib, share, stall = of["outrider"]
        points += 1
        more, longer = share > min(v[1] for v in others), stall > min(v[2] for v in others)
        reads += not more
        waits += not longer
        near += share <= 1.25
        both += any(v[1] <= share and v[2] <= stall for v in others)
        if more or longer:
            worse.append(f"  {name}, {budget:g}%: " + " and ".join(["reads more"] * more + ["waits longer"] * longer))
    return (f"outrider reads no more than the best other at {reads} of {points} points, waits no longer at {waits}, and is within 1.25 "
            f"times Belady's bytes at {near}. One and the same other policy reads no more and waits no longer at {both}." + ("\nNot:\n" + "\n".join(worse) if worse else ""))


def look_ahead(bench, traces):
    """Belady's rule with less and less of the future known, beside outrider with and without prefetches and wrong hints."""
    rows = replay(bench, traces, "--policy", ",".join(["outrider", "shares"] + [f"belady:{n}" for n in AHEAD]))
    wasted = {(r["name"], r["budget_percent"]): r["decode"]["prefetches_wasted"] / r["decode"]["loads"] for r in rows
              if r["policy"] == "outrider"}
    off = cells(replay(bench, traces, "--policy", "outrider", "--prefetch", "off"))
    right = cells(replay(bench, traces, "--policy", "outrider", "--prefetch", "off", "--hints", "perfect"))
    lines = [f"{'':34} {'outrider':>9} {'unused':>7} {'demand':>12} {'right':>7} {'shares':>7} " +
             " ".join(f"{f'belady:{n}':>9}" for n in AHEAD) + "   within 1.25"]
    for key, of in cells(rows).items():
        shares = [of[f"belady:{n}"][1] for n in AHEAD]
        enough = next((f"N = {n}" for n, share in zip(AHEAD, shares) if share <= 1.25), f"N > {AHEAD[-1]}")
        mine = of["outrider"][1]
        lines.append(f"{key[0] + f', {key[1]:g}%':34} {mine:9.2f} {mine * wasted[key]:7.2f} "
                     f"{off[key]['outrider'][1]:7.2f}/{off[key]['outrider'][2] / of['outrider'][2]:4.2f} "
                     f"{right[key]['outrider'][1]:7.2f} {of['shares'][1]:7.2f} " + " ".join(f"{share:9.2f}" for share in shares) +
                     f"   {enough:>11}")
    return "\n".join(lines)


def profiles(bench, traces, folder):
    """What a profile is worth to those that begin with one, the right one and wrong ones: as in table()."""
    made = {}
    for workload in WORKLOADS:
        made[workload] = folder / f"{workload}.profile"
        subprocess.run([bench, "cache", "profile", traces[workload, "model", 0], "--out", made[workload]], check=True)
    lines = []
    for workload in WORKLOADS[:-1]:
        other = "math" if workload == "code" else "code"
        for name in (None, workload, "mixed", other):
            rows = replay(bench, [traces[workload, "model", 0]], "--policy", "static,outrider",
                          *(("--profile", made[name]) if name else ()))
            lines += [f"{workload + f', K 0, {budget:g}%':18} {'profile of ' + name if name else 'no profile':22}" +
                      "".join(f"{of[p][1]:8.2f}/{of[p][2]:4.0f}" for p in ("static", "outrider")) for (_, budget), of in cells(rows).items()]
    return "\n".join([f"{'':41}{'static':>13}{'outrider':>13}"] + lines)


def record_all(bench, target, draft, root, folder):
    """What takes real time; the rest is virtual."""
    return {(w, d, k): record(bench, target, draft, folder, root, w, d, k)
            for w in WORKLOADS for d, ks in (("model", KS), ("ngram", KS[1:] if w == "mixed" else ()),
                                             ("replay", KS[1:] if w == "mixed" else ())) for k in ks}


def run(bench, target, draft, root, results, folder):
    """The text of the report; writes the picture. Traces are left in the folder, and those that are there are used."""
    text = ["Bytes read as a multiple of Belady's / microseconds of waiting for experts per emitted token, decoding only.",
            "Demo target (6 layers, 4 of 32 experts), aligned draft model, greedy, 128 tokens, 32 prompts of each workload. Hints as the",
            "service makes them: draft (the drafted tokens), gate (the next layer), history (what such tokens used before). Link 2 GB/s",
            "and 80 us unless it says otherwise.", ""]
    traces = record_all(bench, target, draft, root, folder)
    main = [traces["mixed", "model", k] for k in KS]
    rows = replay(bench, main)
    text += ["== Mixed workload, the draft model's drafts", table(rows), "", verdict(rows), ""]
    text += ["== What was prefetched there, for each token, and the share of it that was used before it left", prefetched(rows), ""]
    others = replay(bench, [traces[w, "model", k] for w in WORKLOADS[:-1] for k in KS])
    text += ["== Each workload by itself", table(others), "", verdict(others), ""]
    text += ["== How far one must see to read so little: bytes as a multiple of Belady's, where belady:N knows what each layer uses in its",
             "next N passes, expects the rest from how often each expert was used, and prefetches nothing; at K = 0 a pass is a token.",
             "shares: as belady:N, but all it knows is what share of each answer's passes uses each expert, not which. outrider: as above; of",
             "it unused: prefetched, and given up before a use; demand: with prefetches forbidden, and how many times as long it waits then;",
             "right: and all that a pass uses hinted before its drafting, so that only what to give up is left to choose",
             look_ahead(bench, [traces[w, "model", k] for w in ("mixed", *WORKLOADS[:-1]) for k in KS]), ""]
    drafts = replay(bench, [traces["mixed", "replay", k] for k in KS[1:]])
    text += ["== Mixed workload, recorded drafts of which 80% are right (no draft hints)", table(drafts), "", verdict(drafts), ""]
    grams = [traces["mixed", "ngram", k] for k in KS[1:]]
    rows = replay(bench, grams)
    text += ["== Mixed workload, n-gram drafts (no draft hints)", table(rows), "", verdict(rows), ""]
    text += ["== Begun with a profile: none in the tables above, where static learns from its first 256 passes; of the same workload, the mixed",
             "one, another", profiles(bench, traces, folder), ""]
    rows = replay(bench, [synthesize(bench, folder, kind, k) for kind in KINDS for k in (0, 3)])
    text += ["== Synthetic routing, 24 layers, 8 of 128 experts; without hints at K = 0, at K = 3 draft hints of which 60% are right",
             table(rows), "", verdict(rows), ""]
    text += ["== The hints of the mixed workload", quality(bench, main + grams), ""]
    for speed, latency in ((0.1, 80), (0.5, 80), (5, 20)):
        other = replay(bench, main, "--bandwidth", str(speed), "--latency", str(latency))
        text += [f"== Mixed workload, a link of {speed} GB/s and {latency} us", table(other), "", verdict(other), ""]
    for hints, what in (("none", "without hints"), ("perfect", "all that the next pass uses hinted before its drafting")):
        other = replay(bench, main, "--hints", hints)
        text += [f"== Mixed workload, {what}", table(other), ""]
    subprocess.run([bench, "cache", "replay", *main, "--budget", "17%,25%,33%,42%,50%,67%,83%,100%", "--plot",
                    results / "cache-policies.svg"], check=True, stdout=subprocess.DEVNULL)
    return "\n".join(text)
