#!/usr/bin/env python3
"""What a request says about sampling has one range and one message: outrider, outrider-model and, past both, the verifier. Penalties,
filters and log probabilities give the same bytes whatever drafts, in every instruction set, and with the verifier killed."""
import itertools
import math
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import rubbish
from outrider_test import DRAFTS, SANITIZED, TARGET, Service, Tap, difference, program, prompts, reference, run, seeded

tap = Tap()
FLOAT_MAX = 3.4028235e38
# Flag, number in message Sampling, message's range, values that are refused, values that are taken.
TABLE = (
    ("temperature", 1, "temperature is {}: allowed are 0, or 1e-30 to 100", (-1.0, 100.5, 1e-31, 1e-37, -1e-37), (0.0, 1e-29, 0.7, 100.0)),
    ("top-k", 2, "top-k is {}: allowed are 0 to 1048576", ((1 << 20) + 1, 2000000), (0, 1, 1 << 20)),
    ("top-p", 3, "top-p is {}: allowed are more than 0, up to 1", (-0.5, 1.5, 1.001, -1e-9), (1e-30, 1e-7, 0.5, 1.0)),
    ("min-p", 4, "min-p is {}: allowed are 0 to 1", (-0.1, 1.5), (0.0, 1e-9, 1.0)),
    ("repeat-penalty", 5, "repeat penalty is {}: allowed are more than 0, up to 10", (-1.0, 10.5), (1e-9, 1.0, 10.0)),
    ("presence-penalty", 10, "presence penalty is {}: allowed are -2 to 2", (-2.5, 2.001), (-2.0, 0.0, 0.3, 2.0)),
    ("frequency-penalty", 11, "frequency penalty is {}: allowed are -2 to 2", (-2.001, 100.0), (-2.0, 0.0, 0.3, 2.0)),
    ("dry-multiplier", 15, "dry multiplier is {}: allowed are 0 to 100", (-1.0, 101.0), (0.0, 0.8, 100.0)),
    ("dry-base", 16, "dry base is {}: allowed are 1 to 100", (0.5, 101.0), (1.0, 1.75, 100.0)),
    ("top-n-sigma", 12, "top-n-sigma is {}: allowed are 0 to 100", (-1.0, 101.0), (0.0, 1.5, 100.0)),
    ("xtc-probability", 13, "xtc probability is {}: allowed are 0 to 1", (-0.1, 1.001), (0.0, 0.5, 1.0)),
    ("xtc-threshold", 14, "xtc threshold is {}: allowed are more than 0, up to 0.5", (-0.1, 0.6), (1e-9, 0.1, 0.5)),
    ("repeat-window", 6, "repeat window is {}: allowed are 0 to 1048576", ((1 << 20) + 1,), (0, 1, 1 << 20)),
)
NEEDED = {"dry-base": ("--dry-multiplier", "0.8"), "repeat-window": ("--repeat-penalty", "1.1"), "xtc-threshold": ("--xtc-probability", "0.5")}
# What each does, alone and all together, greedy and sampled.
MODES = {
    "greedy": {},
    "greedy, penalties": {"presence_penalty": 1.5, "frequency_penalty": 0.7},
    "penalties": {"temperature": 0.9, "presence_penalty": 0.8, "frequency_penalty": 0.5},
    "rewards": {"temperature": 0.7, "presence_penalty": -0.5, "frequency_penalty": -0.3},
    "top-n-sigma": {"temperature": 1.5, "top_n_sigma": 1.0},
    "DRY": {"temperature": 0.8, "dry_multiplier": 2.0},
    "greedy, DRY": {"dry_multiplier": 0.8},
    "XTC": {"temperature": 0.8, "xtc_probability": 0.5, "xtc_threshold": 0.1},
    "all": {"temperature": 1.1, "presence_penalty": 0.4, "frequency_penalty": 0.4, "repeat_penalty": 1.1, "dry_multiplier": 0.5, "top_n_sigma": 2.0, "top_k": 50,
            "top_p": 0.95, "min_p": 0.01, "xtc_probability": 0.3, "xtc_threshold": 0.15},
}
TOKENS, TOP = 24 if SANITIZED else 60, 3
KILLS = int(os.environ.get("OUTRIDER_TEST_KILLS", 2 if SANITIZED else 6))


def shown(value):
    return f"{value:.7g}"


with Service() as service:
    peer, uid = rubbish.Peer(service.runtime / "client"), 5000

    def asked(*fields):
        """The verifier's refusal of a request with this Sampling, None when it was taken."""
        global uid
        uid += 1
        answer = peer.ask(rubbish.envelope(10, rubbish.message((1, uid), (3, [5, 6, 7]), (5, rubbish.message((1, 1.0), *fields)), (6, 1),
                                                                (7, 1), (10, 100)), request=uid))
        while not {22, 30} & set(answer):
            answer = rubbish.parse(peer.receive())
        return rubbish.parse(answer[30])[2].decode() if 30 in answer else None

    def said(name, *arguments):
        model = ("--model", TARGET) if name == "outrider-model" else ("--runtime-dir", service.runtime)
        done = run(program(name), *arguments, *model, "--tokens", "5,6,7", "--max-tokens", "1", "--ignore-eos")
        return done.returncode, done.stderr

    def compare(flag, number, message, refused, taken):
        wrong = []
        for value in refused:
            text = message.format(shown(value))
            window = NEEDED.get(flag, ())
            status, error = said("outrider", "run", *window, f"--{flag}={value}")
            wrong += [] if status == 64 and text in error else [f"outrider --{flag}={value}: {status} {error}"]
            status, error = said("outrider-model", "generate", f"--{flag}={value}")
            range_alone = "0..1048576" if number in (2, 6) else text
            wrong += [] if status == 64 and range_alone in error else [f"outrider-model --{flag}={value}: {status} {error}"]
            error = asked((number, value))
            wrong += [] if error == text else [f"verifier, {flag} {value}: {error}"]
        for value in taken:
            window = NEEDED.get(flag, ())
            status, error = said("outrider", "run", *window, f"--{flag}={value}")
            wrong += [] if status == 0 else [f"outrider --{flag}={value}: {status} {error}"]
            status, error = said("outrider-model", "generate", f"--{flag}={value}")
            wrong += [] if status == 0 else [f"outrider-model --{flag}={value}: {status} {error}"]
            error = asked((number, value))
            wrong += [] if error is None else [f"verifier, {flag} {value}: {error}"]
        tap.ok(not wrong, f"{flag}: one range and one message", "\n".join(wrong))

    for row in TABLE:
        compare(*row)
    for name in ("temperature", "top-p", "min-p"):
        for value in ("nan", "x", "", "0x1p-1"):
            status, error = said("outrider", "run", f"--{name}={value}")
            allowed = next(m for f, _, m, _, _ in TABLE if f == name).split(": ")[1]
            tap.ok(status == 64 and allowed in error, f"{name} \"{value}\": the same range", error)
    tap.ok(asked((8, rubbish.message((1, 5), (2, -math.inf)))) is None, "a bias of -inf, which bans a token")
    for bias in (math.inf, math.nan):
        error = asked((8, rubbish.message((1, 5), (2, bias))))
        tap.ok(error and "token 5: logit bias is" in error and "numbers that a float can hold" in error, f"a bias of {bias}", error)
    status, error = said("outrider", "run", "--logit-bias", "5=1e39")
    tap.ok(status == 64 and "logit bias is 1e+39: allowed are numbers that a float can hold" in error, "a bias of 1e39", error)
    tap.ok(said("outrider", "run", "--logit-bias", "5=-3e38")[0] == 0, "a bias of -3e38")
    status, error = said("outrider", "run", "--top-k=1.5")
    tap.ok(status == 64 and "whole numbers, 0 to 1048576" in error, "top-k is whole", error)
    status, error = said("outrider", "run", "--logprobs=21", "--json")
    tap.ok(status == 64 and "0 to 20" in error, "more than 20 likely tokens are refused", error)
    uid += 1
    peer.send(rubbish.envelope(10, rubbish.message((1, uid), (3, [5, 6, 7]), (6, 1), (22, 22)), request=uid))
    answer = rubbish.parse(peer.receive())
    error = rubbish.parse(answer[30])[2].decode() if 30 in answer else answer
    tap.ok(30 in answer and "logprobs: 21 likely tokens are wanted, allowed are 0 to 20" in error, "by the verifier, too", error)
    peer.close()

ids = prompts(4, longest=64)
EXTRA = ("--ignore-eos", "--logprobs", TOP)
expected = {(mode, i): reference(p, TOKENS, MODES[mode], seed=40 + i, extra=EXTRA) for mode in MODES for i, p in enumerate(ids)}
tap.ok(len({str([expected[mode, i]["tokens"] for i in range(len(ids))]) for mode in MODES}) == len(MODES), "each way to sample gives tokens of its own")
wrong = []
for mode, kernels in itertools.product(MODES, ("scalar", "avx2", "avx512")):
    if run(program("outrider-model"), "logits", "--model", TARGET, "--tokens", 1, "--kernels", kernels).returncode == 64:
        continue  # not on this CPU
    other = reference(ids[0], TOKENS, MODES[mode], seed=40, extra=(*EXTRA, "--kernels", kernels))
    wrong += [f"{mode}, {kernels}: {what}"] if (what := difference(other, expected[mode, 0])) else []
tap.ok(not wrong, "tokens and log probabilities are the same in every instruction set", "\n".join(wrong))
likely = expected["greedy", 0]["logprobs"]
tap.ok(all(entry["top"][0] == {"token": entry["token"], "logprob": entry["logprob"]} and len(entry["top"]) == TOP and
           entry["top"] == sorted(entry["top"], key=lambda t: -t["logprob"]) and entry["logprob"] <= 0 and
           sum(math.exp(t["logprob"]) for t in entry["top"]) < 1.0001 for entry in likely), "the greedy token is the most likely one", likely[:3])


def request(mode, i, k, method, **more):
    return {"tokens": ids[i], "max_tokens": TOKENS, "seed": 40 + i, "k": k, "draft_method": method, "ignore_eos": True, "logits_hash": False,
            "logprobs": TOP, **MODES[mode], **more}


with Service(draft=DRAFTS["aligned"]) as service:
    for mode in MODES:
        wrong, accepted = [], 0
        for concurrent in (1, len(ids)):
            keys = [(k, method, i) for k, method in ((0, "none"), (3, "ngram"), (3, "model"), (15, "ngram"), (15, "model")) for i in range(len(ids))]
            for (k, method, i), result in zip(keys, service.swarm([request(mode, i, k, method) for k, method, i in keys], concurrent)):
                what = difference(result, expected[mode, i])
                wrong += [f"K = {k}, {method}, {i}, {concurrent} at a time: {what}"] if what else []
                accepted += 0 if what else result["usage"]["accepted"]
        tree = {"draft_nodes": 31, "draft_width": 4, "replay_error": 0.1, "replay": expected[mode, 0]["tokens"]}
        what = difference(service.swarm([request(mode, 0, 15, "replay", **tree)])[0], expected[mode, 0])
        wrong += [f"a tree: {what}"] if what else []
        tap.ok(not wrong and accepted > 0, f"{mode}: the same tokens and log probabilities for every K, drafter and batch", "\n".join(wrong[:5]))
    random, wrong, kills, answers = seeded(), [], 0, 0
    while kills < KILLS:
        keys = [(random.choice(list(MODES)), random.randrange(len(ids)), random.choice((0, 3, 15))) for _ in range(12)]
        process, results = service.swarm_start([request(mode, i, k, "model") for mode, i, k in keys], concurrent=3)
        while process.poll() is None and kills < KILLS:
            time.sleep(random.uniform(0.05, 0.3))
            if process.poll() is None:
                kills += service.kill("verifier")
        answers += len(keys)
        wrong += [f"{key}: {what}" for key, result in zip(keys, results()) if (what := difference(result, expected[key[:2]]))]
    tap.ok(not wrong, f"verifier killed {kills} times during {answers} answers: the same tokens and log probabilities", "\n".join(wrong[:5]))
    service.wait_ready()
    # Drafts that are accepted by their logits: a token need not be the one that was picked.
    result = service.swarm([{**request("top-n-sigma", 0, 7, "ngram"), "coupling": "maximal"}])[0]
    tap.ok([e["token"] for e in result["logprobs"]] == result["tokens"] and len(result["tokens"]) == TOKENS and
           all(e["logprob"] == t["logprob"] for e in result["logprobs"] for t in e["top"] if t["token"] == e["token"]),
           "with maximal coupling each token has its own", result)
tap.done()
