#!/usr/bin/env python3
"""bench/peers/run.py: measures the engines in turn, says what it measured and on what, and refuses what it cannot."""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
from outrider_test import PATIENCE, Tap  # noqa: E402

B = os.environ.get("B", "build")
DEMO = "models/outrider-demo-moe-q8_0.gguf"
tap = Tap()
ok = tap.ok
FAKE = """#!/usr/bin/env python3
# A llama-bench that answers at once: 100 tokens/s at decoding, 50 times n for a pass of n.
import json, sys
args = dict(zip(sys.argv[1::2], sys.argv[2::2]))
open({log!r}, "a").write(json.dumps(args) + chr(10))
rows = [{{"n_prompt": int(n), "n_gen": 0, "n_depth": 0, "avg_ts": 50.0 * int(n)}} for n in args["-p"].split(",") if n != "0"]
if args.get("-n", "0") != "0":
    rows.append({{"n_prompt": 0, "n_gen": int(args["-n"]), "n_depth": int(args.get("-d", 0)), "avg_ts": 100.0}})
print("a line of a library")
print(json.dumps(rows))
"""

SERVER = """#!/usr/bin/env python3
# A llama-server whose answers are as long as was asked.
import http.server, json, sys
args = dict(zip(sys.argv[1::2], sys.argv[2::2]))
def note(what):
    open({log!r}, "a").write(json.dumps(what) + chr(10))
class Handler(http.server.BaseHTTPRequestHandler):
    def reply(self, body):
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def do_GET(self):
        self.reply({{"status": "ok"}})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        note(asked)
        self.reply({{"usage": {{"completion_tokens": asked["max_tokens"]}}}})
    def log_message(self, *words):
        pass
note(args)
http.server.ThreadingHTTPServer(("127.0.0.1", int(args["--port"])), Handler).serve_forever()
"""


def parallel(*args):
    return subprocess.run([sys.executable, "bench/peers/parallel.py", *map(str, args)], capture_output=True, text=True, timeout=1500 * PATIENCE,
                          env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})


def run(*args):
    return subprocess.run([sys.executable, "bench/peers/run.py", "--build", B, *map(str, args)], capture_output=True,
                          text=True, timeout=1500 * PATIENCE, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})


with tempfile.TemporaryDirectory(prefix="outrider-peers-") as folder:
    folder = Path(folder)
    fake, log = folder / "llama-bench", folder / "log"
    fake.write_text(FAKE.format(log=str(log)))
    fake.chmod(0o755)
    common = ("--cache", folder / "cache", "--results", folder / "results", "--engines", "", "--threads", 1, "--tokens", 8,
              "--batch", "2,4", "--prefill", 32, "--passes", 1)

    result = run(*common, "--file", DEMO, "--llama-bench", f"fake={fake} -rtr 1", "--rounds", 2, "--depths",
                 "0,64,1000000")
    data = json.loads((folder / "results/peers.json").read_text()) if result.returncode == 0 else {}
    text = (folder / "results/peers.txt").read_text() if result.returncode == 0 else ""
    ok(result.returncode == 0, "it runs", result.stdout + result.stderr)
    model = data.get("models", [{}])[0]
    ours, theirs = (model.get("engines", {}).get(name, {}) for name in ("outrider", "fake"))
    wanted = {"decode", "verify 2", "verify 4", "prefill", "decode at 0", "decode at 64"}
    ok(set(ours) == set(theirs) == wanted, "every engine is asked the same; a depth beyond the context is left out",
       (set(ours), set(theirs)))
    ok(len(ours.get("decode", [])) == len(theirs.get("decode", [])) == 2 and "1000000" in result.stdout,
       "once per round", result.stdout)
    asked = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    ok([a.get("-p") for a in asked] == ["2,4,32", "2,4,32", "0", "0"] and [a.get("-d") for a in asked[2:]] == ["0", "64"] and
       all(a["-t"] == "1" and a["-m"] == DEMO and a["-rtr"] == "1" for a in asked),
       "with the same file and threads, and with its own options", asked)
    rows = {row["figure"]: row for row in model.get("summary", {}).get("rows", [])}
    peer = rows.get("verify 4", {}).get("engines", {}).get("fake", {})
    mine = rows.get("verify 4", {}).get("engines", {}).get("outrider", {})
    ok(peer.get("tokens_per_s") == 200 and abs(peer["ratio"] * 200 / mine["tokens_per_s"] - 1) < 1e-6 and
       abs(peer["floor_ratio"] * peer["floor_share"] / mine["floor_share"] - 1) < 1e-6 and
       rows["verify 4"]["distinct_experts"] > 24 and mine["floor_share"] > 0 and peer["floor_share"] > 0,
       "medians stand beside their floors, the experts touched and the ratio", rows)
    machine = data.get("machine", {})
    ok(machine.get("cpu") and machine.get("threads") == 1 and machine["cpu"] in text and "verify 4" in text and
       all(read > 0 for name in ("outrider", "fake") for read in model["read_gb_s"][name]), "the results name the machine and its bandwidth", text)

    ok(text.splitlines()[1] == "$ bench/peers/run.py --engines '' --threads 1 --tokens 8 --batch 2,4 --prefill 32 --passes 1 --file "
       f"{DEMO} --llama-bench 'fake=llama-bench -rtr 1' --rounds 2 --depths 0,64,1000000" and str(folder) not in text + json.dumps(data),
       "and the command, not where the caller's files lie", text)

    result = run(*common, "--file", DEMO, "--llama-bench", f"fake={fake}", "--rounds", 0, "--depths", "0,64", "--depth-rounds", 2)
    model = json.loads((folder / "results/peers.json").read_text())["models"][0] if result.returncode == 0 else {}
    ok({e: {k: len(v) for k, v in figures.items()} for e, figures in model.get("engines", {}).items()} ==
       {e: {"decode at 0": 2, "decode at 64": 2} for e in ("outrider", "fake")}, "depths alone, in rounds", result.stdout + result.stderr)

    result = run(*common, "--models", "qwen3-0.6b:1", "--types", "q4_0", "--rounds", 1, "--depths", "")
    ok(result.returncode == 0 and "qwen3-0.6b-1-q4_0" in (folder / "results/peers.txt").read_text() and
       not list((folder / "cache/models").iterdir()), "a model is made and goes again", result.stdout + result.stderr)

    server = folder / "llama-server"
    server.write_text(SERVER.format(log=str(folder / "served")))
    server.chmod(0o755)
    together = ("--build", B, "--cache", folder / "cache", "--results", folder / "results", "--server", server, "--threads", 1, "--file", DEMO,
                "--rounds", 1, "--output-tokens", 4, "--requests", 2)
    result = parallel(*together, "--clients", "1,3")
    data = json.loads((folder / "results/parallel.json").read_text()) if result.returncode == 0 else {"models": [{"tokens_per_s": {}}]}
    rates = data["models"][0]["tokens_per_s"]
    ok(set(rates) == {"outrider", "llama.cpp"} and all(set(r) == {"1", "3"} and all(len(v) == 1 and v[0] > 0 for v in r.values()) for r in rates.values()),
       "parallel.py asks both engines with each number of clients", result.stdout + result.stderr)
    served = [json.loads(line) for line in (folder / "served").read_text().splitlines()]
    ok([s["-np"] for s in served if "-np" in s] == ["1", "3"] and all(s["-m"] == DEMO and s["-t"] == "1" for s in served if "-np" in s) and
       [s["max_tokens"] for s in served if "max_tokens" in s] == [4] * (2 + 2 + 2 + 6) and all(len(s["prompt"]) == 16 and s["ignore_eos"] for s in served if "prompt" in s),
       "the same file and threads, a slot for each client", served)
    text = (folder / "results/parallel.txt").read_text()
    ok("at a time" in text and text.splitlines()[1].startswith("$ bench/peers/parallel.py --server llama-server") and str(folder) not in text, "and says what it did", text)
    for more, words in ((("--clients", "0"), "--clients"), (("--server", "/none/llama-server"), "/none/llama-server"), (("--server", "false"), "did not become ready")):
        result = parallel(*together, *more)
        ok(result.returncode == 1 and words in result.stderr and "Traceback" not in result.stderr, f"{' '.join(more)} is refused", result.stderr)

    tools = folder / "tools"  # that they are there is not what this is about
    tools.mkdir()
    for name in ("cmake", "g++"):
        (tools / name).write_text("#!/bin/sh\n")
        (tools / name).chmod(0o755)
    os.environ["PATH"] = f"{tools}:{os.environ['PATH']}"
    (folder / "cache" / "llama_cpp_python-0.3.36.tar.gz").write_bytes(b"not it")
    for arguments, words in (
            (("--engines", "llama.cpp"), "expected 832db06990"), (("--engines", "vllm"), "vllm"),
            (("--file", "/none.gguf"), "/none.gguf"), (("--batch", "0"), "--batch"),
            (("--rounds", "0"), "nothing to measure"), (("--depths=-1",), "--depths"),
            (("--file", DEMO, "--llama-bench", "x=/none/llama-bench"), "/none/llama-bench"),
            (("--file", DEMO, "--llama-bench", "x=false"), "exit status 1"),
            (("--models", "llama-9t"), "llama-9t"), (("--build", str(folder)), "run make first")):
        result = run(*common, "--rounds", 1, "--depths", "", *arguments)
        ok(result.returncode == 1 and words in result.stderr and "Traceback" not in result.stderr,
           f"{' '.join(arguments)} is refused", result.stderr)
tap.done()
