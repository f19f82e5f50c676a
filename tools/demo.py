#!/usr/bin/env python3
"""The demo: an answer streamed by the four processes with its live state; the same answers while each process is killed
in turn, compared byte for byte; tokens per second without speculation, with a fixed K, and with K chosen."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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
    print(text, flush=True)


def program(name):
    return str(BUILD / name)


class Demo:
    def __init__(self):
        self.directory = Path(tempfile.mkdtemp(prefix="outrider-demo-"))
        self.runtime = str(self.directory / "run")
        self.up = None

    def start(self, budget):
        log = open(self.directory / "log", "w")
        self.up = subprocess.Popen(
            [program("outrider"), "up", "--model", str(MODEL), "--draft", str(DRAFT), "--budget", budget,
             "--runtime-dir", self.runtime], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            if self.up.poll() is not None:
                break
            if all(p["state"].startswith("ready") for p in self.processes()):
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


def show_answer(demo):
    say(bold("1. An answer, from four processes"))
    for process in demo.processes():
        say(f"   {process['name']:13} pid {process['pid']:<8} {process['state']}")
    say(f"   Model: {MODEL.name} (6 layers of 32 experts; room for 60% of them), draft: {DRAFT.name}")
    say("   17 million parameters: real, but tiny. What is to be seen here is the machinery, not what the answers say.\n")
    for line, tokens, heat in ((workload("math")[1], 160, 0), (workload("prose")[2], 600, 0.8)):
        asked = question(line)[-1]
        say(f"   > {asked if len(asked) < 200 else '... ' + asked[-160:].strip()}\n")
        demo.run(*question(line), "--max-tokens", tokens, "--temperature", heat, "--seed", 3, "--stats").wait()
        say()


def show_crashes(demo):
    say(bold("2. kill -9, one process after the other, in the middle of an answer"))
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
        say(f"   {name:13} killed {'while it was being made' if running else 'just after'}: {len(got['tokens'])} tokens, "
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
    say(bold("3. Tokens per second: no speculation, a fixed K, and K chosen by the policy-controller"))
    say("   Room for 30% of the experts: every token waits for some, and a draft that is wrong makes others wait that nobody needed.")
    say("   Median of 3 rounds, taken in turn; x: to K = 0. K chosen: what pays is done, and what does not is turned off.")
    say("   With a mean K of 0.0 nothing was drafted: how far such a ratio is from 1 is the noise of this machine.\n")
    say(f"   {'workload':9} {'drafter':12} {'K = 0':>7} {'K = 3':>14} {'K chosen':>14}")
    for name in WORKLOADS:
        for drafter, title in (("ngram", "n-gram"), ("model", "draft model")):
            rows = measured(demo, name, drafter)
            base, fixed, chosen = (rows[k]["tokens_per_s"] for k in ("0", "3", "auto"))
            say(f"   {name:9} {title:12} {base:7.0f} {fixed:7.0f} {fixed / base:5.2f}x {chosen:7.0f} {chosen / base:5.2f}x"
                f"   mean K {rows['auto']['mean_k']:.1f}, {rows['auto']['tokens_per_iteration']:.2f} tokens per iteration")
    say()


def main():
    demo = Demo()
    try:
        demo.start("60%")
        show_answer(demo)
        show_crashes(demo)
        demo.stop()
        demo.start("30%")
        show_speed(demo)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        demo.remove()
    say(bold("Next"))
    say(f"   {SHOWN}/outrider up --model FILE.gguf [--draft DRAFT.gguf]   serve a model of yours (Ctrl-C stops it)")
    say(f"   {SHOWN}/outrider chat                                        talk to it, in another terminal")
    say(f"   {SHOWN}/outriderctl top                                      watch K, acceptance and the cache live")
    say("   make check                                                 every test; README.md has the rest")


if __name__ == "__main__":
    main()
