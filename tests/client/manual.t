#!/usr/bin/env python3
"""What the manual pages, --help and the programs say of options and settings is the same; found by asking the programs."""
import json
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
from outrider_test import BUILD, PROCESSES, ROOT, Tap, run  # noqa: E402

tap = Tap()
PAGES = {"outrider": "outrider.1", "outrider-model": "outrider-model.1", "outrider-bench": "outrider-bench.1",
         "outriderctl": "outriderctl.8", **{f"outrider-{p}": f"outrider-{p}.8" for p in PROCESSES}}
NOWHERE = ("--runtime-dir", "/tmp/outrider-nowhere")


def helped(program, *command):
    return run(BUILD / program, *command, "--help").stdout


def commands_of(program):
    """The commands that --help lists, those of two words whole; a daemon has none."""
    text = helped(program)
    words = re.findall(r"^  ([a-z]+)(?: ([a-z]+))?(?= |$)", text, re.M) if program == "outriderctl" else \
        [(w, "") for w in re.findall(r"^  ([a-z]+) +\S", text, re.M)]
    all_of_them = []
    for command in [tuple(filter(None, w)) for w in words]:
        verbs = re.findall(rf"^(?:usage:)? *{program} {command[0]} ([a-z]+) ", helped(program, *command), re.M) \
            if program == "outrider-bench" else []
        all_of_them += [(*command, v) for v in verbs] or [command]
    return all_of_them


def options_in(text):
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text))


def listed(text):
    """The options that a help has a line for."""
    return set(re.findall(r"^  (?:-\w, )?(--[a-z][a-z0-9-]+)", text, re.M))


def of_page(path):
    """(option, line) for each that the page names, as mdoc writes them: .Fl -option"""
    for line in path.read_text().splitlines():
        for option in re.findall(r"\bFl -([a-z][a-z0-9-]+)", line):
            yield f"--{option}", line


for program, name in PAGES.items():
    helps = helped(program) + "".join(helped(program, *c) for c in commands_of(program))
    own = options_in(helps) | {"--help", "--version"}
    page = ROOT / "man" / name
    named = {option for option, _ in of_page(page)}
    tap.ok(len(own) > 5 and own <= named | {"--help"}, f"{name} has every option that {program} --help has", sorted(own - named))
    # An option of another program stands on a line that names the program.
    others = [line for option, line in of_page(page)
              if option not in own and not any(f"{p} " in line for p in ("outrider up", "outriderctl"))]
    tap.ok(not others, "and no other", "\n".join(others))

wide = [(program, *command, line) for program in PAGES for command in [(), *commands_of(program)]
        for line in helped(program, *command).splitlines() if len(line) > 100]
tap.ok(not wide, "no line of --help is wider than 100 columns", wide)
other = [(program, *command) for program in PAGES for command in [(), *commands_of(program)]
         if run(BUILD / program, *command, "-h").stdout != helped(program, *command)]
tap.ok(not other, "-h is --help everywhere", other)
commands = commands_of("outriderctl")
tap.ok(len(commands) > 15, "outriderctl has commands", commands)
every = set().union(*(listed(helped("outriderctl", *c)) for c in commands)) - {"--runtime-dir", "--format"}
values = {"--for": "1m", "--if": "1", "--last": "1", "--session": "1"}
wrong = []
for command in commands:
    takes = listed(helped("outriderctl", *command))
    for option in sorted(every):
        value = (values[option],) if option in values else ()
        said = run(BUILD / "outriderctl", *NOWHERE, *command, option, *value, "--once" if "--once" in takes else "--runtime-dir",
                   *(() if "--once" in takes else NOWHERE[1:]))
        named = f"{' '.join(command)} takes no {option}, which is for "
        if (named in said.stderr) != (option not in takes) or (option not in takes and said.returncode != 64):
            wrong.append(f"{command} {option}: {said.returncode} {said.stderr}")
tap.ok(len(every) > 8 and not wrong, "an option that a command's --help does not list is refused by its name, the others are taken",
       "\n".join(wrong))
for words, said in ((("--frob",), "unknown option --frob"), (("status", "--json=3"), "--json=3, which takes no value"),
                    (("knob", "set", "k_max=3", "--for"), "--for needs a value"), (("status", "-x"), "unknown option -x"),
                    (("knob", "history", "--last", "0"), "--last"), (("knob", "history", "--last", "0x10"), "--last")):
    refused = run(BUILD / "outriderctl", *NOWHERE, *words)
    tap.ok(refused.returncode == 64 and said in refused.stderr and refused.stderr.count("\n") == 1,
           f"outriderctl {' '.join(words)} is refused in one line", refused.stderr)
# With --json what is wrong is JSON too, wherever it is found: in the words, in an option, where there is no service.
wrong = []
for program, commands_json in (("outriderctl", commands + [("knob", "complete")]), ("outrider", [("run",), ("status",)])):
    for command in commands_json:
        for words in ((*command, "--json", "--frob"), (*command, "--frob", "--format", "json"), (*command, *NOWHERE, "--json"),
                      (*command, *NOWHERE, "--format", "text", "--json", "a", "b", "c=d"), ("--json", *command, "--runtime-dir")):
            if program == "outrider" and words[0] == "--json":
                continue
            said = run(BUILD / program, *words, stdin="")
            try:
                last = [json.loads(line) for line in said.stderr.splitlines()][-1:]
                document = json.loads(said.stdout) if said.stdout else None
            except json.JSONDecodeError:
                last = document = None
            failed = said.returncode != 0 and not document
            if last is None or (failed and (last[0]["status"] != said.returncode or not last[0]["error"])) or \
                    (not failed and not document) or ("--frob" in words and said.returncode != 64):
                wrong.append(f"{program} {words}: {said.returncode} {said.stdout} {said.stderr}")
tap.ok(not wrong, "with --json a refusal is a line of JSON on standard error with its exit status", "\n".join(wrong))
for words in (("--json",), ("--json", "frob"), ("frob", "--json"), ("knob", "--format", "json"), ("knob", "set", "--for", "soon", "--json")):
    said = run(BUILD / "outriderctl", *words)
    tap.ok(said.returncode == 64 and not said.stdout and json.loads(said.stderr)["status"] == 64,
           f"outriderctl {' '.join(words)} is refused in JSON", said.stderr)
said = run(BUILD / "outriderctl", "knob", "get", "--json", "--format", "text")
tap.ok(said.stderr.startswith("outriderctl: "), "what comes last holds", said.stderr)
# The shells' own command.
words = json.loads(run(BUILD / "outriderctl", *NOWHERE, "knob", "complete", "set", "--json", "--", "policy.k_").stdout)
tap.ok(words == {"words": ["policy.k_max=", "policy.k_start="]}, "knob complete is JSON too", words)
unlisted = [helped("outriderctl"), helped("outriderctl", "knob"), run(BUILD / "outriderctl", "knob").stderr,
            run(BUILD / "outriderctl", "knob", "complet").stderr]
tap.ok(not any("complete" in text for text in unlisted) and "usage: outriderctl knob complete" in helped("outriderctl", "knob", "complete"),
       "and is not offered to people, by help or by a refusal", unlisted)
# One notation of a session, wherever it is named.
wrong = []
for command in [c for c in commands if "--session" in listed(helped("outriderctl", *c))]:
    for text in ("0x10", "0", "-1", "", " 7", "18446744073709551616", "seven"):
        refused = run(BUILD / "outriderctl", *NOWHERE, *command, "--session", text)
        if refused.returncode != 64 or f'session "{text}"' not in refused.stderr:
            wrong.append(f"{command} --session {text}: {refused.returncode} {refused.stderr}")
tap.ok(not wrong, "a session is its decimal number, for --session of every command that takes one", "\n".join(wrong))

knobs = json.loads(run(BUILD / "outriderctl", *NOWHERE, "knob", "list", "--json").stdout)["knobs"]
bare = [f"{k['process']}.{k['name']}" for k in knobs if k["type"] in ("integer", "number", "time", "bytes") and not k["unit"]]
tap.ok(len(knobs) > 70 and not bare, "every number, time and size has a unit, without a service too", bare)
page = (ROOT / "man/outrider.conf.5").read_text()
written = subprocess.run([ROOT / "tools/settings_man.py", BUILD], capture_output=True, text=True)
tap.ok(written.returncode == 0 and written.stdout == page, "man/outrider.conf.5 is what tools/settings_man.py writes",
       written.stderr or "tools/settings_man.py BUILD > man/outrider.conf.5")
for process in PROCESSES:
    section = page.partition(f".Sh {process.upper()}.CONF\n")[2].partition("\n.Sh ")[0]
    lacks = [k["name"] for k in knobs if k["process"] == process and f".It Cm {k['name']}\n" not in section]
    tap.ok(section and not lacks, f"every setting of {process} is in it", lacks)
# Keys and values of blocks of 32 16-bit integers with a scale each, as the page says of a draft model that is not of F32.
draft = json.loads(run(BUILD / "outrider-model", "info", ROOT / "models/outrider-demo-draft-aligned-q8_0.gguf", "--json").stdout)["model"]
token = draft["layers"] * draft["kv_heads"] * draft["head_length"] * 2 * 66 / 32
tokens = int(re.search(r"KV_TOKENS_DEFAULT (\d+)", (ROOT / "services/drafter/model_engine.c").read_text())[1])
says = f"{token / 1024:.1f} KiB, {token * tokens / 2**20:.0f} MiB in all by default"
tap.ok(says in (ROOT / "man/outrider-drafter.8").read_text(), "what a token takes of the drafter's KV cache is what its page says", says)
tap.done()
