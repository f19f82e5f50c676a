#!/usr/bin/env python3
"""Completion of outrider, outrider-model and outrider-bench in bash and zsh: every command and option that --help lists."""
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
from outrider_test import BUILD, ROOT, Tap, run  # noqa: E402

tap = Tap()
COMMANDS = {"outrider": ("up", "down", "run", "chat", "status"),
            "outrider-model": ("info", "check", "tokenize", "render", "logits", "generate", "routes", "perplexity", "pack", "synth"),
            "outrider-bench": ("attention", "cache", "grammar", "ipc", "kernels", "machine", "model", "policy", "pool", "workload")}
VERBS = ("record", "synth", "replay", "profile")
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
    return set(re.findall(r"(?:^  (?:-\w, )?|\[)(--[a-z][a-z0-9-]*)", helped, re.M)) | {"--help"}


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
                lacks = options - completions([program, *words, "--"], folder)
                if lacks or (len(options) < 2):
                    missing[words] = lacks
            tap.ok(not missing, f"{shell}: every option of each", missing)
        for line, words in ((["outrider", "st"], {"status"}), (["outrider", "help", "ch"], {"chat"}),
                            (["outrider", "--v"], {"--version"}), (["outrider", "run", "--logits"], {"--logits-hash"}),
                            (["outrider", "run", "--format", "j"], {"json"}), (["outrider", "run", "--format=j"], {"json"}),
                            (["outrider", "run", "--format="], {"text", "json"}),
                            (["outrider", "up", "--model", "m"], {"model.gguf", "more"}),
                            (["outrider", "up", "--runtime-dir", "m"], {"more"}),
                            (["outrider", "run", "--k", ""], set()), (["outrider", "run", "--json", "mod"], {"model.gguf"}),
                            (["outrider-model", "info", "mod"], {"model.gguf"}),
                            (["outrider-model", "check", "--form"], {"--format"}),
                            (["outrider-bench", "cache", "re"], {"record", "replay"}),
                            (["outrider-bench", "cache", "record", "--model", "mod"], {"model.gguf"}),
                            (["outrider-bench", "kernels", "--layout", ""], {"tiles", "rows"})):
            got = completions(line, folder)
            tap.ok(got == words, f"{shell}: {' '.join(line)}", f"{got}, expected {words}")


check("bash", bash_completions)
check("zsh", zsh_completions)
check_ctl("bash", ctl_bash)
check_ctl("zsh", ctl_zsh)
tap.done()
