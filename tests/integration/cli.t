#!/usr/bin/env python3
"""The command lines against the real service: run, chat, status, outriderctl, the example, the installed files."""
import fcntl
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from gguf_file import STRING, Gguf
from outrider_test import (BUILD, DRAFTS, PROCESSES, ROOT, SANITIZED, TARGET, TARGET_Q4, Service, Tap, ended, finish, program,
                           run, run_json, session_name, until)

tap = Tap()
if not TARGET.exists():
    tap.skip("the command lines", f"{TARGET.name} is not there")
    tap.done()
PROMPT = [1, 2, 3, 4, 5, 6, 7, 8]
IDS = ",".join(map(str, PROMPT))


def client(service, *arguments, **more):
    return run(program("outrider"), *arguments, "--runtime-dir", service.runtime, **more)


def check_run(service):
    reference = run_json(program("outrider-model"), "generate", "--model", TARGET, "--tokens", IDS, "--max-tokens", 24,
                         "--ignore-eos", "--format", "json")["tokens"]
    common = ("--tokens", IDS, "--max-tokens", 24, "--ignore-eos", "--format", "json")
    for k in (0, 3):
        result = client(service, "run", *common, "--k", k)
        answer = json.loads(result.stdout) if result.returncode == 0 else {}
        tap.ok(answer.get("tokens") == reference, f"run gives the model's tokens at K = {k}", result.stderr)
        used = answer.get("usage", {}).get("k_used", [])
        # The last iterations draft no more than what is still wanted.
        tap.ok(used and used[k] and not any(used[k + 1:]), f"and used K = {k}", used)
    replayed = client(service, "run", *common, "--k", 7, "--replay", ",".join(map(str, reference)))
    answer = json.loads(replayed.stdout) if replayed.returncode == 0 else {"usage": {}}
    tap.ok(answer.get("tokens") == reference and 0 < answer["usage"]["drafted"] == answer["usage"]["accepted"],
           "a replayed continuation is accepted whole", replayed.stdout + replayed.stderr)
    text = client(service, "run", "--max-tokens", 12, "--chat", "Hello")
    piped = client(service, "run", "--max-tokens", 12, "--chat", stdin="Hello")
    tap.ok(text.returncode == 0 and text.stdout == piped.stdout and "\033" not in text.stdout and not text.stderr,
           "a pipe gets the text and nothing else", repr(text.stdout + text.stderr))
    piped = client(service, "run", "--max-tokens", 12, "--chat", "-", stdin="Hello")
    tap.ok(piped.returncode == 0 and text.stdout == piped.stdout, "- is standard input", repr(piped.stdout + piped.stderr))
    as_json = json.loads(client(service, "run", "--max-tokens", 12, "--chat", "Hello", "--json").stdout)
    tap.ok(as_json["text"] == text.stdout, "the text in JSON is the same", as_json["text"])
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([{"role": "user", "content": "Hello"}], file)
        file.flush()
        said = client(service, "run", "--max-tokens", 12, "--messages", file.name)
    tap.ok(said.stdout == text.stdout, "so is that of a conversation from a file", said.stderr)
    full = client(service, "run", "--tokens", IDS, "--ignore-eos", "--json")
    n = len(json.loads(full.stdout)["tokens"]) if full.returncode == 0 else -1
    tap.ok(json.loads(full.stderr) == {"notice": f"the context is full: the answer ends after {n} tokens"},
           "an answer that fills the context says so", full.stderr)


def check_experts_draft(service):
    common = ("--tokens", IDS, "--max-tokens", 48, "--ignore-eos", "--json", "--draft-method")
    plain, drafted = (json.loads(client(service, "run", *common, *method).stdout) for method in (("none",), ("model", "--k", 3)))
    tap.ok(drafted["tokens"] == plain["tokens"] and drafted["usage"]["accepted"] > 0 == plain["usage"]["drafted"],
           "a draft model with experts drafts too", drafted["usage"])


def check_refusals(service):
    long = ",".join(["1"] * 20000)
    for what, status, word, arguments in (
            ("a prompt longer than the context", 65, "context", ("--tokens", long)),
            ("a token beyond the vocabulary", 65, "99999999", ("--tokens", "1,99999999")),
            ("a token that is none", 65, "x", ("--tokens", "1,x")),
            ("a token that is missing", 65, "a comma without a token id", ("--tokens", "1,,2")),
            ("a comma at the end", 65, "a comma without a token id", ("--tokens", "1,2,")),
            ("an unknown flag", 64, "run: unknown option --nonsense;", ("--nonsense", "hi")),
            ("an unknown letter", 64, "run: unknown option -x;", ("-x", "hi")),
            ("a prompt without quotes", 64, "put a prompt of several words in quotes", ("In", "the", "beginning")),
            ("two prompts", 64, "but not from both", ("--file", "x", "-")),
            ("a conversation of tokens", 64, "--chat", ("--chat", "--tokens", "1,2")),
            ("a system message before tokens", 64, "--system", ("--system", "x", "--tokens", "1,2")),
            ("K beyond its range", 64, "63", ("--k", "64", "hi")),
            ("K below its range", 64, "from 0 to 63", ("--k", "-1", "hi")),
            ("a temperature too small to divide by", 64, "1e-30", ("--temperature", "1e-40", "hi")),
            ("one that is 0 as a float", 64, "1e-30", ("--temperature", "1e-60", "hi")),
            ("an unknown draft method", 64, "auto, none, ngram, model, replay, eagle3, mtp, mtp-lora and layer-skip", ("--draft-method", "magic", "hi")),
            ("a replay that another method would not read", 64, "--draft-method replay, not ngram",
             ("--draft-method", "ngram", "--replay", "1,2", "hi")),
            ("an error of no replay", 64, "--replay", ("--replay-error", "0.5", "hi")),
            ("a hash of logits that would not be printed", 64, "--json", ("--logits-hash", "hi")),
            ("a variable without a value", 64, '--set: "x" is not NAME=VALUE', ("--chat", "--set", "x", "hi")),
            ("a variable that the service writes", 64, "--set: messages", ("--chat", "--set", "messages=[]", "hi")),
            ("a variable of no template", 64, "--chat, --system or --messages", ("--set", "x=1", "hi")),
            ("a file that is a directory", 66, "/tmp: Is a directory", ("--file", "/tmp")),
            ("messages that are a directory", 66, "/tmp: Is a directory", ("--messages", "/tmp")),
            ("a file that is not there", 66, "/non?existent", ("--file", "/non\x1bexistent"))):
        result = client(service, "run", *arguments)
        tap.ok(result.returncode == status and word in result.stderr and result.stderr.startswith("outrider: ") and
               result.stderr.count("\n") == 1, f"{what} is refused with status {status}", f"{result.returncode}: {result.stderr}")
    missing = run(program("outrider"), "run", "hi", "--seed")
    tap.ok(missing.returncode == 64 and missing.stderr.startswith("outrider: run: --seed needs a value;"),
           "a flag without its value is refused with status 64", missing.stderr)
    for command in ("chat", "status", "up", "down"):
        result = client(service, command, "--nonsense")
        tap.ok(result.returncode == 64 and result.stderr.startswith(f"outrider: {command}: unknown option --nonsense;") and
               result.stderr.count("\n") == 1, f"an unknown flag of {command}, too", result.stderr)
    late = client(service, "run", "--tokens", IDS, "--ignore-eos", "--timeout", "0.001", "--format", "json")
    tap.ok(late.returncode in (0, 75), "a deadline ends the answer", late.stderr)
    result = client(service, "run", "--max-tokens", 3, "hi")
    tap.ok(result.returncode == 0, "and the service goes on", result.stderr)


CALL = [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}}]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def check_variables(service, model, path):
    """What --set says is what `outrider-model render --set` says, over what the file says."""
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "Add."}], "style": "long", "tools": TOOLS}))
    text = run_json(program("outrider-model"), "render", "--model", model, "--messages", path, "--set", "style=[false]")["text"]
    ids = run_json(program("outrider-model"), "tokenize", "--model", model, stdin=text)["tokens"]
    common = ("--max-tokens", 8, "--ignore-eos")
    expected = client(service, "run", "--tokens", ",".join(map(str, ids)), *common).stdout
    got = client(service, "run", "--messages", path, "--set", "style=[false]", *common)
    tap.ok(text.endswith("[False]") and got.returncode == 0 and got.stdout == expected,
           "run --set sets a variable of the template", f"{text}\n{got.stdout}{got.stderr}")
    for words in (("run", "--chat"), ("run", "--system", "Hi")):
        tokens = {s: json.loads(client(service, *words, "--json", "--set", f"style={s}", "--max-tokens", 1, "Add.").stdout)
                  ["usage"]["prompt_tokens"] for s in ("x", "[1,2,3,4,5,6,7,8]")}
        tap.ok(tokens["x"] < tokens["[1,2,3,4,5,6,7,8]"], f"{' '.join(words)} --set does", tokens)
    one = client(service, "run", "--chat", "--set", "style=brief", *common, "Add.")
    talk = client(service, "chat", "--set", "style=brief", *common, stdin="Add.\n/reset\nAdd.\n")
    tap.ok(one.returncode == 0 and talk.returncode == 0 and talk.stdout == 2 * (one.stdout + "\n"),
           "so does chat --set, in each turn", f"{one.stdout!r} {talk.stdout!r} {talk.stderr}")


def check_messages():
    """Conversations are those of `outrider-model render`: the service's prompt is what that prints."""
    folder = Path(tempfile.mkdtemp(prefix="outrider-messages-", dir="/var/tmp"))
    model, path = folder / "model.gguf", folder / "messages.json"
    shown = Gguf(TARGET)
    shown.keys["tokenizer.chat_template"] = STRING, b"{{ messages | tojson }} {{ tools | tojson }} {{ style }}"
    shown.write(model)
    said = {"role": "user", "content": "Add."}
    cases = {"every role": [{"role": r, "content": "Hi"} for r in
                            ("system", "user", "assistant", "tool", "developer", "function")],
             "no content": [said, {"role": "assistant", "content": None, "tool_calls": CALL},
                            {"role": "tool", "tool_call_id": "c1", "content": "2"}],
             "content in parts": [{"role": "user", "content": [{"type": "text", "text": "Größe"}]}],
             "tools": {"messages": [said], "tools": TOOLS, "style": "brief"}}
    try:
        with Service(model=model) as service:
            for what, messages in cases.items():
                path.write_text(json.dumps(messages))
                text = run_json(program("outrider-model"), "render", "--model", model, "--messages", path)["text"]
                ids = run_json(program("outrider-model"), "tokenize", "--model", model, stdin=text)["tokens"]
                common = ("--max-tokens", 8, "--ignore-eos", "--format", "json")
                got = client(service, "run", "--messages", path, *common)
                expected = json.loads(client(service, "run", "--tokens", ",".join(map(str, ids)), *common).stdout)
                answer = json.loads(got.stdout or "{}")
                tap.ok(answer.get("tokens") == expected["tokens"] and
                       answer["usage"]["prompt_tokens"] == expected["usage"]["prompt_tokens"],
                       f"a conversation with {what} is rendered as outrider-model does it", f"{text}\n{got.stderr}")
            check_variables(service, model, path)
            lacks = client(service, "run", "--draft-method", "model", "hi")
            tap.ok(lacks.returncode == 65 and "up --draft FILE" in lacks.stderr and not lacks.stdout,
                   "a draft model that the service has not is no n-grams, but said", f"{lacks.returncode} {lacks.stderr}")
            for what, messages, words in (
                    ("an unknown role", [{"role": "robot", "content": "x"}], "robot"),
                    ("one of a message of parts", [{"role": "robot", "content": []}], "tool, developer and function"),
                    ("a message without a role", [{"content": "x"}], "message 0"),
                    ("content that is a number", [said, {"role": "user", "content": 1}], "message 1"),
                    ("messages that are too large", [{"role": "user", "content": "x" * 700000}] * 4,
                     "messages of 2100000 bytes: at most 2097152 are allowed")):
                path.write_text(json.dumps(messages))
                result = client(service, "run", "--messages", path)
                tap.ok(result.returncode == 65 and words in result.stderr, f"{what} is refused", result.stderr)
            tap.ok(until(lambda: service.status()[0]["state"].startswith("ready")), "and the verifier goes on", service.status())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_interrupt(service):
    process = subprocess.Popen([program("outrider"), "run", "--runtime-dir", str(service.runtime), "--ignore-eos",
                                "--k", "0", "--tokens", IDS], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    finish(process, 60)
    tap.ok(process.returncode in (130, 0), "Ctrl-C ends an answer", process.returncode)


def check_timeout(service):
    """A verifier that hangs is not waited for beyond the time that the answer may take."""
    victim = service.end("verifier", signal.SIGSTOP)
    late = client(service, "run", "--tokens", IDS, "--max-tokens", 4, "--timeout", "600ms", "--wait", "1h", timeout=300)
    away = client(service, "run", "--tokens", IDS, "--max-tokens", 4, "--wait", "0", timeout=300)
    os.kill(victim, signal.SIGCONT)
    tap.ok(away.returncode == 69 and "for 0.5 s: the verifier's process exists, but it is stopped or hangs" in away.stderr,
           "run --wait 0 gives a verifier that hangs the time to answer, and no more", away.stderr)
    tap.ok(late.returncode == 69 and "the time of 0.6 s is up" in late.stderr and "is stopped or hangs" in late.stderr and
           not late.stdout, "run --timeout ends with a verifier that hangs, whatever --wait says", f"{late.returncode} {late.stderr}")
    answers = until(lambda: client(service, "run", "--tokens", IDS, "--max-tokens", 4, "--timeout", "100s").returncode == 0)
    tap.ok(answers, "and takes nothing from one that answers again")
    waits = until(lambda: client(service, "run", "--tokens", IDS, "--max-tokens", 4, "--wait", "0").returncode == 0)
    tap.ok(waits, "nor does run --wait 0 from one that is there")


def check_idle(service):
    """What can do nothing is refused, by its name."""
    for words, status, said in ((("--draft-method", "replay"), 64, "--replay"), (("--draft-method", "none", "--k", "2"), 64, "--k 2"),
                                (("--repeat-window", "4"), 64, "--repeat-penalty"),
                                (("--timeout", "soon"), 64, "--timeout"),
                                (("--timeout", "0"), 64, "allowed are times from 1ms to 1000000s, such as"), (("--wait", "2d"), 64, "--wait")):
        refused = client(service, "run", *words, "hi")
        tap.ok(refused.returncode == status and said in refused.stderr and refused.stderr.count("\n") == 1 and not refused.stdout,
               f"run {' '.join(words)} is refused", f"{refused.returncode} {refused.stderr}")
    method = service.ctl("knob", "set", "drafter.method=replay")
    tap.ok(method.returncode == 65 and "outrider run --replay" in method.stderr, "a service has nothing to replay", method.stderr)
    fine = client(service, "run", "--tokens", IDS, "--max-tokens", 4, "--draft-method", "none", "--k", 0, "--repeat-penalty", "1.1",
                  "--repeat-window", 4)
    tap.ok(fine.returncode == 0, "what can do something is not", fine.stderr)


def check_chat(service):
    talk = client(service, "chat", "--max-tokens", 8, stdin="Hello\n/stats\n/reset\n/nonsense\nHello\n/quit\nnever\n")
    tap.ok(talk.returncode == 0 and "tokens/s" in talk.stdout and 'no command "/nonsense"; /help' in talk.stdout,
           "chat answers lines and commands from a pipe", talk.stdout + talk.stderr)
    lines = talk.stdout.split("\n")
    expected = client(service, "run", "--chat", "--max-tokens", 8, "Hello").stdout.split("\n")
    tap.ok(lines[:len(expected)] == expected and lines[-len(expected) - 1:-1] == expected,
           "after /reset the same question gets the same answer", talk.stdout)


def check_status(service):
    states = {}

    def all_answer():
        """What is busy with something else just then says nothing in time."""
        states.update({p["name"]: p for p in service.status()})
        return set(states) == set(PROCESSES) and all(p["pid"] and p["generation"] for p in states.values())
    tap.ok(until(all_answer), "status names the four with pid and generation", states)
    policy = service.end("policy", signal.SIGSTOP)
    for _ in range(5):
        result, admin = client(service, "status", "--json"), service.ctl("status", "--json")
        seen, told = ({p["name"]: p for p in json.loads(said.stdout)["processes"]} for said in (result, admin))
        if all(by[name]["generation"] for name in PROCESSES if name != "policy" for by in (seen, told)):
            break
    words = client(service, "status").stdout + service.ctl("status").stdout
    # Nobody has woken it: who waited for it would wait still.
    hung = Path(f"/proc/{policy}/stat").read_text().rsplit(")", 1)[1].split()[0]
    os.kill(policy, signal.SIGCONT)
    tap.ok(result.returncode == 69 and seen["policy"]["state"] == "no answer yet",
           "a process that hangs gives no answer, status 69", seen)
    nothing = {"generation": None, "uptime_ns": None, "rss_bytes": None, "version": None, "details": None}
    for program_name, by, whole in (("outrider", seen, result), ("outriderctl", told, admin)):
        tap.ok({**by["policy"], **nothing, "pid": policy} == by["policy"] and by["policy"].keys() == by["verifier"].keys() and
               json.loads(whole.stdout)["given_up"] is None,
               f"{program_name} status shows its pid, and what it has not said as null", by["policy"])
    tap.ok(re.search(rf"^policy +{policy} +- +- +no answer yet$", words, re.M) and f"\npolicy: no answer yet\n  pid {policy}\n" in words,
           "in words too", words)
    tap.ok(hung == "T" and all(seen[name]["generation"] for name in PROCESSES if name != "policy"),
           "and status does not wait for it: it is over while that hangs, with what the others say", (hung, seen))


def check_plot(service):
    """policy plot: what it draws, and what it says when it cannot."""
    result = client(service, "run", "--tokens", IDS, "--max-tokens", 300, "--ignore-eos", "--k", 0, "--format", "json")
    records = []

    def journaled():
        """The newest session's iterations are in the journal when the policy-controller has read them all."""
        records[:] = json.loads(service.ctl("policy", "plot", "--format", "json").stdout or "{}").get("records", [])
        return sum(r["emitted"] for r in records) == 300
    tap.ok(until(journaled) and result.returncode == 0, "policy plot has every iteration of the newest session", len(records))
    known = [r for r in records if r["prefill_tokens"] == 0 and r["emitted"] > 0]
    # The request fixed K: the policy decided by nothing. What is not known is no number.
    tap.ok(known and all(r["decided_utility"] is None for r in records) and all(r["base_us"] != 0 != r["etr"] for r in records) and
           any(r["base_us"] for r in known), "what was not measured is null", records[:2])
    text = service.ctl("policy", "plot").stdout
    axis = re.search(r"^ {10}1 +iteration, after the prompt +299$", text, re.M)
    tap.ok("299 iterations" in text and "\nK, drafted tokens asked for; 0 in every iteration\n" in text and
           "\nutility of the last iterations with K > 0: above 1 drafts pay; none, because nothing was drafted\n" in text and
           "\niteration time / that at K = 0; " in text and
           "mean of 4.3 iterations" in text and len(re.findall(r"^[ .0-9]{8} \|", text, re.M)) == 5 and axis and len(axis[0]) == 80,
           "what was always the same is a line of words, so is a utility where nothing was drafted, the rest curves over 1 to 299", text)
    # The same answer with drafts: the time at K = 0 is known of the session before.
    client(service, "run", "--tokens", IDS, "--max-tokens", 300, "--ignore-eos", "--k", 2)
    tap.ok(until(journaled) and any(r["k"] == 2 for r in records), "so has that of one that drafts", records[:3])
    text = service.ctl("policy", "plot").stdout
    known = [r for r in records if r["prefill_tokens"] == 0 and r["emitted"] > 0 and r["base_us"] and r["k"] > 0]
    tokens, cost, drafted, shown = 0, 0, 0, []
    for i, r in enumerate(known):
        weight = 0.125 if i else 1
        tokens += weight * (r["emitted"] - tokens)
        cost += weight * (r["iteration_us"] / r["base_us"] - cost)
        drafted += weight * (r["drafted"] - drafted)
        if drafted >= 0.01:
            shown.append(tokens / cost)
    drawn = re.search(r"^utility of the last iterations .*; ([0-9.]+) to ([0-9.]+), mean", text, re.M)
    tap.ok(drawn and all(abs(float(d) - u) < 0.001 * u for d, u in zip(drawn.groups(), (min(shown), max(shown)))),
           "its utility is of the tokens and times that are drawn with it", f"{drawn and drawn[0]} {shown and (min(shown), max(shown))}")
    drafting = records[0]["session"]
    # Asked for, and none came: there is no utility of it, whatever the times.
    client(service, "run", "--tokens", IDS, "--max-tokens", 300, "--ignore-eos", "--k", 3, "--replay", "1")
    tap.ok(until(lambda: journaled() and records[0]["session"] != drafting) and not any(r["drafted"] for r in records) and
           any(r["base_us"] and r["k"] > 0 for r in records), "K above 0 and nothing drafted", records[:3])
    text = service.ctl("policy", "plot").stdout
    tap.ok("\nutility of the last iterations with K > 0: above 1 drafts pay; none, because nothing was drafted\n" in text,
           "has no utility", text)
    for words, status, said in ((("7",), 65, "session 7 ("), (("x",), 64, '"x"'), (("7", "x.pdf"), 64, "x.pdf"),
                                (("x.svg", "--json"), 64, "exclude each other"), (("1", "2", "x.svg"), 64, "unexpected"),
                                ((f"{service.runtime}/none/x.svg",), 73, "/none/x.svg")):
        refused = service.ctl("policy", "plot", *words)
        tap.ok(refused.returncode == status and said in refused.stderr and not refused.stdout,
               f"policy plot {' '.join(words).replace(str(service.runtime), '')}: status {status}", refused.stderr)
    if not shutil.which("gnuplot"):
        tap.skip("a picture of it", "no gnuplot")
        return
    for kind, begin in (("svg", b"<?xml"), ("png", b"\x89PNG")):
        path = service.directory / f"plot.{kind}"
        drawn = service.ctl("policy", "plot", drafting, path)
        picture = path.read_bytes() if path.exists() else b""
        tap.ok(drawn.returncode == 0 and drawn.stdout == f"{path}\n" and not drawn.stderr and picture.startswith(begin) and
               (kind == "png" or all(word in picture for word in (b" iterations, ", b"utility", b"K, drafted tokens asked for",
                                                                b"tokens emitted per iteration", b"iteration time / that at K = 0",
                                                                b"iteration, after the prompt"))),
               f"policy plot draws a {kind}", drawn.stdout + drawn.stderr)


def running_is_first(service):
    """Whether top names a session that runs before those that have ended."""
    busy = subprocess.Popen([program("outrider"), "run", "--runtime-dir", service.runtime, "--tokens", IDS, "--max-tokens", "3000",
                             "--ignore-eos"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    states = re.findall(r"^[a-z]+-[a-z]+ +(done|running) ", service.ctl("top", "--once").stdout, re.M)
    busy.wait()
    return "done" in states and states[0] == "running"


def newest_is_read(service):
    """Whether the policy-controller has read every iteration of its newest session, which has ended: the last one leaves all tokens."""
    records = json.loads(service.ctl("policy", "plot", "--json").stdout or "{}").get("records", [])
    for session in json.loads(service.ctl("sessions", "--json").stdout)["sessions"]:
        if records and session["uid"] == records[-1]["session"]:
            return session["state"] == "done" and records[-1]["n_context"] == session["prompt_tokens"] + session["output_tokens"]
    return False


def check_unmeasured(service):
    """A session that has never been at K = 0, nor any before it: what its iterations cost more is not known."""
    tokens = 41  # one of the prompt's pass, then four in each
    ids = run_json(program("outrider-model"), "generate", "--model", TARGET, "--tokens", IDS, "--max-tokens", tokens, "--ignore-eos",
                   "--format", "json")["tokens"]
    client(service, "run", "--tokens", IDS, "--max-tokens", tokens, "--ignore-eos", "--k", 3, "--replay", ",".join(map(str, ids)))
    records = []

    def journaled():
        records[:] = json.loads(service.ctl("policy", "plot", "--json").stdout or "{}").get("records", [])
        return sum(r["emitted"] for r in records) == tokens
    tap.ok(until(journaled, 20) and all(r["base_us"] is None for r in records), "a time that nobody measured is null", records)
    text = service.ctl("policy", "plot", records[0]["session"]).stdout if records else ""
    tap.ok("\niteration time / that at K = 0; not measured\n" in text and
           "\nutility of the last iterations with K > 0: above 1 drafts pay; not measured\n" in text, "no curve is drawn of it", text)
    session = json.loads(service.ctl("policy", "get", "--all", "--json").stdout)["sessions"][0]
    tap.ok([session[f] for f in ("utility", "decided_utility", "base_ms", "base_age")] == [None] * 4 and session["acceptance"] > 0.9,
           "nor is it in the table", session)
    if shutil.which("gnuplot"):
        path = service.directory / "unmeasured.svg"
        service.ctl("policy", "plot", path)
        tap.ok(path.exists() and b"not measured" in path.read_bytes(), "nor in a picture")
    else:
        tap.skip("nor in a picture", "no gnuplot")


def check_ctl(service):
    nothing = [json.loads(service.ctl(*words, "--json").stdout) for words in (("cache", "stats"), ("sessions",))]
    unknown = re.search(r"^look-ups .* - hits", service.ctl("cache", "stats").stdout, re.M)
    helped = " ".join(service.ctl("cache", "stats", "--help").stdout.split())
    tap.ok("in those passes of a layer for which it hinted anything" in helped and '"any" counts the passes for which any source hinted'
           in helped, "cache stats --help says what each recall is of", helped)
    tap.ok(nothing[0]["hit_rate"] is None and unknown and not nothing[1]["sessions"], "the share of nothing is not known", nothing[0])
    empty = service.ctl("policy", "plot")
    tap.ok(empty.returncode == 65 and "no session has had an iteration yet" in empty.stderr, "policy plot of nothing says so",
           empty.stderr)
    check_unmeasured(service)
    client(service, "run", "--tokens", IDS, "--max-tokens", 40, "--ignore-eos")  # so that there is something to see
    told = []

    def told_of():
        told[:] = [service.ctl("policy", "explain").stdout]
        return "chosen by policy yield" in told[0] and "iteration at K = 0, measured " in told[0]
    tap.ok(until(told_of, 20) and "iteration at K = 0, expected " in told[0] and not re.search(r"\bpass", told[0]),
           "policy explain speaks of iterations, measured and expected", told[0])
    tap.ok(all(re.search(rf"^  {name} per iteration, lately +[\d.]+ +tokens$", told[0], re.M) for name in ("tokens", "drafted", "accepted")),
           "and tells means of the last ones from totals", told[0])
    for words in (("status",), ("sessions",), ("policy", "get"), ("cache", "stats"), ("cache", "stats", "--layers"),
                  ("top", "--once"), ("policy", "watch", "--once"), ("policy", "plot"), ("policy", "explain")):
        text, as_json = service.ctl(*words), service.ctl(*words, "--format", "json")
        try:
            parsed = json.loads(as_json.stdout)
        except json.JSONDecodeError:
            parsed = None
        tap.ok(text.returncode == as_json.returncode == 0 and text.stdout and parsed is not None,
               f"outriderctl {' '.join(words)} prints text and JSON", text.stderr + as_json.stderr)
    tap.ok(until(lambda: running_is_first(service)), "top names the sessions that run before those that have ended")
    # What is read behind the change would be told of as the last K.
    tap.ok(until(lambda: newest_is_read(service)), "the policy-controller reads every iteration of a session")
    changed = service.ctl("policy", "set", "static:2", "--format", "json")
    tap.ok(changed.returncode == 0 and [(c["process"], c["name"], c["old"], c["new"]) for c in json.loads(changed.stdout)["changes"]]
           == [("policy", "policy", "yield", "static:2")], "policy set says what it changed, from what to what",
           changed.stdout + changed.stderr)
    again = service.ctl("policy", "set", "static:2", "k_max=6")
    tap.ok(again.returncode == 0 and again.stdout == "policy.policy: static:2, as before\npolicy.k_max: 15 -> 6\n",
           "and in words, a line each", again.stdout + again.stderr)
    service.ctl("knob", "reset", "k_max")
    over = json.loads(service.ctl("policy", "explain", "--json").stdout)
    spoken = service.ctl("policy", "explain").stdout
    tap.ok(over["live"] is False and over["k"] == 2 and spoken.startswith(
        f"session {session_name(over['uid'])}: K = {over['k_last']}; it has ended, last iteration ") and
        "  If it went on: K = 2, chosen by policy static:2, phase set.\n" in spoken and
        f"K {over['decisions'][-1]['k_old']} -> 2" in spoken and
        over["k_last"] in [over["decisions"][-2][k] for k in ("k_new", "k_then")],
        "of a session that has ended, policy explain says so, and its last K", f"{over} {spoken}")
    result = client(service, "run", "--tokens", IDS, "--max-tokens", 16, "--ignore-eos", "--format", "json")
    for words in (("policy", "explain"), ("policy", "plot")):
        helped = run(program("outriderctl"), *words, "--help").stdout
        tap.ok(helped.startswith(f"usage: outriderctl {' '.join(words)} [SESSION] "), f"{' '.join(words)} --help names the session",
               helped)
    used = json.loads(result.stdout)["usage"]["k_used"]
    tap.ok(used[2] > 0 and not any(used[3:]), "and the next request feels it", used)
    explained = {}

    def explains(k, fixed):
        """The newest session is explained once the controller has read what the verifier wrote of it."""
        explained.update(json.loads(service.ctl("policy", "explain", "--format", "json").stdout or "{}"))
        return explained.get("k") == k and explained.get("k_fixed") == fixed
    tap.ok(until(lambda: explains(2, False)) and explained["policy"] == "static:2" and explained["words"],
           "policy explain says why", explained)
    completed = run("bash", "-c", f"""
        source {ROOT}/admin/completion/outriderctl.bash
        for line in "policy explain" "policy plot" "policy get --session"; do
            COMP_WORDS=(outriderctl $line ''); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
            _outriderctl; echo "${{COMPREPLY[@]}}"
        done""", env={"PATH": f"{BUILD}:{os.environ['PATH']}", "OUTRIDER_RUNTIME_DIR": str(service.runtime)}).stdout.splitlines()
    tap.ok(len(completed) == 3 and all(session_name(explained["uid"]) in line.split() for line in completed),
           "a session's name is completed, where a word or --session names one", completed)
    same = service.ctl("policy", "explain", explained["uid"])
    name = session_name(explained["uid"])
    by_name = service.ctl("policy", "explain", name)
    tap.ok(by_name.returncode == 0 and f"session {name}: K = 2" in by_name.stdout, "or by its name", by_name.stdout + by_name.stderr)
    for text, said in (("z" * 3, "expected the name or the number of a session"), ("zuzuz-zuzuz-zuzuz-zuzuz", "no session has a name")):
        wrong = service.ctl("policy", "explain", text)
        tap.ok(wrong.returncode in (64, 65) and said in wrong.stderr, f"policy explain {text} is refused", wrong.stderr)
    tap.ok(same.returncode == 0 and f"session {name}: K = 2" in same.stdout and
           explained["words"][0] in " ".join(same.stdout.split()), "also of a session that is named", same.stdout + same.stderr)
    for bad, status in (("7", 65), ("seven", 64), ("-1", 64), ("0x7", 64)):
        refused = service.ctl("policy", "explain", "--", bad)
        tap.ok(refused.returncode == status and bad in refused.stderr, f"policy explain {bad} is refused",
               f"{refused.returncode} {refused.stderr}")
    # The end of the answer cuts the last iteration.
    client(service, "run", "--tokens", IDS, "--max-tokens", 32, "--ignore-eos", "--k", "5")
    tap.ok(until(lambda: explains(5, True)) and "fixed K = 5" in explained["words"][0], "and who fixed K", explained)
    fixed = service.ctl("policy", "explain", "--session", explained["uid"])
    tap.ok(explained["phase"] == "fixed" and not explained["decisions"] and ": K = 5; fixed by the request; " in fixed.stdout and
           "decisions" not in fixed.stdout.partition("\n\n  iterations")[2], "of which the policy decided nothing", fixed.stdout)
    watched = service.ctl("policy", "watch", "--once", "--all").stdout
    tap.ok(session_name(explained["uid"]) not in watched and "session " in watched, "nor says that it did", watched)
    for words in (("policy", "explain", explained["uid"], "--session", "7"), ("policy", "plot", explained["uid"], "--session", "7")):
        twice = service.ctl(*words)
        tap.ok(twice.returncode == 64 and "exclude each other" in twice.stderr, f"{' '.join(words[:2])} of two sessions is refused", twice.stderr)
    tap.ok(not any("need not follow" in w for w in explained["words"]), "and no more than that", explained)
    for words in (("sessions",), ("policy", "get", "--all")):
        shown = [s for s in json.loads(service.ctl(*words, "--json").stdout)["sessions"] if s["uid"] == explained["uid"]]
        tap.ok(len(shown) == 1 and shown[0]["k"] == 5, f"{' '.join(words)} shows the K it fixed", shown)
    for more in ((), ("--json",)):
        unknown = service.ctl("policy", "plot", "12345", *more)
        tap.ok(unknown.returncode == 65 and "12345" in unknown.stderr and not unknown.stdout,
               f"policy plot {' '.join(more)} of no session is refused", unknown.stdout + unknown.stderr)
    for bad in ("static:99", "k_max=0", "nonsense=1"):
        refused = service.ctl("policy", "set", bad)
        tap.ok(refused.returncode == 65 and refused.stderr, f"policy set {bad} is refused", refused.stderr)
    empty = service.ctl("policy", "set", "")
    tap.ok(empty.returncode == 64 and empty.stderr, "so is nothing at all", empty.stdout + empty.stderr)
    knobs = json.loads(service.ctl("policy", "get", "--format", "json").stdout)["knobs"]
    tap.ok({k["name"]: k["value"] for k in knobs}["poll"] == "10ms", "times are shown as a person writes them", knobs)
    tap.ok(json.loads(service.ctl("policy", "get", "--format", "json").stdout)["policy"] == "static:2",
           "a refused change changes nothing")
    for words, said in ((("nonsense",), "--help lists them"), (("polcy", "get"), "did you mean policy get?"),
                        (("statsu",), "did you mean status?"), (("knob", "frob"), "followed by one of: list"),
                        (("status", "--layers"), "status takes no --layers, which is for cache stats"),
                        (("knob",), "followed by one of: list, get, set")):
        result = service.ctl(*words)
        tap.ok(result.returncode == 64 and said in result.stderr and result.stderr.count("\n") == 1,
               f"outriderctl {' '.join(words)} is status 64, and says what there is", result.stderr)
    def none_live():
        """The controller has read that the last session has ended."""
        return not json.loads(service.ctl("policy", "get", "--json").stdout)["sessions"]
    seen = not until(none_live)
    every = json.loads(service.ctl("policy", "get", "--json", "--all").stdout)["sessions"]
    tap.ok(not seen and every and not any(s["live"] for s in every), "policy get shows no session that has ended, --all does",
           f"{seen} {every}")
    for s in every:
        both = s["base_ms"] is not None and s["iteration_ms"] is not None
        wrong = both and s["utility"] is not None and abs(s["utility"] - s["etr"] * s["base_ms"] / s["iteration_ms"]) > 1e-6 * s["utility"]
        if wrong or any(s[f] == 0 for f in ("utility", "decided_utility", "etr", "base_ms", "iteration_ms")) or \
                (s["base_age"] is None) != (s["base_ms"] is None) or (not both and s["utility"] is not None):
            tap.ok(False, "", s)
            break
    else:
        tap.ok(True, "utility is of the tokens and times beside it, and what is not known is null")
    fixed = next(s for s in every if s["uid"] == explained["uid"])
    line = next(line for line in service.ctl("policy", "get", "--all").stdout.splitlines() if line.startswith(session_name(fixed["uid"])))
    tap.ok(fixed["decided_utility"] is None and line.split()[-1] == "-" and fixed["acceptance"] is not None,
           "of a K that the request fixed there is no utility that was decided by", f"{fixed}\n{line}")
    text = service.ctl("policy", "get").stdout
    tap.ok("ended; policy get --all shows" in text, "and says so", text[-200:])
    text = service.ctl("policy", "watch", "--once").stdout
    tap.ok("K " not in text and "policy watch --all shows" in text, "so does policy watch", text)
    none = json.loads(service.ctl("policy", "watch", "--once", "--json").stdout)
    tap.ok(none["decisions"] == [] and none["left_out"] > 0, "with JSON a document of no decisions", none)

    def is_shown():
        """On a fast machine it may be over before anybody looks."""
        process, results = service.swarm_start([{"tokens": PROMPT, "max_tokens": 900, "ignore_eos": True}])
        live = False
        while not live and process.poll() is None:
            live = any(s["live"] for s in json.loads(service.ctl("policy", "get", "--json").stdout)["sessions"])
        results()
        return live
    tap.ok(until(is_shown), "one that is being generated is shown")
    service.ctl("policy", "set", "static:2")
    every = service.ctl("policy", "watch", "--once", "--all").stdout
    tap.ok("utility     -  static:2" in every, "a utility that nobody measured is no number", every)
    lines = json.loads(service.ctl("policy", "watch", "--once", "--all", "--json").stdout)["decisions"]
    tap.ok(all(line["utility"] is None or line["utility"] > 0 for line in lines) and
           any(line["utility"] is None for line in lines if line["reason"].startswith("static:2")), "and null in JSON", lines)
    tap.ok(re.match(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\.\d\d\d  session [a-z]+-[a-z]+  K ", every), "decisions have the time of the wall", every)


def check_restart(service):
    """What a session was like outlives the verifier."""
    client(service, "run", "--tokens", IDS, "--max-tokens", 100, "--ignore-eos", "--k", 3)

    def newest():
        return max(json.loads(service.ctl("sessions", "--json").stdout)["sessions"], key=lambda s: -s["age_ns"])
    before = newest()
    service.restart("verifier")
    after = newest()
    same = ("uid", "k", "drafted", "accepted", "iterations", "output_tokens", "tokens_per_s")
    tap.ok(before["drafted"] > 0 and before["tokens_per_s"] > 0 and all(before[s] == after[s] for s in same),
           "a restarted verifier shows the same K, acceptance and speed", f"{before}\n{after}")
    tap.ok(after["age_ns"] > before["age_ns"], "of a session that is older", f"{before}\n{after}")


def check_columns(service):
    """What a table is headed with and what status names is in the manual."""
    page = (ROOT / "man/outriderctl.8").read_text()
    defined = {w for line in re.findall(r"^\.It (.*)$", page, re.M) for w in re.split(r" , | ", line)}
    client(service, "run", "--tokens", IDS, "--max-tokens", 60, "--ignore-eos")
    headings, details = set(), set()
    for words in (("sessions",), ("policy", "get", "--all"), ("policy", "explain"), ("cache", "stats", "--layers"),
                  ("cache", "hot", "3"), ("cache", "top", "--once"), ("top", "--once")):
        for line in service.ctl(*words).stdout.splitlines():
            heads = line.split()
            # A line of capitals is a heading; a unit stands in it as it is written.
            if len(heads) > 3 and all(re.fullmatch(r"[A-Z+/-][A-Z0-9/+-]*,?|MiB|ms|[A-Z]+/s|MiB/s", w) for w in heads):
                headings |= {w.strip(",").removesuffix("/s") for w in heads} - {"ms"}
    tap.ok(len(headings) > 25 and headings <= defined, "the manual has every column", sorted(headings - defined))
    counts = set()
    for name in PROCESSES:
        service.details(name)
    for process in json.loads(service.ctl("status", "--json").stdout)["processes"]:
        details |= set(process["details"])
        counts |= {key for key, value in process["details"].items() if isinstance(value, int)}
    mine = {key for name in PROCESSES for key, value in service.details(name).items() if isinstance(value, int)}
    states = {f"peer_{name}" for name in PROCESSES}
    tap.ok(details - counts == states | {"model", "draft", "head", "method", "kernels", "sessions", "kv_from", "policy", "link", "class_default", "adapter"} and mine == counts,
           "counts of the status are numbers in JSON, of both programs", details - counts)
    plain = {"model", "draft", "method", "kernels", "policy", "sessions", "threads", "class_default"}
    tap.ok(len(details) > 20 and details - plain <= defined, "and every detail of the status", sorted(details - plain - defined))
    text = service.ctl("status", "--all").stdout
    tap.ok(re.search(r"^  memory anonymous: [0-9.]+ MiB$", text, re.M) and re.search(r"^  busy, time: [0-9.]+ (ns|us|ms|s)$", text, re.M)
           and re.search(r"^  pid \d+, generation \d+, up for [0-9.]+[dhms0-9]*, memory [0-9.]+ MiB, version ", text, re.M)
           and not re.search(r"_(ns|bytes)|=\d", text), "which in words has units", text)
    brief = service.ctl("status").stdout
    shown = client(service, "status").stdout
    tap.ok("memory anonymous" not in brief and all(re.search(rf"^{title} +\S", text, re.M) for text in (brief, shown)
                                                   for title in ("serving", "speed", "room", "drafts", "trouble")) and
           "trouble   none" in shown and f"serving   {TARGET.name} for " in shown, "and is brief without --all", brief + shown)
    stats = json.loads(service.ctl("cache", "stats", "--json").stdout)
    tap.ok([m["process"] for m in stats["memory"]] == list(PROCESSES) and stats["prefetch_unused"] == max(
        0, stats["prefetched"] - stats["prefetch_used"] - stats["prefetch_wasted"]), "cache stats says as JSON what it says in words", stats)


def has_ended(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except OSError:
        return True


def check_away():
    """A process that is being started again is waited for; one that does not come back is said to be away, alone."""
    folder = Path(tempfile.mkdtemp(prefix="outrider-away-", dir="/tmp"))
    with Service(options=("--config-dir", folder)) as service:
        for words in (("policy", "get"), ("policy", "explain"), ("policy", "watch", "--once"), ("knob", "set", "k_max=5")):
            before = service.end("policy")
            # One that is still dying takes what it is asked with it.
            until(lambda: has_ended(before), every=0.001)
            answer = service.ctl(*words)
            # It is back in time, or that is what is said: on a busy machine it may take longer.
            back = answer.returncode == 0 or (answer.returncode == 65 and "seen no session" in answer.stderr)
            away = answer.returncode == 69 and "policy was not running for 3 s" in answer.stderr
            tap.ok((back or away) and "outrider up" not in answer.stderr, f"{' '.join(words)} while the policy is started again",
                   f"{answer.returncode} {answer.stderr}")
            service.renewed("policy", before)
        (folder / "policy.conf").write_text("k_max = 99\n")
        service.end("policy")
        tap.ok(until(lambda: "policy ended with status 78 5 times in a row, giving up on it" in service.log_text(), 60),
               "a policy whose settings have become wrong is given up", service.log_text())
        for words in (("policy", "get"), ("knob", "set", "k_max=5"), ("policy", "watch")):
            gone = service.ctl(*words)
            tap.ok(gone.returncode == 69 and "policy was not running for 3 s, although the rest of the service in " in gone.stderr and
                   "is (verifier, drafter, expert-cache)" in gone.stderr and "outrider up" not in gone.stderr,
                   f"{' '.join(words)} says that it alone is away", gone.stderr)
        def said():
            states = {p["name"]: p["state"] for p in service.status()}
            return states["policy"], states["verifier"]

        # What a process has of itself while it loads is its lock.
        with open(service.runtime / "policy.lock") as lock:
            tap.ok(until(lambda: said() == ("down", "degraded: no policy")), "the status says that it is down", said())
            fcntl.flock(lock, fcntl.LOCK_EX)
            tap.ok(until(lambda: said() == ("loading", "degraded: the policy is starting")), "and that one is starting, once it is", said())
        tap.ok(until(lambda: said() == ("down", "degraded: no policy")), "and that it is down again", said())
        history = json.loads(service.ctl("knob", "history", "--json").stdout)
        tap.ok(history["silent"] == ["policy"], "and the history whose part is missing", history)
    shutil.rmtree(folder, ignore_errors=True)


def check_install(service):
    root = Path(tempfile.mkdtemp(prefix="outrider-install-", dir="/tmp"))
    try:
        make = ["make", "-s", "-C", str(ROOT), f"B={BUILD}", f"SAN={os.environ.get('SAN', '')}", f"DESTDIR={root}",
                "PREFIX=/usr"]
        outside = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
        installed = subprocess.run([*make, "install"], capture_output=True, text=True, env=outside)
        tap.ok(installed.returncode == 0, "make install", installed.stderr)
        wanted = ("bin/outrider", "bin/outrider-verifier", "bin/outriderctl", "lib/liboutrider.so.0",
                  "lib/liboutrider.a", "include/outrider.h", "share/man/man1/outrider.1", "share/man/man3/outrider.3", "share/man/man5/outrider.conf.5",
                  "share/bash-completion/completions/outrider-model", "share/zsh/site-functions/_outrider",
                  "lib/systemd/system/outrider-verifier.service", "lib/systemd/system/outrider.target")
        tap.ok(all((root / "usr" / w).exists() for w in wanted), "puts programs, SDK, pages and units in place",
               [w for w in wanted if not (root / "usr" / w).exists()])
        if SANITIZED:
            tap.skip("the example builds against the installed SDK", "a sanitized library needs a sanitized program")
        else:
            env = {**os.environ, "PKG_CONFIG_PATH": f"{root}/usr/lib/pkgconfig", "PKG_CONFIG_SYSROOT_DIR": str(root)}
            flags = subprocess.run(["pkg-config", "--cflags", "--libs", "outrider"], capture_output=True, text=True,
                                   env=env)
            built = subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", "-o", root / "complete",
                                    ROOT / "client/examples/complete.c", *flags.stdout.split()], capture_output=True,
                                   text=True)
            tap.ok(built.returncode == 0, "the example builds against the installed SDK", flags.stderr + built.stderr)
            env = {"LD_LIBRARY_PATH": f"{root}/usr/lib", "OUTRIDER_RUNTIME_DIR": str(service.runtime)}
            ran = run(root / "complete", "Once upon a time", env=env)
            same = client(service, "run", "--max-tokens", 32, "Once upon a time")
            tap.ok(ran.returncode == 0 and ran.stdout == same.stdout, "and says what `outrider run` says", ran.stderr)
            built = subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", "-o", root / "many", ROOT / "client/examples/many.c",
                                    *flags.stdout.split()], capture_output=True, text=True)
            lines = [f"The {n} of {m}" for n in ("house", "sea", "king", "end") for m in ("the hill", "summer", "all things", "day")]
            ran = run(root / "many", env=env, stdin="".join(f"{line}\n" for line in lines))
            wanted = [f"{line} -> {client(service, 'run', '--max-tokens', 32, line).stdout}\n" for line in lines]
            tap.ok(built.returncode == 0 and ran.returncode == 0 and sorted(ran.stdout.split("\n")) == sorted("".join(wanted).split("\n")),
                   "the example of many answers at once says the same of each", built.stderr + ran.stderr + ran.stdout)
            names = subprocess.run(["nm", "-D", "--defined-only", root / "usr/lib/liboutrider.so"],
                                   capture_output=True, text=True).stdout.split("\n")
            others = [n for n in names if n and " A " not in n and not n.split()[-1].startswith("outrider_")]
            tap.ok(len(names) > 30 and not others, "the library exports outrider_ and nothing else", others)
            needed = re.findall(r"NEEDED.*\[lib([\w+-]+)\.so", subprocess.run(
                ["readelf", "-d", root / "usr/lib/liboutrider.so"], capture_output=True, text=True).stdout)
            more = set(needed) - {"zmq", "protobuf-c", "pthread", "c"}
            tap.ok("zmq" in needed and not {n for n in more if not n.startswith("ld-")}, "and needs what the SDK uses", needed)
        up_to_date = [*make, "-q", str(BUILD / "outrider")]
        tap.ok(subprocess.run(up_to_date, env=outside).returncode == 0 and
               subprocess.run([*up_to_date, "SYSCONFDIR=/opt/etc"], env=outside).returncode == 1,
               "with another SYSCONFDIR the programs are made again")
        gone = subprocess.run([*make, "uninstall"], capture_output=True, text=True)
        left = [str(p) for p in root.rglob("*") if (p.is_file() or p.is_symlink()) and p.name not in ("complete", "many")]
        tap.ok(gone.returncode == 0 and not left, "make uninstall takes all of it away", left)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def check_up():
    """What `up` says, and how few descriptors it can do with."""
    wrong = run(program("outrider"), "up", "--model", TARGET, "--context", 2000, "--runtime-dir", "/tmp/outrider-up-test")
    tap.ok(wrong.returncode == 65 and wrong.stderr == "outrider: up: verifier: context: 2000 is more than the model's 1024\n",
           "up says what is wrong once, before it starts anything", wrong.stderr)
    for what, status, word, arguments in (
            ("a folder of settings that is not there", 66, "--config-dir /nonexistent", ("--config-dir", "/nonexistent")),
            ("one that is a file", 66, "not a directory", ("--config-dir", TARGET)),
            ("a budget beyond all memory", 78, "2^63", ("--budget", "1e30")),
            ("a control character in a name", 66, "/no?pe", ("--model", "/no\x1bpe"))):
        wrong = run(program("outrider"), "up", "--model", TARGET, "--runtime-dir", "/tmp/outrider-up-test", *arguments)
        tap.ok(wrong.returncode == status and word in wrong.stderr, f"up refuses {what}", f"{wrong.returncode} {wrong.stderr}")
    fifo = Path(tempfile.mkdtemp(prefix="outrider-fifo-", dir="/tmp"))
    os.mkfifo(fifo / "pipe")
    os.mkfifo(fifo / "policy.conf")
    for what, status, arguments in (("a profile", 65, ("--set", f"expert-cache.profile={fifo}/pipe")),
                                    ("a model", 65, ("--model", fifo / "pipe")),
                                    ("a draft model", 65, ("--draft", fifo / "pipe")),
                                    ("a file of settings", 65, ("--config-dir", fifo))):
        wrong = run(program("outrider"), "up", "--model", TARGET, "--runtime-dir", "/tmp/outrider-up-test", *arguments)
        tap.ok(wrong.returncode == status and str(fifo) in wrong.stderr and "regular file" in wrong.stderr,
               f"a pipe for {what} is refused at once, by its name", f"{wrong.returncode} {wrong.stderr}")
    shutil.rmtree(fifo, ignore_errors=True)
    runtime = Path(tempfile.mkdtemp(prefix="outrider-cli-", dir="/tmp"))
    for arguments in (("--budget", "1%"), ("-q", "--budget", "1%")):
        wrong = run(program("outrider"), "up", "--model", TARGET, "--runtime-dir", "/tmp/outrider-up-test", *arguments)
        tap.ok(wrong.returncode == 78 and wrong.stderr.startswith("outrider: up: expert-cache: budget: 1% has room for ") and
               wrong.stderr.count("\n") == 1, f"up {' '.join(arguments)} says the cause and nothing else",
               f"{wrong.returncode}: {wrong.stderr}")
    both = run(program("outrider"), "up", "--model", TARGET, "--runtime-dir", "/tmp/outrider-up-test", "--policy", "foo", "--set",
               "drafter.ngram_mix=3", "--kv", "q9")
    tap.ok(both.returncode == 78 and both.stderr.count("\n") == 3 and all(w in both.stderr for w in
           ("up: policy: policy = foo", "up: drafter: command line: unknown key ngram_mix", "up: verifier: command line: kv_type = q9")),
           "of several processes each says what is wrong", f"{both.returncode}: {both.stderr}")
    quiet = run(program("outrider"), "up", "-q", "--detach", "--model", TARGET, "--runtime-dir", runtime)
    down = run(program("outrider"), "down", "--runtime-dir", runtime)
    shutil.rmtree(runtime, ignore_errors=True)
    tap.ok(quiet.returncode == down.returncode == 0 and not quiet.stdout + quiet.stderr, "up -q --detach says nothing",
           quiet.stdout + quiet.stderr + down.stderr)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (96, hard))
    try:
        # Named from the folder this is run in: shown from the root on by all.
        with Service(model=os.path.relpath(TARGET), draft=os.path.relpath(DRAFTS["small"])) as service:
            model, draft = (str(p.parent.resolve() / p.name) for p in (TARGET, DRAFTS["small"]))
            named = {name: service.details(name) for name in PROCESSES}
            knobs = {f"{k['process']}.{k['name']}": k["value"] for k in json.loads(service.ctl("knob", "list", "--json").stdout)["knobs"]}
            tap.ok([named[p]["model"] for p in ("verifier", "expert-cache")] + [named["drafter"]["draft"]] == [model, model, draft] and
                   [knobs[k] for k in ("verifier.model", "expert-cache.model", "drafter.draft")] == [model, model, draft],
                   "a model is shown by its whole path everywhere, however it was named", f"{named} {knobs}")
            for name in PROCESSES:
                tap.ok(service.renewed(name, service.end(name)),
                       f"with a soft limit of 96 descriptors the {name} is started again", service.log_text())
            service.wait_ready()
            said = len(service.log_text())
            service.process.send_signal(signal.SIGINT)
            status = ended(service.process)
            tap.ok(status == 0 and "gone" not in service.log_text()[said:], "Ctrl-C ends it without a word",
                   service.log_text()[said:])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


with Service(draft=TARGET_Q4) as service:
    check_experts_draft(service)
# Some of it is about a process that was stopped: nobody ends it for that.
with Service(draft=DRAFTS["small"], options=("--watchdog", "0")) as service:
    check_run(service)
    check_refusals(service)
    check_interrupt(service)
    check_chat(service)
    check_status(service)
    check_idle(service)
    check_timeout(service)
# Where drafts are asked for, they come in time.
with Service(draft=DRAFTS["small"], sets=("verifier.draft_wait=10s",)) as service:
    check_ctl(service)
    check_plot(service)
    check_columns(service)
    check_restart(service)
    check_install(service)
    runtime = service.runtime
    again = client(service, "up", "--model", TARGET)
    tap.ok(again.returncode == 69 and "already" in again.stderr, "a runtime directory in use is refused", again.stderr)
none = run(program("outrider"), "run", "--runtime-dir", "/tmp/outrider-nowhere", "hi")
tap.ok(none.returncode == 69 and "outrider up" in none.stderr and "--runtime-dir" in none.stderr,
       "without a service run ends with status 69, and says what to do", none.stderr)
none = run(program("outriderctl"), "--runtime-dir", "/tmp/outrider-nowhere", "sessions")
tap.ok(none.returncode == 69 and "outrider up" in none.stderr, "so does outriderctl", none.stderr)
with tempfile.TemporaryDirectory(prefix="outrider-", dir="/tmp") as folder:
    none = run(program("outriderctl"), "--runtime-dir", folder, "sessions")
    tap.ok(none.returncode == 69 and "outrider up" in none.stderr and "ipc:" not in none.stderr, "also in a folder of none",
           none.stderr)
    for words in (("policy", "watch"), ("knob", "set", "k_max=3"), ("knob", "history"), ("cache", "top", "--once")):
        none = run(program("outriderctl"), "--runtime-dir", folder, *words)
        tap.ok(none.returncode == 69 and "outrider up" in none.stderr and "ipc:" not in none.stderr, f"so does {' '.join(words)}",
               none.stderr)
    none = run(program("outrider"), "run", "--runtime-dir", folder, "--wait", "0.1", "hi")
    tap.ok(none.returncode == 69 and "outrider up" in none.stderr, "and run", none.stderr)
    later = f"{folder}/later"
    early = subprocess.Popen([program("outrider"), "run", "--runtime-dir", later, "--wait", "600", "--max-tokens", "4", "hi"],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    # One that does not wait has ended by then.
    until(lambda: early.poll() is not None, 0.5)
    up = subprocess.Popen([program("outrider"), "up", "--model", str(TARGET), "--runtime-dir", later], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL)
    out, errors = finish(early, 300)
    up.send_signal(signal.SIGTERM)
    ended(up)
    tap.ok(early.returncode == 0 and out, "run --wait waits for the runtime directory too", errors)
none = run(program("outrider"), "status", "--runtime-dir", "/tmp/outrider-nowhere", "--format", "json")
tap.ok(none.returncode == 69 and all(p["state"] == "down" for p in json.loads(none.stdout)["processes"]),
       "and status shows four that are down", none.stdout)
for words in (("outrider", "help"), ("outriderctl", "help"), ("outrider", "help", "run"), ("outriderctl", "help", "knob", "set"),
              ("outriderctl", "help", "knob"), ("outrider-model", "help"), ("outrider-bench", "help"), ("outrider-model", "--help"),
              ("outrider-bench", "--help"), *((f"outrider-{p}", "--help") for p in PROCESSES)):
    helped = run(program(words[0]), *words[1:])
    tap.ok(helped.returncode == 0 and not helped.stderr and
           helped.stdout.startswith(" ".join(("usage:", words[0], *(words[2:] if words[2:] != ("knob",) else ())))),
           f"{' '.join(words)}", helped.stdout + helped.stderr)
wrong = run(program("outrider"), "statsu")
tap.ok(wrong.returncode == 64 and "did you mean status?" in wrong.stderr, "outrider names the nearest command", wrong.stderr)
for words in (("outrider", "--help"), ("outrider", "up", "--help"), ("outrider", "down", "--help"),
              ("outrider", "run", "--help"), ("outrider", "chat", "--help"), ("outrider", "status", "--help"),
              ("outriderctl", "--help"), ("outriderctl", "policy", "set", "--help"), ("outriderctl", "top", "--help")):
    helped = run(program(words[0]), *words[1:])
    tap.ok(helped.returncode == 0 and helped.stdout.startswith("usage: " + " ".join(words[:-1])), f"{' '.join(words)}",
           helped.stdout + helped.stderr)
none = run(program("outriderctl"), "top", "--runtime-dir", "/tmp/outrider-nowhere")
tap.ok(none.returncode == 69, "top without a service ends with status 69", none.stdout + none.stderr)
check_messages()
check_away()
check_up()
tap.done()
