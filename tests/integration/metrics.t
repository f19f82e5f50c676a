#!/usr/bin/env python3
"""The gateway's /metrics: every line by a strict reading of Prometheus's text format (and promtool's, where there is one), with values
that follow what happened; the Grafana dashboard, whose every expression must name metrics and labels that /metrics gives; and
/status, which the page shows."""
import json
import math
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from gateway_test import QUESTION, Gateway  # noqa: E402
from outrider_test import DRAFTS, PROCESSES, ROOT, TARGET, Service, Tap, until  # noqa: E402

tap = Tap()
ok = tap.ok
SAMPLE = re.compile(r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (\S+)$')
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')


def parse(text):
    """{family: (type, {(name, labels): value})}; raises ValueError at the first line that is not of the format."""
    families, current, seen = {}, None, set()
    if not text.endswith("\n"):
        raise ValueError("the last line does not end")
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            name, _, rest = line[7:].partition(" ")
            if name in families or not rest:
                raise ValueError(f"{name}: two HELP lines, or an empty one")
            families[name] = [None, {}, rest]
            current = name
            continue
        if line.startswith("# TYPE "):
            name, _, kind = line[7:].partition(" ")
            if name != current or families[name][0] or kind not in ("counter", "gauge", "histogram"):
                raise ValueError(f"TYPE: {line}")
            families[name][0] = kind
            continue
        match = SAMPLE.match(line)
        if not match:
            raise ValueError(f"no sample: {line!r}")
        name, labels, value = match.group(1), tuple(sorted(LABEL.findall(match.group(2) or ""))), float(match.group(3))
        suffixes = ("_bucket", "_sum", "_count") if families[current][0] == "histogram" else ("",)
        if name not in [current + s for s in suffixes] or (name, labels) in seen:
            raise ValueError(f"{line}: of another family, or twice")
        if families[current][0] != "gauge" and not value >= 0:
            raise ValueError(f"{line}: a counter below 0")
        seen.add((name, labels))
        families[current][1][name, labels] = value
    for name, (kind, samples, _) in families.items():
        if kind == "counter" and not name.endswith("_total"):
            raise ValueError(f"{name}: a counter's name ends with _total")
        if kind == "histogram":
            buckets = [(float(dict(labels)["le"]), v) for (n, labels), v in samples.items() if n.endswith("_bucket")]
            if buckets != sorted(buckets) or [v for _, v in buckets] != sorted(v for _, v in buckets) or \
                    buckets[-1] != (math.inf, samples[name + "_count", ()]):
                raise ValueError(f"{name}: buckets {buckets}")
    return {name: (kind, samples) for name, (kind, samples, _) in families.items()}


def page(gateway):
    status, headers, data = gateway.ask("GET", "/metrics")
    assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4"), (status, headers)
    return data.decode()


def value(families, name, **labels):
    family = re.sub("_(bucket|sum|count)$", "", name)
    return families.get(name, families.get(family, ("", {})))[1].get((name, tuple(sorted(labels.items()))))


def check_counts(gateway, before):
    """Four answers, of which one goes wrong: what must have grown."""
    usages = [gateway.chat(temperature=0.7, seed=seed, max_tokens=60, outrider={"k": 4, "draft_method": "ngram"})[1] for seed in (1, 2, 3)]
    gateway.chat(temperature=-1)
    after = parse(page(gateway))

    def grown(name, **labels):
        return value(after, name, **labels) - (value(before, name, **labels) or 0)
    for metric, field in (("outrider_prompt_tokens_total", "prompt_tokens"), ("outrider_completion_tokens_total", "completion_tokens")):
        ok(grown(metric) == sum(u["usage"][field] for u in usages), f"{metric} grows by the answers' usage", after[metric])
    for metric, field in (("outrider_drafted_tokens_total", "drafted"), ("outrider_accepted_tokens_total", "accepted")):
        ok(grown(metric) == sum(u["outrider"][field] for u in usages), f"{metric} too", (after[metric], usages))
    ok(sum(after["outrider_drafted_at_total"][1].values()) == value(after, "outrider_drafted_tokens_total") and
       sum(after["outrider_accepted_at_total"][1].values()) == value(after, "outrider_accepted_tokens_total"),
       "what was drafted and accepted at each position adds up", (after["outrider_drafted_at_total"], after["outrider_accepted_at_total"]))
    ok(grown("outrider_iterations_total", k="4") > 0, "passes are counted by K", after["outrider_iterations_total"])
    for metric in ("time_to_first_token", "time_per_token", "queue", "prefill"):
        ok(grown(f"outrider_{metric}_seconds_count") == 3 and grown(f"outrider_{metric}_seconds_sum") > 0, f"{metric}: three times")
    ok(grown("outrider_http_responses_total", status="200") >= 3 and grown("outrider_http_responses_total", status="400") == 1,
       "responses by status", after["outrider_http_responses_total"])
    ok(grown("outrider_http_received_bytes_total") > 3 * len(json.dumps(QUESTION)) and grown("outrider_http_sent_bytes_total") > 1000,
       "bytes of bodies")


def check_restart(gateway, service):
    service.restart("drafter")
    ok(until(lambda: value(parse(page(gateway)), "outrider_process_restarts_total", process="drafter") == 1),
       "a process that was started again is counted", page(gateway))
    families = parse(page(gateway))
    ok(all(value(families, "outrider_process_up", process=p) == 1 for p in PROCESSES) and
       all(value(families, "outrider_process_restarts_total", process=p) == 0 for p in PROCESSES if p != "drafter"), "the others are not")


FUNCTIONS = {"rate", "increase", "sum", "by", "histogram_quantile", "label_values", "le", "instance"}


def check_dashboard(families):
    """Every metric in every expression is one of /metrics, and every label one that it has."""
    board = json.loads((ROOT / "config" / "grafana.json").read_text())
    targets = [(panel["title"], t) for panel in board["panels"] for t in panel.get("targets", ())]
    names = {n for _, samples in families.values() for n, _ in samples} | set(families)
    labels = {n: {k for (_, ls) in samples for k, _ in ls} for n, (_, samples) in families.items()}
    wrong, used = [], set()
    for title, target in targets:
        found = re.findall(r"\boutrider_\w+", target["expr"])
        used |= {re.sub("_(bucket|sum|count)$", "", n) if n not in families else n for n in found}
        if not found or not set(found) <= names:
            wrong.append((title, target["expr"], set(found) - names))
        words = set(re.findall(r"\b[a-z_]+\b", re.sub(r'"[^"]*"|\[[^]]*\]|outrider_\w+', "", target["expr"])))
        of = set().union(*(labels.get(n, labels.get(re.sub("_bucket$", "", n), set())) for n in found))
        if not words <= FUNCTIONS | of:
            wrong.append((title, words - FUNCTIONS - of))
        for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
            if label not in of:
                wrong.append((title, label))
        if target["expr"].count("(") != target["expr"].count(")"):
            wrong.append((title, "parentheses"))
    ok(len(targets) > 25 and not wrong, f"the dashboard's {len(targets)} expressions name what /metrics gives", wrong)
    ok(len({p["id"] for p in board["panels"]}) == len(board["panels"]), "its panels have numbers of their own")
    rest = set(families) - used
    ok(len(rest) < 16, "most metrics are on it", rest)


def check_promtool(text):
    tool = shutil.which("promtool")
    if not tool:
        tap.skip("promtool finds nothing", "promtool (Debian package prometheus) is not installed")
        return
    result = subprocess.run([tool, "check", "metrics"], input=text, capture_output=True, text=True)
    ok(result.returncode == 0, "promtool finds nothing", result.stdout + result.stderr)


def check_status(gateway):
    def get(query=""):
        status, _, data = gateway.ask("GET", "/status" + query)
        return status, json.loads(data)
    found = []

    def running():
        found[:] = [s for s in get()[1]["sessions"] if s["state"] == "running" and s["max_tokens"] == 900]
        return any(s["output_tokens"] > 0 for s in found)
    # One answer of a quick model may end before anybody looks, so there are eight at a time.
    for _ in range(10):
        peers = [gateway.connection() for _ in range(8)]
        for peer in peers:
            peer.request("POST", "/v1/completions", json.dumps({"prompt": "In the beginning", "max_tokens": 900, "ignore_eos": True, "seed": 1,
                                                                "temperature": 1, "stream": True, "outrider": {"k": 3}}))
        seen = until(running, 20, every=0.01)
        for reply in [peer.getresponse() for peer in peers]:
            while reply.readline():
                pass
        if seen:
            break
    ok(seen and found[0]["k"] == 3, "/status shows a session that runs", found)
    status, now = get()
    ok(status == 200 and now["ready"] is True and now["model"] == TARGET.name.removesuffix(".gguf") and
       {p["name"] for p in now["processes"]} >= set(PROCESSES) and now["cache"]["slots"] > 0 and now["policy"], "and the service", now)
    line = now["timeline"]
    fields = {"number", "time_s", "tokens_per_s", "k", "utility", "accepted", "hits", "running", "waiting"}
    ok(line and all(set(s) == fields for s in line) and [s["number"] for s in line] == list(range(line[0]["number"], line[-1]["number"] + 1)),
       "with a timeline", line[-3:])
    ok(until(lambda: any((s["tokens_per_s"] or 0) > 0 for s in get()[1]["timeline"])), "whose samples say how fast it was", line)
    last = line[-1]["number"]
    until(lambda: get()[1]["timeline"][-1]["number"] > last)
    ok(all(s["number"] > last for s in get(f"?after={last}")[1]["timeline"]), "?after= gives what is new")
    ok(get("?after=99999999999")[1]["timeline"], "the number of another gateway gives all")
    status, refused = get("?after=-1")
    ok(status == 400 and refused["error"]["param"] == "after" and "0 to" in refused["error"]["message"], "a wrong number is refused", refused)


with Service(model=TARGET, draft=DRAFTS["small"]) as service:
    gateway = Gateway(service)
    first = parse(page(gateway))
    ok(len(first) > 40, "/metrics can be read")
    check_counts(gateway, first)
    check_status(gateway)
    text = page(gateway)
    check_dashboard(parse(text))
    check_promtool(text)
    check_restart(gateway, service)
    service.end("verifier")
    ok(until(lambda: value(parse(page(gateway)), "outrider_process_restarts_total", process="verifier") == 1 and
             value(parse(page(gateway)), "outrider_ready") == 1), "a restart of the verifier, after which it is ready")
    gateway.stop()
tap.done()
