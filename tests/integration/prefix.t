#!/usr/bin/env python3
"""Sessions whose prompts begin alike share the KV pages of that beginning. Their answers are those of sessions that are alone, whoever
ends first, with few pages, and with the verifier killed meanwhile; afterwards every page is to be had again. Pages of ended sessions
are found by later ones, also after the verifier was killed, until they are needed. Models with sliding windows find what is left of these, also on disk."""
import os
import re
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from gguf_file import Gguf
from outrider_test import DRAFTS, ROOT, SAMPLED, SANITIZED, Service, Tap, difference, prompts, reference, seeded, told_to_sleep, until

KILLS = int(os.environ.get("OUTRIDER_TEST_KILLS", 3 if SANITIZED else 10))
TOKENS = 40 if SANITIZED else 120
SAME = 160  # tokens that all of them begin with: five pages
tap = Tap()
random = seeded()
tails = prompts(6, longest=40)
same = [t for p in prompts(12, longest=60) for t in p][:SAME]
ids = [same + tail for tail in tails]
ids[4] = same[:100] + tails[4]  # parts in the middle of a page
modes = (None, SAMPLED)
expected = {(m, i): reference(p, TOKENS, modes[m], seed=3 + i, extra=("--ignore-eos",)) for m in (0, 1) for i, p in enumerate(ids)}
SETS = ("verifier.context=512", "verifier.kv_tokens=1120")


def request(m, i):
    return {"tokens": ids[i], "max_tokens": TOKENS, "seed": 3 + i, "k": random.choice((-1, 0, 3, 7)), "ignore_eos": True,
            "draft_method": random.choice(("ngram", "model")), "logits_hash": random.random() < 0.5, **(modes[m] or {})}


def kept_tokens(service):
    return service.details("verifier")["kv_kept_tokens"]


def wrong(keys, results):
    return [f"{key}: {what}" for key, result in zip(keys, results) if (what := difference(result, expected[key]))]


def shared(service):
    return [int(n) for n in re.findall(r"finds its first (\d+) tokens in the KV cache", service.whole_log())]


def some():
    return [(random.randrange(2), random.randrange(len(ids))) for _ in range(12)]


with Service(draft=DRAFTS["small"], sets=SETS, options=("-v",)) as service:
    keys = [(m, i) for m in (0, 1) for i in range(len(ids))] + some()
    found = wrong(keys, service.swarm([request(*key) for key in keys], concurrent=4))
    first = shared(service)
    tap.ok(not found, f"{len(keys)} answers, {len(first)} of which shared the beginning of their prompt: the same bytes",
           "\n".join(found[:10]) + "\n" + service.log_text()[-1500:])
    tap.ok(len(first) > len(keys) / 3 and max(first) >= SAME and all(n % 32 == 0 for n in first), "whole pages are shared", first)

    kills, found, answers = 0, [], 0
    while kills < KILLS:
        keys = some()
        process, results = service.swarm_start([request(*key) for key in keys], concurrent=4)
        while process.poll() is None and kills < KILLS:
            time.sleep(random.uniform(0.02, 0.3))
            if process.poll() is None:
                kills += service.kill("verifier")
        found += wrong(keys, results())
        answers += len(keys)
    after = shared(service)[len(first):]
    tap.ok(not found and after, f"verifier killed {kills} times during {answers} answers, {len(after)} of which shared: the same bytes",
           "\n".join(found[:10]) + "\n" + service.log_text()[-1500:])
    service.wait_ready()

    # Two contexts of which nothing is alike take 32 of the 35 pages: none was lost.
    before = service.whole_log().count("gives up its KV pages")
    apart = prompts(2, longest=60)
    long = [{"tokens": p, "max_tokens": 500 - len(p), "seed": 1, "k": 0, "ignore_eos": True, "logits_hash": False} for p in apart]
    results = service.swarm(long, concurrent=2)
    tap.ok(all(len(r["tokens"]) == 500 - len(p) for r, p in zip(results, apart))
           and service.whole_log().count("gives up its KV pages") == before, "afterwards every page is free",
           f"{[r.get('error') for r in results]}\n{service.log_text()[-1500:]}")

# Conversations: each turn's prompt is all that was said, and a new question.
def turns(service, kill):
    """What each of three turns found in the KV cache, how many tokens it could have found, and which answers are wrong."""
    found, possible, wrong = [], [], []
    for chat in range(3):
        said = list(same[:40 + 10 * chat])
        for turn in range(3):
            said += tails[chat][:12] if turn else []
            before = len(shared(service))
            ask = {"tokens": said, "max_tokens": 50, "seed": 7 + turn, "k": (0, 3, 7)[turn], "ignore_eos": True, "draft_method": "ngram",
                   **(SAMPLED if chat == 1 else {})}
            result = service.swarm([ask])[0]
            want = reference(said, 50, SAMPLED if chat == 1 else None, seed=7 + turn, extra=("--ignore-eos",))
            if (what := difference(result, want)):
                wrong.append(f"chat {chat}, turn {turn}: {what}")
            found.append((shared(service)[before:] or [0])[0])
            possible.append((len(said) - 1) // 32 * 32)
            said += result["tokens"]
            if kill:
                service.restart("verifier")
    return found, possible, wrong


with Service(draft=DRAFTS["small"], sets=("verifier.context=512", "verifier.kv_tokens=2048"), options=("-v",)) as service:
    for kill in (False, True):
        found, possible, bad = turns(service, kill)
        # The last token of an answer has no place in the cache, and a page that ends with it is computed again.
        tap.ok(not bad and all(f >= p - 32 for i, (f, p) in enumerate(zip(found, possible)) if i % 3),
               f"what was said is found in the next turn{' after the verifier was killed' if kill else ''}: the same bytes",
               f"{found} of {possible}\n" + "\n".join(bad) + service.log_text()[-1500:])
    kept = kept_tokens(service)
    long = [{"tokens": prompts(1, longest=60)[0], "max_tokens": 400, "seed": s, "k": 0, "ignore_eos": True} for s in range(4)]
    answers = service.swarm(long, concurrent=4)
    left = kept_tokens(service)
    tap.ok(0 < kept <= 2048 and left <= 2048 and all(len(a["tokens"]) == 400 for a in answers) and "gives up" not in service.whole_log(),
           "kept pages give way to running sessions", f"{kept}, {left}, {[a.get('error') for a in answers]}")
    service.ctl("knob", "set", "prefix_tokens=64")
    until(lambda: kept_tokens(service) <= 64)
    few = kept_tokens(service)
    service.ctl("knob", "set", "prefix_tokens=0")
    until(lambda: kept_tokens(service) == 0)
    found, _, bad = turns(service, False)
    tap.ok(not bad and 0 < few <= 64 and not any(found) and kept_tokens(service) == 0,
           "prefix_tokens limits them, and 0 keeps none", f"{few}, {found}, {bad}")

# Layers with a sliding window: what is kept of windows is enough to go on from, or all tokens are kept.
model = ROOT / "tests" / "data" / "golden" / "models" / "gpt-oss.f32.gguf"


def windowed_turns(service, first, tokens):
    """What each of three turns found, with the verifier killed after each, and which answers are wrong."""
    said, found, bad = [random.randrange(380) for _ in range(first)], [], []
    for turn in range(3):
        before = len(shared(service))
        result = service.swarm([{"tokens": said, "max_tokens": tokens, "seed": turn, "k": (0, 3, 7)[turn], "ignore_eos": True, "draft_method": "ngram"}])[0]
        want = reference(said, tokens, None, seed=turn, model=model, extra=("--ignore-eos",))
        bad += [what] if (what := difference(result, want)) else []
        found.append((shared(service)[before:] or [0])[0])
        said += result["tokens"] + [random.randrange(380) for _ in range(9)]
        service.restart("verifier")
    return found, bad


# On disk the windows lie apart, too, each with the page of its tokens. This one reaches into four pages.
wide = Gguf(model)
key = "gpt-oss.attention.sliding_window"
wide.keys[key] = (wide.keys[key][0], 100)


def details(service):
    return service.details("verifier")


with tempfile.TemporaryDirectory(prefix="outrider-windows-") as where:
    wide_model, pages = Path(where) / "gpt-oss-wide.gguf", Path(where) / "pages"
    wide.write(wide_model)
    sets = ("verifier.context=512", "verifier.kv_tokens=2048", "verifier.sessions_max=4", f"verifier.prefix_dir={pages}", "verifier.sleep_after=50ms",
            "verifier.linger=100ms", "verifier.ahead_max=16")
    asked = [[random.randrange(380) for _ in range(n)] for n in (150, 100, 40)]
    asked.append(asked[0][:128] + asked[1])
    asked = [{"tokens": t, "max_tokens": 40, "seed": i, "k": (0, 3)[i % 2], "ignore_eos": True, "draft_method": "ngram"} for i, t in enumerate(asked)]
    want = [reference(a["tokens"], 40, None, seed=i, model=wide_model, extra=("--ignore-eos",)) for i, a in enumerate(asked)]

    def wrong(service):
        before = details(service)["disk_found_tokens"]
        bad = [f"{i}: {what}" for i, (got, w) in enumerate(zip(service.swarm(asked, concurrent=3), want)) if (what := difference(got, w))]
        return bad, details(service)["disk_found_tokens"] - before

    with Service(model=wide_model, sets=sets, options=("-v",)) as service:
        first, _ = wrong(service)
        # Until all is written, so that what follows finds it.
        until(lambda: details(service)["disk_saved_tokens"] >= 352 and details(service)["disk_files"] >= 22 and not any(pages.glob("*.part")))
        slept, _, results = told_to_sleep(service, {**asked[1], "max_tokens": 300, "k": 0, "seed": 9})
        until(lambda: "sleeps: " in service.whole_log())
        for process in service.children():
            os.kill(process, 9)
        service.wait_ready()
        woken = [service.ctl("session", "wake", uid).returncode for uid in slept]
        long = reference(asked[1]["tokens"], 300, None, seed=9, model=wide_model, extra=("--ignore-eos",))
        bad = [what for got in results() if (what := difference(got, long))]
        tap.ok(not first and not bad and not any(woken), "with windows a session sleeps on disk while every process is killed, and goes on with the same bytes",
               f"{first} {bad} {woken}\n{service.log_text()[-1500:]}")
    with Service(model=wide_model, sets=sets, options=("-v",)) as service:
        again, found = wrong(service)
        tap.ok(not again and found >= 128, f"after everything was started again {found} tokens and their windows are found on disk: the same bytes",
               f"{again} {details(service)}\n{service.log_text()[-2000:]}")
    # Of some pages what is there of the windows is damaged, or gone.
    for path in random.sample(sorted(pages.glob("*.kv")), 8):
        with open(path, "r+b") as f:
            f.seek(2000)
            f.write(random.randbytes(64))
    with Service(model=wide_model, sets=sets, options=("-v",)) as service:
        again, found = wrong(service)
        tap.ok(not again, f"pages and windows that were damaged are not used: the same bytes, with {found} tokens from disk", f"{again}\n{service.log_text()[-2000:]}")
    with Service(model=wide_model, sets=(*sets, "verifier.prefix_windows=yes"), options=("-v",)) as service:
        again, found = wrong(service)
        tap.ok(not again and found == 0 and until(lambda: "recurrent states or windows have another shape" in service.whole_log()),
               "files with windows apart are refused where all is stored alike: the same bytes", f"{again} {found}\n{service.log_text()[-2000:]}")

for whole, device in (("no", "cpu"), ("yes", "cpu"), ("no", "simt")):
    with Service(model=model, sets=("verifier.context=512", "verifier.kv_tokens=2048", "verifier.sessions_max=4", f"verifier.prefix_windows={whole}",
                                    f"verifier.device={device}"), options=("-v",)) as service:
        found, bad = windowed_turns(service, *((150, 50) if device == "cpu" else (70, 6)))
        tap.ok(not bad and found[0] == 0 and found[1] >= (160 if device == "cpu" else 64) and found[2] >= (224 if device == "cpu" else 64),
               f"models with sliding windows find what was said before, {'all' if whole == 'yes' else 'some'} of which is kept, on {device}",
               f"{found} {bad}\n{service.log_text()[-1500:]}")
        if (whole, device) == ("no", "cpu"):
            # Many at once that begin alike, more of them than there are windows for, some of them twice.
            forks = [same[:n] + [random.randrange(380) for _ in range(30)] for n in (160, 96, 130, 160, 40, 128)] * 2
            batch = [{"tokens": [t % 380 for t in f], "max_tokens": 40, "seed": 2, "k": (0, 3)[i % 2], "ignore_eos": True, "draft_method": "ngram"}
                     for i, f in enumerate(forks)]
            want = [reference(b["tokens"], 40, None, seed=2, model=model, extra=("--ignore-eos",)) for b in batch]
            before = len(shared(service))
            bad = [f"{i}: {what}" for r in (1, 4) for i, (got, w) in enumerate(zip(service.swarm(batch, concurrent=r), want)) if (what := difference(got, w))]
            tap.ok(not bad and sum(n >= 96 for n in shared(service)[before:]) >= len(forks) / 2, "prompts that part go on from where they do, with the same bytes",
                   f"{bad} {shared(service)[before:]}\n{service.log_text()[-1500:]}")
            # The cache in other sizes meanwhile: what it had and its windows are gone, and come again.
            wrong = []

            def resized_in_mid_answer():
                process, results = service.swarm_start(batch, concurrent=4)
                # On a slow machine the one before may still wait for a pass.
                wrong.extend(f"kv_tokens={n}" for n in (576, 4096, 1024)
                             if not until(lambda: service.ctl("knob", "set", f"verifier.kv_tokens={n}").returncode == 0))
                wrong.extend(f"{i}: {what}" for i, (got, w) in enumerate(zip(results(), want)) if (what := difference(got, w)))
                return wrong or {"576", "4096", "1024"} <= set(re.findall(r"KV cache: (\d+) tokens, was \d+; [1-9]", service.whole_log()))
            there = until(resized_in_mid_answer)
            before = len(shared(service))
            wrong += [what for got, w in zip(service.swarm(batch, concurrent=2), want) if (what := difference(got, w))]
            tap.ok(there and not wrong and sum(n >= 96 for n in shared(service)[before:]) >= len(forks) / 2,
                   "and so while the KV cache changes its size in mid-answer, and after that", f"{wrong} {shared(service)[before:]}\n{service.log_text()[-1500:]}")
tap.done()
