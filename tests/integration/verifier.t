#!/usr/bin/env python3
"""outrider-verifier by itself: settings, exit statuses, and an answer with every other process absent."""
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from outrider_test import BUILD, ROOT, TARGET, Tap, ended, program, reference, run, run_json, until

VERIFIER = program("outrider-verifier")
EX_USAGE, EX_DATAERR, EX_NOINPUT, EX_OSERR, EX_CONFIG = 64, 65, 66, 71, 78
tap = Tap()


def refused(name, status, words, *arguments):
    result = run(VERIFIER, "--config", "/dev/null", *arguments)
    said = all(word in result.stderr for word in words)
    tap.ok(result.returncode == status and said, name, f"status {result.returncode}: {result.stderr}")


def settings(directory):
    tap.ok(run(VERIFIER, "--config", ROOT / "config/verifier.conf", "--model", TARGET, "-n").returncode == 0,
           "the configuration that is shipped passes its check")
    tap.ok(run(VERIFIER, "--print-config").stdout == (ROOT / "config/verifier.conf").read_text(),
           "config/verifier.conf is what --print-config writes")
    refused("an unknown flag is a usage error", EX_USAGE, ["--help"], "--nonsense")
    refused("an unknown key is named", EX_CONFIG, ["nonsense"], "-n", "--model", TARGET, "--set", "nonsense=1")
    refused("a value out of range is refused with the range", EX_CONFIG, ["sessions_max", "1 to 256"],
            "-n", "--model", TARGET, "--set", "sessions_max=257")
    refused("keys that contradict each other are refused together", EX_CONFIG, ["sessions_max", "queue_max"],
            "-n", "--model", TARGET, "--set", "sessions_max=200", "--set", "queue_max=400")
    refused("no model at all is a configuration error", EX_CONFIG, ["model"], "-n")
    refused("a model that is not there is named", EX_NOINPUT, ["/nowhere.gguf"], "-n", "--model", "/nowhere.gguf")
    refused("a file that is no model is named", EX_DATAERR, ["README.md"], "-n", "--model", ROOT / "models/README.md")
    cut = directory / "cut.gguf"
    cut.write_bytes(TARGET.read_bytes()[:3_000_000])
    refused("a truncated model is refused", EX_DATAERR, ["cut.gguf"], "-n", "--model", cut)
    refused("a context the model does not have is refused with both numbers", EX_DATAERR, ["5000", "1024"],
            "-n", "--model", TARGET, "--set", "context=5000")
    refused("a KV cache larger than the machine is refused with its size", EX_OSERR, ["kv_tokens", "GiB"],
            "--model", TARGET, "--runtime-dir", directory / "none", "--set", "kv_tokens=33000000")
    conf = directory / "verifier.conf"
    conf.write_text("threads = 1\nnot_a_key = 3\n")
    result = run(VERIFIER, "--config", conf, "--model", TARGET, "-n")
    tap.ok(result.returncode == EX_CONFIG and "not_a_key" in result.stderr and ":2" in result.stderr,
           "an unknown key in a file is named with its line", result.stderr)


def alone(directory):
    runtime = directory / "run"
    ids = [600, 700, 800, 900, 1000]
    process = subprocess.Popen([VERIFIER, "--config", "/dev/null", "--model", str(TARGET), "--runtime-dir",
                                str(runtime), "--set", "threads=1"], stderr=subprocess.PIPE, text=True)
    try:
        if not (BUILD / "outrider").exists():
            tap.skip("the verifier answers alone", "no outrider in the build folder")
            return
        tap.ok(until((runtime / "client").exists), "the client socket appears")
        wanted = reference(ids, 40, extra=("--ignore-eos",))["tokens"]
        answer = run_json(program("outrider"), "run", "--runtime-dir", runtime, "--tokens", ",".join(map(str, ids)),
                          "--max-tokens", 40, "--ignore-eos", "--format", "json")
        tap.ok(answer["tokens"] == wanted, "the verifier alone gives the reference's tokens",
               f"{answer['tokens']} for {wanted}")
        second = run(VERIFIER, "--config", "/dev/null", "--model", TARGET, "--runtime-dir", runtime)
        tap.ok(second.returncode != 0 and "in use" in second.stderr, "a second one in the directory is refused",
               second.stderr)
        process.send_signal(signal.SIGTERM)
        tap.ok(ended(process) == 0, "SIGTERM ends it with status 0")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


if os.access(VERIFIER, os.X_OK) and TARGET.exists():
    place = Path(tempfile.mkdtemp(prefix="outrider-", dir="/tmp"))
    try:
        settings(place)
        alone(place)
    finally:
        shutil.rmtree(place, ignore_errors=True)
else:
    tap.skip("outrider-verifier", "not built, or no demo model")
tap.done()
