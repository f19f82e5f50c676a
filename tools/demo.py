#!/usr/bin/env python3
"""The demo. A small model that speaks English, with and without drafts (where it can be fetched); an answer of the shipped
Mixture-of-Experts model; the same answer while each process is killed in turn, compared byte for byte; and what drafts bring and
cost: tokens per second without them, with a fixed draft length, and with the length that the policy chooses."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import demo_model

ROOT = Path(__file__).resolve().parents[1]
BUILD = (ROOT / os.environ.get("B", "build")).resolve()
SHOWN = os.environ.get("B", "build")
MODEL = ROOT / "models" / "outrider-demo-moe-q8_0.gguf"
DRAFT = ROOT / "models" / "outrider-demo-draft-small-q8_0.gguf"
WORKLOADS = ("code", "math", "extract", "prose")
PROCESSES = ("verifier", "drafter", "expert-cache", "policy")
TTY = sys.stdout.isatty()


def bold(text):
    return f"\033[1m{text}\033[0m" if TTY else text


def say(text=""):
    """Prints it, with long lines broken between words."""
    for line in text.split("\n"):
        print(textwrap.fill(line, 100, subsequent_indent="   ", break_on_hyphens=False) if len(line) > 100 else line, flush=True)


def program(name):
    return str(BUILD / name)


class Demo:
    def __init__(self):
        self.directory = Path(tempfile.mkdtemp(prefix="outrider-demo-"))
        self.runtime = str(self.directory / "run")
        self.up = None

    def start(self, model=MODEL, *options):
        log = open(self.directory / "log", "w")
        self.up = subprocess.Popen(
            [program("outrider"), "up", "--model", str(model), *map(str, options), "--runtime-dir", self.runtime], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            if self.up.poll() is not None:
                break
            if all(p["state"].startswith(("ready", "idle")) for p in self.processes()):
                return
            time.sleep(0.1)
        sys.exit(f"demo: the service did not start:\n{(self.directory / 'log').read_text()}")

    def stop(self):
        if self.up and self.up.poll() is None:
            self.up.send_signal(signal.SIGTERM)
            try:
                self.up.wait(15)
            except subprocess.TimeoutExpired:
                self.up.kill()

    def remove(self):
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def processes(self):
        out = subprocess.run([program("outrider"), "status", "--runtime-dir", self.runtime, "--format", "json"],
                             capture_output=True, text=True).stdout
        try:
            return json.loads(out)["processes"]
        except (json.JSONDecodeError, KeyError):
            return [{"name": n, "pid": None, "state": "down"} for n in PROCESSES]

    def run(self, *arguments, **more):
        return subprocess.Popen([program("outrider"), "run", "--runtime-dir", self.runtime, *map(str, arguments)],
                                text=True, **more)

    def answer(self, *arguments):
        """The whole answer as json."""
        process = self.run(*arguments, "--format", "json", stdout=subprocess.PIPE)
        return json.loads(process.communicate()[0])


def workload(name):
    return [json.loads(line) for line in (ROOT / "bench" / "workloads" / f"{name}.jsonl").read_text().splitlines()]


def question(line):
    """Arguments of `outrider run` for one workload line."""
    if "prompt" in line:
        return [line["prompt"]]
    return ["--chat", line["messages"][-1]["content"]]


REPEATED = ("Outrider reads experts from the disk before they are needed. It drafts tokens ahead only while that makes the answer faster. "
            "When a process dies, its successor takes over and the answer goes on with the same bytes.")


def show_english(demo):
    say(bold("1. A small model that speaks English: SmolLM2-135M"))
    try:
        model = demo_model.model(say)
    except demo_model.Unavailable as why:
        say(f"   Left out: {why}.\n")
        return
    demo.start(model)
    say("   It is dense: it has no experts. It shows that the answers of a real model make sense here, and what drafts can bring.\n")
    asked = "What is the capital of France? Answer in one sentence."
    say(f"   > {asked}")
    say(f"   {demo.answer('--chat', asked, '--max-tokens', 40)['text'].strip()}\n")
    asked = f"Repeat this text word for word: {REPEATED}"
    say(f"   > {asked}")
    rates = {}
    for k in (("--k", 0), ()):
        got = demo.answer("--chat", asked, "--max-tokens", 80, *k)
        rates[bool(k)] = (len(got["tokens"]) - 1) * 1e9 / got["usage"]["decode_ns"]
    say(f"   {got['text'].strip()}\n")
    say(f"   Look at the speed: {rates[True]:.0f} tokens/s without drafts, {rates[False]:.0f} with them. The answer repeats its prompt, so almost"
        " every draft is right. Outrider saw that by itself; nothing was set.\n")
    demo.stop()


def show_answer(demo):
    say(bold("2. An answer of a Mixture-of-Experts model, from four processes"))
    for process in demo.processes():
        say(f"   {process['name']:13} pid {process['pid']:<8} {process['state']}")
    say(f"   Model: {MODEL.name}, 6 layers of 32 experts, of which 60% fit in the memory that it gets here. Draft model: {DRAFT.name}")
    say("   This model ships with Outrider and has 17 million parameters. It does sums and is often wrong: look at the speed, and at the line"
        " below the answer, which says how many drafted tokens were right and how often an expert was already in memory.\n")
    asked = "A train travels at 30 km per hour for 6 hours and then at 40 km per hour for 3 hours. How far does it travel in total?"
    say(f"   > {asked}\n")
    demo.run("--chat", asked, "--max-tokens", 160, "--stats").wait()
    say()


def show_crashes(demo):
    say(bold("3. Kill each process in the middle of an answer"))
    say("   The same request five times: once undisturbed, then with one of the four processes killed (kill -9) on the way.")
    line = workload("code")[4]
    arguments = (*question(line), "--max-tokens", 400, "--ignore-eos", "--seed", 5, "--temperature", 0.8)
    expected = demo.answer(*arguments)
    failed = False
    for name in PROCESSES:
        process = demo.run(*arguments, "--format", "json", stdout=subprocess.PIPE)
        time.sleep(0.06)
        pid = next((p["pid"] for p in demo.processes() if p["name"] == name), None)
        running = process.poll() is None
        if pid:
            os.kill(pid, signal.SIGKILL)
        got = json.loads(process.communicate()[0])
        same = got["tokens"] == expected["tokens"] and got["text"] == expected["text"]
        failed |= not same
        say(f"   {name:13} killed {'during the answer' if running else 'just after the answer'}: {len(got['tokens'])} tokens, "
            f"{'every byte the same' if same else 'DIFFERENT'}")
        for _ in range(100):
            if all(p["state"] == "ready" for p in demo.processes()):
                break
            time.sleep(0.1)
    say()
    if failed:
        sys.exit("demo: an answer changed; this is a bug, please report it")


def measured(demo, name, drafter):
    out = subprocess.run(
        [program("outrider-bench"), "workload", str(ROOT / "bench" / "workloads" / f"{name}.jsonl"), "--k", "0,3,auto",
         "--drafter", drafter, "--limit", "4", "--max-tokens", "128", "--rounds", "3", "--runtime-dir", demo.runtime,
         "--format", "json"], capture_output=True, text=True)
    if out.returncode:
        sys.exit(f"demo: outrider-bench workload: {out.stderr}")
    return {str(row["k"]): row for row in json.loads(out.stdout)["rows"]}


def show_speed(demo):
    say(bold("4. What drafts bring and cost: tokens per second"))
    say("   Now only 30% of the experts fit in memory, so that most tokens wait for some. A wrong draft makes others wait for nothing.")
    say("   K is the number of tokens drafted ahead: none (K = 0), always three, or what the policy chooses. x is the speed relative to K = 0.")
    say("   Look at the column 'K chosen': x should not be far below 1.00 anywhere, and above it where drafts are good. Medians of 3 rounds; where the"
        " chosen K is 0.0 nothing was drafted, and the ratio's distance from 1 is the noise of this machine.\n")
    say(f"   {'workload':9} {'drafts from':12} {'K = 0':>7} {'K = 3':>14} {'K chosen':>14} {'mean K':>9} {'tokens per pass':>17}")
    for name in WORKLOADS:
        for drafter, title in (("ngram", "n-grams"), ("model", "draft model")):
            rows = measured(demo, name, drafter)
            base, fixed, chosen = (rows[k]["tokens_per_s"] for k in ("0", "3", "auto"))
            say(f"   {name:9} {title:12} {base:7.0f} {fixed:7.0f} {fixed / base:5.2f}x {chosen:7.0f} {chosen / base:5.2f}x"
                f" {rows['auto']['mean_k']:9.1f} {rows['auto']['tokens_per_iteration']:17.2f}")
    say()


def main():
    demo = Demo()
    try:
        show_english(demo)
        demo.start(MODEL, "--draft", DRAFT, "--budget", "60%")
        show_answer(demo)
        show_crashes(demo)
        demo.stop()
        demo.start(MODEL, "--draft", DRAFT, "--budget", "30%")
        show_speed(demo)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        demo.remove()
    say(bold("Next (the demo has stopped its own service)"))
    say(f"   {SHOWN}/outrider up --model FILE.gguf   serve a model of yours (Ctrl-C stops it)")
    say(f"   {SHOWN}/outrider chat                   talk to it, in another terminal")
    say(f"   {SHOWN}/outrider status                 what it serves, how fast, how full")
    say(f"   {'README.md':{len(SHOWN) + 30}}   the rest")


if __name__ == "__main__":
    main()
