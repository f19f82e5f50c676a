#!/usr/bin/env python3
"""Constrained output: what is generated matches its grammar, is the same whatever is drafted and whoever dies, and ends by itself;
grammars that are wrong are refused with where."""
import itertools
import json
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import DRAFTS, SAMPLED, SANITIZED, Service, Tap, program, prompts, run, seeded

TOKENS = 60 if SANITIZED else 160
KS = (0, 3, 15)
METHODS = ("none", "ngram", "model")
tap = Tap()
random = seeded()
ids = prompts(3, longest=64)

PERSON = {"type": "object", "additionalProperties": False, "required": ["name", "age", "tags"], "properties": {
    "name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3}}}
TREE = {"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "additionalProperties": False, "required": ["value", "kids"], "properties": {
    "value": {"type": "integer", "minimum": -99, "maximum": 99}, "kids": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/node"}}}}}}
ENUM = {"type": "object", "additionalProperties": False, "required": ["unit_of_measurement", "description"], "properties": {
    "unit_of_measurement": {"const": "millimetres"}, "description": {"type": ["string", "null"], "pattern": "^[a-z ]{5,40}$"}}}
REGEX = r"(yes|no), [a-z]{3,9}( [a-z]{2,7}){2,9}\."
GBNF = 'root ::= line{3}\nline ::= [0-9]+ (" + " [0-9]+)* " = " [0-9]{1,4} "\\n"'


def person(text):
    value = json.loads(text)
    return set(value) == {"name", "age", "tags"} and len(value["name"]) <= 20 and 0 <= value["age"] <= 150 and \
        len(value["tags"]) <= 3 and set(value["tags"]) <= {"red", "green", "blue"}


def node(value):
    return set(value) == {"value", "kids"} and -99 <= value["value"] <= 99 and len(value["kids"]) <= 2 and all(map(node, value["kids"]))


def described(text):
    value = json.loads(text)
    return value["unit_of_measurement"] == "millimetres" and (value["description"] is None or re.fullmatch("[a-z ]{5,40}", value["description"]))


GRAMMARS = {
    "a schema": (["json-schema", json.dumps(PERSON)], person),
    "a recursive schema": (["json-schema", json.dumps(TREE)], lambda text: node(json.loads(text))),
    "a schema with constants": (["json-schema", json.dumps(ENUM)], described),
    "any object": (["json-object", ""], lambda text: isinstance(json.loads(text), dict)),
    "a regular expression": (["regex", REGEX], lambda text: re.fullmatch(REGEX, text)),
    "GBNF": (["gbnf", GBNF], lambda text: re.fullmatch(r"([0-9]+( \+ [0-9]+)* = [0-9]{1,4}\n){3}", text)),
}
MODES = {"greedy": {}, "sampled": SAMPLED}


def request(name, mode, i, **more):
    return {"tokens": ids[i], "max_tokens": TOKENS, "seed": 40 + i, "grammar": GRAMMARS[name][0], **MODES[mode], **more}


def what_differs(result, expected):
    if "error" in result or "tokens" not in result:
        return f"no answer: {result}"
    if (result["tokens"], result["text"], result["end"]) != (expected["tokens"], expected["text"], expected["end"]):
        return f"{result['text']!r} {result['end']} is not {expected['text']!r} {expected['end']}"
    return None


def references(service):
    """Without drafts; each is checked against its grammar."""
    wrong, ended = [], 0
    keys = list(itertools.product(GRAMMARS, MODES, range(len(ids))))
    results = service.swarm([request(*key, k=0, draft_method="none", logits_hash=True) for key in keys], concurrent=4)
    for key, result in zip(keys, results):
        if result.get("end") == "eos":
            ended += 1
            try:
                right = GRAMMARS[key[0]][1](result["text"])
            except (ValueError, KeyError):
                right = False
            if not right:
                wrong.append((key, result["text"]))
        elif result.get("end") != "length":
            wrong.append((key, result))
    tap.ok(not wrong, "what ends by itself matches its grammar", wrong[:5])
    tap.ok(ended > len(keys) // 2, "most answers end by themselves", [(k, r.get("end"), r.get("text")) for k, r in zip(keys, results)])
    tap.ok(len({r.get("text") for r in results}) > len(keys) // 2, "they differ from each other")
    return dict(zip(keys, results))


def sweep(service, expected):
    for name in GRAMMARS:
        wrong, drafted, accepted, forced = [], 0, 0, 0
        for k, method in itertools.product(KS, METHODS):
            keys = list(itertools.product([name], MODES, range(len(ids))))
            results = service.swarm([request(*key, k=k, draft_method=method, logits_hash=True) for key in keys], concurrent=3)
            for key, result in zip(keys, results):
                what = what_differs(result, expected[key]) or \
                    (result["logits_hash"] != expected[key]["logits_hash"] and "other logits")
                if what:
                    wrong.append(f"K = {k}, {method}, {key}: {what}")
                    continue
                drafted += result["usage"]["drafted"] * (method != "none")
                accepted += result["usage"]["accepted"] * (method != "none")
                forced += result["usage"]["accepted"] * (method == "none")
        tap.ok(not wrong, f"{name}: all K and drafters give the bytes and logits of K = 0", "\n".join(wrong[:6]))
        tap.ok(drafted > accepted > 0, f"{name}: drafts were accepted and rejected", (drafted, accepted))
        if name in ("a schema", "a schema with constants"):
            tap.ok(forced > 0, f"{name}: what must follow is drafted without a drafter", forced)


def drafter_drafted(service):
    return service.details("drafter")["drafted"]


def followed(service):
    """The verifier counts the drafted tokens that their grammar allows: of a drafter that knows it, nearly all. (Without, 4 of 10.)"""
    if SANITIZED:
        tap.skip("the draft model follows the grammar", "compiling it takes most of an answer under a sanitizer")
        return
    batch = [request(name, mode, i, k=3, draft_method="model") for name in GRAMMARS for mode in MODES for i in range(len(ids))]
    without = [{**r, "draft_method": "none"} for r in batch]
    service.swarm(batch, concurrent=1)
    before = drafter_drafted(service)
    drafted = sum(r["usage"]["drafted"] for r in service.swarm(batch, concurrent=1))
    told = drafter_drafted(service) - before
    forced = sum(r["usage"]["drafted"] for r in service.swarm(without, concurrent=1))
    tap.ok(told > 100 and drafted - forced > 0.7 * told, "what the draft model drafts is what the grammar allows", (drafted, forced, told))


def trees(service, expected):
    """Trees of 31 tokens around the right path, with wrong siblings that grammars forbid."""
    wrong, drafted, accepted = [], 0, 0
    keys = list(itertools.product(GRAMMARS, MODES, [0]))
    results = service.swarm([request(*key, k=31, draft_method="replay", draft_nodes=31, draft_width=4, replay=expected[key]["tokens"],
                                     replay_error=0.2) for key in keys], concurrent=3)
    for key, result in zip(keys, results):
        what = what_differs(result, expected[key])
        if what:
            wrong.append(f"{key}: {what}")
        else:
            drafted, accepted = drafted + result["usage"]["drafted"], accepted + result["usage"]["accepted"]
    tap.ok(not wrong and accepted > 0, "trees of drafts give the same bytes", "\n".join(wrong[:6]) + f" {drafted} {accepted}")


def killed(service, expected, victim, rounds):
    wrong, kills, most = [], 0, 4 * rounds
    keys = list(itertools.product(GRAMMARS, MODES, range(len(ids))))
    while rounds > 0 or not kills:  # a quick machine may answer all of them first
        rounds -= 1
        batch = [request(*key, k=random.choice((-1, 0, 3, 15)), draft_method=random.choice(("ngram", "model"))) for key in keys]
        process, results = service.swarm_start(batch, concurrent=6)
        while process.poll() is None:
            time.sleep(random.uniform(0.05, 0.3))
            if process.poll() is None and kills < most:
                kills += service.kill(victim)
        for key, result in zip(keys, results()):
            what = what_differs(result, expected[key])
            if what:
                wrong.append(f"{key}: {what}")
    tap.ok(kills > 0 and not wrong, f"{victim} killed {kills} times meanwhile: the same bytes",
           "\n".join(wrong[:6]) + "\n" + service.log_text()[-1500:] if wrong else kills)
    service.wait_ready()


def refusals(service):
    deep = 'root ::= "x" r0\n' + "".join(f'r{i} ::= r{i + 1} ")"\n' for i in range(1200)) + 'r1200 ::= "y"\n'
    cases = [
        (["regex", "a(b"], {}, "grammar: byte 2: ( without )"),
        (["gbnf", "root ::= [a"], {}, "grammar: line 1, column 10: [ without ]"),
        (["json-schema", '{"type": '], {}, "grammar: line 1, column 9"),
        (["json-schema", '{"properties": {"a": {"not": {}}}}'], {}, 'grammar: #/properties/a: the keyword "not" is not supported'),
        (["json-schema", "false"], {}, "grammar: #: the schema is false: no value matches it"),
        (["regex", "a"], {"ignore_eos": True}, "ignore_eos"),
        (["regex", "a"], {"coupling": "maximal"}, "coupling"),
    ]
    for grammar, more, words in cases:
        result = service.swarm([{"tokens": ids[0], "max_tokens": 10, "grammar": grammar, **more}])[0]
        tap.ok(words in json.dumps(result, ensure_ascii=False).replace('\\"', '"') and not result.get("tokens"), f"refused: {words}", result)
    result = service.swarm([{"tokens": ids[0], "max_tokens": 10, "grammar": ["gbnf", deep]}])[0]
    tap.ok(result.get("end") == "error" and "no token can follow" in result.get("error", ""),
           "where no token can follow, the answer ends with an error that says so", result)


def command_line(service):
    schema = service.directory / "schema.json"
    schema.write_text(json.dumps(PERSON))
    common = ("run", "--runtime-dir", service.runtime, "--max-tokens", str(TOKENS), "A person:")
    made = run(program("outrider"), *common, "--json-schema", str(schema))
    tap.ok(made.returncode == 0 and person(made.stdout), "outrider run --json-schema", made)
    piped = run(program("outrider"), *common, "--grammar", "-", stdin='root ::= "a" | "b"')
    tap.ok(piped.returncode == 0 and piped.stdout.strip() in ("a", "b"), "outrider run --grammar -", piped)
    matched = run(program("outrider"), *common, "--regex", "[0-9]{3}")
    tap.ok(matched.returncode == 0 and re.fullmatch("[0-9]{3}", matched.stdout.strip()), "outrider run --regex", matched)
    for words, status, *flags in (("byte 1: nothing to repeat", 65, "--regex", "*"), ("No such file", 66, "--grammar", "/none"),
                                  ("grammar of 65537 bytes: at most 65536 are allowed", 64, "--regex", "a" * 65537),
                                  ("--json-object: --regex already says", 64, "--regex", "a", "--json-object")):
        bad = run(program("outrider"), *common, *flags)
        tap.ok(bad.returncode == status and words in bad.stderr, f"outrider run {' '.join(flags)[:60]}: {words}", bad)


with Service(draft=DRAFTS["aligned"], options=("--budget", "50%")) as service:
    expected = references(service)
    sweep(service, expected)
    followed(service)
    trees(service, expected)
    refusals(service)
    command_line(service)
    killed(service, expected, "verifier", 1 if SANITIZED else 2)
    killed(service, expected, "drafter", 1)
tap.done()
