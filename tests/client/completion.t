#!/usr/bin/env python3
"""Completion of every program in bash and zsh: each command and option that --help lists, and nothing else; zsh shows what an option
means in the words of --help."""
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
from outrider_test import BUILD, ROOT, Tap, run  # noqa: E402

tap = Tap()
COMMANDS = {"outrider": ("up", "down", "run", "chat", "status", "doctor"),
            "outrider-model": ("info", "check", "tokenize", "render", "logits", "generate", "routes", "perplexity", "pack", "synth"),
            "outrider-bench": ("attention", "budget", "cache", "device", "gateway", "grammar", "ipc", "kernels", "load", "machine", "model", "policy", "pool", "price", "skip", "spec", "tolerance", "workload")}
DAEMONS = ("outrider-verifier", "outrider-drafter", "outrider-expert-cache", "outrider-policy", "outrider-gateway")
VERBS = ("record", "synth", "replay", "profile", "copy")
ENVIRONMENT = {"PATH": f"{BUILD}:{os.environ['PATH']}"}


def bash_completions(line, folder):
    """bash makes three words of --format=json."""
    words = [w for word in line for w in re.split("(=)", word)] if line[-1][:2] == "--" else line
    if words[-1] == "" and len(words) > 1 and words[-2] == "=":
        words = words[:-1]
    script = f"""
        cd {folder}; source {ROOT}/client/completion/outrider.bash
        COMP_WORDS=({' '.join(map(repr, words))}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _outrider {line[0]}; printf '%s\\n' "${{COMPREPLY[@]}}" """
    return set(run("bash", "-c", script, env=ENVIRONMENT).stdout.split())


def zsh_completions(line, folder):
    """compadd, _files and compset do here what zsh's own do."""
    script = f"""
        cd {folder}
        compadd() {{ while [[ $1 != -- ]]; do shift; done; shift; print -rl -- ${{(M)@:#$PREFIX*}} }}
        _files() {{ if [[ $1 == -/ ]]; then compadd -- *(/N); else compadd -- *(N); fi }}
        compset() {{ PREFIX=${{PREFIX#*=}} }}
        words=({' '.join(map(repr, line))}) CURRENT=$#words PREFIX=$words[-1]
        source {ROOT}/client/completion/_outrider """
    return set(run("zsh", "-f", "-c", script, env=ENVIRONMENT).stdout.split())


def options_of(program, *command):
    helped = run(BUILD / program, *command, "--help").stdout
    listed = re.findall(r"^  (-.*?)(?:  |$)", helped, re.M) + re.findall(r"\[(--[a-z][a-z0-9-]*)", helped)
    also = {"--json"} if "--json is --format json" in helped else set()
    return {option for part in listed for option in re.findall(r"--[a-z][a-z0-9-]*", part)} | {"--help"} | also


def zsh_shown(*line):
    """{option: what zsh shows beside it}"""
    script = f"""
        compadd() {{ [[ $1 == -l ]] && print -rl -- ${{(P)3}} }}
        words=({' '.join(map(repr, line))} --) CURRENT=$#words PREFIX=--
        source {ROOT}/client/completion/_outrider """
    shown = run("zsh", "-f", "-c", script, env=ENVIRONMENT).stdout
    return dict(re.findall(r"^(--\S+) +(.*?) *$", shown, re.M))


def ctl_bash(line):
    script = f"""
        source {ROOT}/admin/completion/outriderctl.bash
        COMP_WORDS=({' '.join(map(repr, line))}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _outriderctl; printf '%s\\n' "${{COMPREPLY[@]}}" """
    return set(run("bash", "-c", script, env=ENVIRONMENT).stdout.split())


def ctl_zsh(line):
    script = f"""
        compadd() {{ while [[ $1 != -- ]]; do shift; done; shift; print -rl -- ${{(M)@:#$PREFIX*}} }}
        words=({' '.join(map(repr, line))}) CURRENT=$#words PREFIX=$words[-1]
        source {ROOT}/admin/completion/_outriderctl """
    return set(run("zsh", "-f", "-c", script, env=ENVIRONMENT).stdout.split())


def check_ctl(shell, completions):
    """Every command of outriderctl has the options that its --help lists, and no others; what takes a value is passed over."""
    if not shutil.which(shell):
        tap.skip(f"completion of outriderctl in {shell}", f"no {shell}")
        return
    helped = run(BUILD / "outriderctl", "--help").stdout
    commands = [tuple(filter(None, w)) for w in re.findall(r"^  ([a-z]+)(?: ([a-z]+))?(?= |$)", helped, re.M)]
    wrong, values = {}, set()
    for command in [(), *commands]:
        text = run(BUILD / "outriderctl", *command, "--help").stdout
        options = set(re.findall(r"^  (--[a-z-]+)", text, re.M)) | {"--help"}
        values |= set(re.findall(r"^  (--[a-z-]+) [A-Z]+ ", text, re.M))
        got = completions(["outriderctl", *command, "--"])
        if got != options or len(options) < 2:
            wrong[command] = (got, options)
    tap.ok(len(commands) > 15 and not wrong, f"{shell}: the options of every command of outriderctl", wrong)
    taken = [option for option in values if completions(["outriderctl", option, "1", "tra"]) != {"trace"}]
    tap.ok(len(values) > 3 and not taken, f"{shell}: the value of an option is no command", taken)


def check(shell, completions):
    if not shutil.which(shell):
        tap.skip(f"completion in {shell}", f"no {shell}")
        return
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model.gguf").touch()
        (Path(folder) / "more").mkdir()
        for program, commands in COMMANDS.items():
            got = completions([program, ""], folder)
            tap.ok(got == {*commands, "help"}, f"{shell}: every command of {program}", got)
            missing = {}
            for words in [(c,) for c in commands if c != "cache"] + [("cache", v) for v in VERBS if program == "outrider-bench"]:
                options = options_of(program, *words)
                differ = options ^ completions([program, *words, "--"], folder)
                if differ or (len(options) < 2):
                    missing[words] = differ
            tap.ok(not missing, f"{shell}: every option of each", missing)
        differ = {d: options ^ got for d in DAEMONS if len(options := options_of(d)) < 8 or options != (got := completions([d, "--"], folder))}
        tap.ok(not differ, f"{shell}: every option of each daemon", differ)
        for line, words in ((["outrider", "st"], {"status"}), (["outrider", "help", "ch"], {"chat"}),
                            (["outrider", "--v"], {"--version"}), (["outrider", "run", "--logits"], {"--logits-hash"}),
                            (["outrider", "run", "--format", "j"], {"json"}), (["outrider", "run", "--format=j"], {"json"}),
                            (["outrider", "run", "--format="], {"text", "json"}),
                            (["outrider", "up", "--model", "m"], {"model.gguf", "more"}),
                            (["outrider", "up", "--runtime-dir", "m"], {"more"}),
                            (["outrider", "up", "--ht"], {"--http"}), (["outrider", "run", "--json-s"], {"--json-schema"}),
                            (["outrider", "run", "--json-schema", "m"], {"model.gguf", "more"}),
                            (["outrider", "run", "--gr"], {"--grammar"}), (["outrider", "chat", "--reg"], {"--regex"}),
                            (["outrider", "run", "--regex", ""], set()), (["outrider-gateway", "--li"], {"--listen"}),
                            (["outrider-gateway", "--config", "mod"], {"model.gguf"}),
                            (["outrider-verifier", "--config-dir", "m"], {"more"}),
                            (["outrider", "run", "--k", ""], set()), (["outrider", "run", "--json", "mod"], {"model.gguf"}),
                            (["outrider-model", "info", "mod"], {"model.gguf"}),
                            (["outrider-model", "check", "--form"], {"--format"}),
                            (["outrider-bench", "cache", "re"], {"record", "replay"}),
                            (["outrider-bench", "cache", "record", "--model", "mod"], {"model.gguf"}),
                            (["outrider-bench", "kernels", "--layout", ""], {"tiles", "rows"})):
            got = completions(line, folder)
            tap.ok(got == words, f"{shell}: {' '.join(line)}", f"{got}, expected {words}")


def check_words():
    """zsh: every description is a part of --help, whose lines it joins."""
    if not shutil.which("zsh"):
        tap.skip("zsh: descriptions", "no zsh")
        return
    for line in (("outrider", "run"), ("outrider", "up"), ("outrider-gateway",), ("outrider-model", "generate")):
        helped = " ".join(run(BUILD / line[0], *line[1:], "--help").stdout.split())
        shown = zsh_shown(*line)
        other = {o: words for o, words in shown.items() if words not in helped and o != "--help"}
        tap.ok(len(shown) > 8 and not other and len([w for w in shown.values() if len(w.split()) > 2]) > len(shown) / 2,
               f"zsh: {' '.join(line)}: what options mean, in the words of --help", other or shown)
    run_words, up_words = zsh_shown("outrider", "run"), zsh_shown("outrider", "up")
    tap.ok("schema" in run_words["--json-schema"] and "regular expression" in run_words["--regex"] and
           "GBNF" in run_words["--grammar"] and "OpenAI's HTTP interface there" in up_words["--http"],
           "zsh: those of constrained output and of --http", (run_words, up_words))


check_words()
check("bash", bash_completions)
check("zsh", zsh_completions)
check_ctl("bash", ctl_bash)
check_ctl("zsh", ctl_zsh)
tap.done()
