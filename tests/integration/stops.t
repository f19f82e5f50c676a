#!/usr/bin/env python3
"""Stop strings: those that name or contain control tokens, many, long ones; with drafts, and while the verifier is killed."""
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import DRAFTS, SANITIZED, TARGET, Service, Tap, program, prompts, reference, run, run_json, seeded

TOKENS = 120 if SANITIZED else 400
CONTROLS = range(3)
ENDS = (2,) # the end of a turn
STOPS, STOP_BYTES, ALL_BYTES = 256, 4095, 16384
tap = Tap()
random = seeded()
known = {}


def piece(token):
    """The bytes of a token, a control token's too."""
    if token not in known:
        done = subprocess.run([program("outrider-model"), "tokenize", "--model", TARGET, "--tokens", str(token), "--special",
                               "--format", "text"], stdout=subprocess.PIPE, check=True)
        known[token] = done.stdout
    return known[token]


def expected(tokens, stops):
    """By the definition: where the first stop string ends, of several that end there the longest; control tokens are matched whole
    and not shown. How many tokens, the text, the stop string."""
    text, cuts, visible = b"", {0}, []
    for n, token in enumerate(tokens, 1):
        hidden = token in CONTROLS
        for i, byte in enumerate(piece(token), 1):
            text += bytes([byte])
            visible.append(not hidden)
            if hidden and i < len(piece(token)):
                continue
            cuts.add(len(text))
            ends = [s for s in stops if text.endswith(s.encode()) and len(text) - len(s.encode()) in cuts]
            if ends:
                stop = max(ends, key=lambda s: len(s.encode()))
                kept = zip(text[:len(text) - len(stop.encode())], visible)
                return n, bytes(b for b, v in kept if v), stop
    return len(tokens), bytes(b for b, v in zip(text, visible) if v), None


def is_text(part):
    try:
        return bool(part.decode()) and b"\0" not in part
    except UnicodeDecodeError:
        return False


# Greedy answers that go on behind the end of a turn, so that control tokens are within them.
answers = []
for ids in prompts(24, longest=100):
    tokens = reference(ids, TOKENS, extra=("--ignore-eos",))["tokens"]
    places = [i for i in range(2, len(tokens) - 3) if tokens[i] in CONTROLS]
    if places:
        answers.append((ids, tokens, places[0]))
tap.ok(len(answers) >= 3, "control tokens occur within answers", len(answers))
cases = []
for ids, tokens, at in answers[:6]:
    control, before, behind = piece(tokens[at]).decode(), piece(tokens[at - 1]), piece(tokens[at + 1])
    named = [[control], ["never\x01", control], ["x" * STOP_BYTES, control], [control[1:-1], ">", "<|", "|>" + "\n"]]
    if is_text(before):
        named += [[before.decode() + control], [before.decode() + control[:-1]]]
    if is_text(before) and is_text(behind) and tokens[at + 1] not in CONTROLS:
        named += [[before.decode()[-1:] + control + behind.decode()[:1]], [before.decode() + control + "\x01"]]
    if tokens[at + 1] in CONTROLS:
        named.append([control + behind.decode()])
    named.append([f"{i:03}" + "\x02" * 20 for i in range(STOPS - 1)] + [control])
    # Stops of many tokens: in front of the control token, and across it and those that follow.
    across = b"".join(piece(t) for t in tokens[at - 1:at + 100])
    named += [[across[:k].decode()] for k in range(len(across) - 4, len(across)) if is_text(across[:k])][:1]
    text = b"".join(piece(t) for t in tokens[:at])
    named += [[text[-k:].decode() + control] for k in (5, 40, 300) if is_text(text[-k:])]
    cases += [(ids, tokens, stops) for stops in named]


def requests(chosen, k):
    return [{"tokens": ids, "max_tokens": TOKENS, "ignore_eos": True, "stop": stops, "k": k, "draft_method": "model" if k % 2 else "ngram"}
            for ids, _, stops in chosen]


def compare(chosen, results):
    wrong = []
    for (_, tokens, stops), result in zip(chosen, results):
        n, text, stop = expected(tokens, stops)
        if result.get("tokens") != tokens[:n] or result.get("text") != text.decode("utf-8", "replace") or \
                result.get("end") != ("stop" if stop else "length") or (result.get("stop") or None) != stop:
            wrong.append(f"{[s[:60] for s in stops[-2:]]}: {n} tokens, {text[-60:]}, {stop and stop[:60]}; but {str(result)[-600:]}")
    return "\n".join(wrong[:5])


ended = [expected(tokens, stops)[2] for _, tokens, stops in cases]
tap.ok(sum(bool(s) for s in ended) >= len(cases) // 3 and None in ended, "some of the stop strings are met, some are not", ended)
with Service(draft=DRAFTS["small"]) as service:
    for k in (0, 4, 7):
        results = service.swarm(requests(cases, k), concurrent=8)
        tap.ok(not (why := compare(cases, results)), f"K = {k}: answers end at control tokens that stop strings name, and only there", why)
    wrong, kills = [], 0
    while kills < (2 if SANITIZED else 6):
        chosen = [random.choice(cases) for _ in range(12)]
        process, results = service.swarm_start(requests(chosen, random.choice((0, 3))), concurrent=4)
        while process.poll() is None and kills < 6:
            time.sleep(random.uniform(0.05, 0.3))
            if process.poll() is None:
                kills += service.kill("verifier")
        wrong.append(compare(chosen, results()))
    tap.ok(not any(wrong), f"the same while the verifier is killed {kills} times", "\n".join(wrong))

    ids, tokens, stops = max((c for c in cases if len(c[2]) == 1 and expected(c[1], c[2])[2]), key=lambda c: len(c[2][0]))
    n, text, stop = expected(tokens, stops)
    said = run_json(program("outrider"), "run", "--runtime-dir", service.runtime, "--json", "--ignore-eos", "--max-tokens", str(TOKENS),
                    "--tokens", ",".join(map(str, ids)), "--stop", stop)
    tap.ok((said["tokens"], said["text"], said["end"], said["stop"]) == (tokens[:n], text.decode("utf-8", "replace"), "stop", stop) and len(stop) > 160,
           f"outrider run: a stop string of {len(stop)} bytes", said)

    # The token that ends an answer by itself completes no stop string: its text stays, and its end.
    wrong = []
    for ids, tokens, at in answers:
        text = expected(tokens[:at], [])[1]
        for k in (1, 3, 10):
            if tokens[at] in ENDS and is_text(text) and is_text(text[-k:]):
                result, = service.swarm([{"tokens": ids, "max_tokens": TOKENS, "stop": [text[-k:].decode() + piece(tokens[at]).decode()]}])
                if (result.get("text"), result.get("end"), result.get("tokens")) != (text.decode(), "eos", tokens[:at + 1]):
                    wrong.append((text[-k:], result))
                wrong.append(None)
    tap.ok(wrong.count(None) >= 3 and not any(wrong), "an answer that ends by itself has all of its text, whatever stop string begins there",
           [w for w in wrong if w][:3])

    def refused(words, stops):
        flags = [f for s in stops for f in ("--stop", s)]
        done = run(program("outrider"), "run", "--runtime-dir", service.runtime, "--tokens", "1,2", "--max-tokens", "1", *flags)
        tap.ok(done.returncode == 64 and all(w in done.stderr for w in words), f"refused with {words}", done)
        return done
    refused(("4096 bytes", "1 to 4095"), ["x" * (STOP_BYTES + 1)])
    refused(("more than 256 stop strings",), [f"stop {i}" for i in range(STOPS + 1)])
    refused(("all together may have",), ["x" * STOP_BYTES] * 4 + ["y"])
    most = ["x" * STOP_BYTES] * 3 + ["y" * 15] * (STOPS - 3)
    done = run(program("outrider"), "run", "--runtime-dir", service.runtime, "--tokens", "1,2", "--max-tokens", "3",
               *[f for s in most for f in ("--stop", s)])
    tap.ok(sum(len(s) + 1 for s in most) <= ALL_BYTES and done.returncode == 0, "as many and as long as may be are taken", done)
tap.done()
