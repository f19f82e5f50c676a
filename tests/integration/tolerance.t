#!/usr/bin/env python3
"""outriderctl tolerance: what a real service's passes cost and brought, by size of the batch and length of the drafts."""
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from outrider_test import DRAFTS, Service, Tap, program, run  # noqa: E402

tap = Tap()
ok = tap.ok


def close(a, b):
    return abs(a - b) <= 1e-3 * max(abs(a), abs(b), 1e-3)


with Service(draft=DRAFTS["aligned"], sets=("policy.policy=static:0", "verifier.draft_wait=10s")) as service, tempfile.TemporaryDirectory() as folder:
    none = service.ctl("tolerance")
    ok(none.returncode == os.EX_DATAERR and "no session has had an iteration" in none.stderr, "before any session there is nothing to tell", none)
    for clients in (1, 2):
        for k in (0, 2, 0, 2):
            run(program("outrider-bench"), "load", "--runtime-dir", service.runtime, "--arrivals", "closed", "--clients", clients,
                "--requests", 2 * clients, "--output-tokens", 120, "--k", k)
    told = service.ctl_json("tolerance")
    points = {(p["sessions"], p["gamma"]): p for p in told["points"]}
    ok({(1, 0), (1, 2), (2, 0), (2, 2)} <= set(points), "there is a curve for each size of batch that was seen", sorted(points))
    ok(all(close(p["tau"], points[p["sessions"], 0]["pass_ms"] / p["pass_ms"]) and 0 < p["tau"] <= 1.0001 for p in told["points"]),
       "tau is the time of a pass without drafts by that of one with them", told)
    ok(all(points[b, 0]["tau"] == 1 and points[b, 0]["lambda"] == 1 for b in (1, 2)), "without drafts a session gets one token", told)
    drafted = [points[b, 2] for b in (1, 2)]
    ok(all(p["passes"] >= 8 and 1 <= p["lambda"] <= 3 and p["drafted"] > 0 and close(p["needed_tau"], 1 / p["lambda"]) and p["delta"] >= 0 and
           p["expected"] > 0 and p["measured"] > 0 and close(p["error"], p["expected"] / p["measured"] - 1) for p in drafted),
       "with drafts the expected speed-up stands beside the measured one", drafted)
    text = service.ctl("tolerance").stdout
    ok("GAMMA" in text and "in the median of" in text and "|" in text, "as text, with a mark at 1 / lambda", text)
    picture = Path(folder) / "tau.svg"
    drawn = service.ctl("tolerance", picture)
    ok(drawn.returncode == 0 and "<svg" in picture.read_text() and "batch 2" in picture.read_text(), "and as a picture", drawn)
    for words, says in ((("x.txt",), "must end in .svg or .png"), (("a.svg", "b.svg"), "unexpected argument"), (("a.svg", "--json"), "exclude each other")):
        refused = service.ctl("tolerance", *words)
        ok(refused.returncode == os.EX_USAGE and says in refused.stderr, f"tolerance {' '.join(words)} is refused", refused)
    before = sum(p["passes"] for p in told["points"])
    service.restart("policy")
    ok(service.ctl("tolerance").returncode == os.EX_DATAERR and before > 0, "a new controller has seen nothing yet", service.ctl("tolerance"))
tap.done()
