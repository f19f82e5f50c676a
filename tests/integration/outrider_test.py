"""What the integration tests share: TAP output, starting and stopping the real service, traffic, the reference."""
import contextlib
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = (ROOT / os.environ.get("B", "build")).resolve()
MODELS = ROOT / "models"
TARGET = MODELS / "outrider-demo-moe-q8_0.gguf"
TARGET_Q4 = MODELS / "outrider-demo-moe-q4_0.gguf"
DRAFTS = {name: MODELS / f"outrider-demo-draft-{name}-q8_0.gguf" for name in ("small", "aligned")}
WORKLOADS = ROOT / "bench" / "workloads"
PROCESSES = ("verifier", "drafter", "expert-cache", "policy")
SANITIZED = bool(os.environ.get("SAN"))
# A sanitized build is many times slower: limits on waiting grow, nothing is compared with a clock.
PATIENCE = 20 if SANITIZED else 1


class Tap:
    """A plan at the end, so that a test which dies half-way fails."""

    def __init__(self):
        self.n = self.failed = 0

    def ok(self, passed, name, why=""):
        self.n += 1
        self.failed += not passed
        print(f"{'ok' if passed else 'not ok'} {self.n} - {name}", flush=True)
        if not passed and why:
            for line in str(why).splitlines()[:40]:
                print(f"# {line}", flush=True)
        return passed

    def test(self, function):
        """A decorator: runs the function, which is a test by its name and what it asserts."""
        try:
            function()
            self.ok(True, function.__name__.replace("_", " "))
        except Exception as e:  # whatever it is, the others are run
            self.ok(False, function.__name__.replace("_", " "), repr(e))

    def skip(self, name, why):
        self.n += 1
        print(f"ok {self.n} - {name} # SKIP {why}", flush=True)

    def note(self, text):
        print(f"# {text}", flush=True)

    def done(self):
        print(f"1..{self.n}", flush=True)
        sys.exit(1 if self.failed or not self.n else 0)


def program(name):
    return str(BUILD / name)


# The signals of a process's own fault, which no test expects.
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)


def sound(process, said=""):
    """Raises if a process that has ended crashed."""
    if -process.returncode in CRASHES:
        raise RuntimeError(f"{process.args} crashed: {signal.Signals(-process.returncode).name}\n{(said or '')[-2000:]}")


def finish(process, timeout, stdin=None):
    """What a process says until it ends, killed when it takes longer: (stdout, stderr). Time counts as Patience counts it. Raises if it
    crashed."""
    patience = Patience(timeout)
    while True:
        try:
            said = process.communicate(stdin, timeout=1)
            sound(process, said[1])
            return said
        except subprocess.TimeoutExpired:
            stdin = None  # is on its way
            if not patience.lasts():
                process.kill()
                process.communicate()
                raise


def ended(process, timeout=60):
    """The status with which a process ends that nobody reads from, killed when it takes longer; time counts as Patience counts
    it. Raises if it crashed."""
    if not until(lambda: process.poll() is not None, timeout):
        process.kill()
        process.wait()
        raise subprocess.TimeoutExpired(process.args, timeout)
    sound(process)
    return process.returncode


def run(*arguments, stdin=None, timeout=600, env=None):
    with subprocess.Popen([str(a) for a in arguments], stdin=None if stdin is None else subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}) as process:
        out, errors = finish(process, timeout, stdin)
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


def run_json(*arguments, **more):
    result = run(*arguments, **more)
    if result.returncode:
        raise RuntimeError(f"{' '.join(map(str, arguments))}: status {result.returncode}: {result.stderr[-2000:]}")
    return json.loads(result.stdout)


def grouped(folder, limits, *command):
    """The command in a namespace where its control group has these files; it is not moved into any. They lie in folder, and
    may be written to while it runs."""
    mount = folder / "group"
    shutil.rmtree(mount, ignore_errors=True)
    (mount / "test").mkdir(parents=True)
    for name, text in limits.items():
        (mount / "test" / name).write_text(text)
    (folder / "membership").write_text("0::/test\n")
    script = f'mount --bind {mount} /sys/fs/cgroup && mount --bind {folder}/membership /proc/$$/cgroup && exec "$@"'
    return ["unshare", *([] if os.getuid() == 0 else ["-r"]), "-m", "sh", "-c", script, "sh", *map(str, command)]


class Service:
    """`outrider up` with its own runtime directory; a context manager."""

    def __init__(self, model=TARGET, draft=None, sets=(), options=(), runtime="run", env=None, before=(), ready_s=300):
        """env: beside the environment; before: a command that runs it; ready_s: how long a model may take to load."""
        self.ready_s = ready_s
        self.directory = Path(tempfile.mkdtemp(prefix="outrider-", dir="/tmp"))
        self.runtime = self.directory / runtime
        self.log = open(self.directory / "log", "w+")
        command = [*before, program("outrider"), "up", "--model", model, "--runtime-dir", self.runtime, *options]
        if draft:
            command += ["--draft", draft]
        for pair in sets:
            command += ["--set", pair]
        self.process = subprocess.Popen([str(c) for c in command], stdout=self.log, stderr=self.log,
                                        stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})})

    def __enter__(self):
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def wait_ready(self):
        patience = Patience(self.ready_s)
        while patience.lasts():
            if self.process.poll() is not None:
                raise RuntimeError(f"outrider up ended with {self.process.returncode}:\n{self.log_text()}")
            if all(p["state"].startswith(("ready", "idle")) for p in self.status()):
                return
            time.sleep(0.05)
        raise RuntimeError(f"not ready: {self.status()}\n{self.log_text()}")

    def status(self):
        result = run(program("outrider"), "status", "--runtime-dir", self.runtime, "--format", "json")
        try:
            return json.loads(result.stdout)["processes"]
        except (json.JSONDecodeError, KeyError):
            return [{"name": n, "pid": None, "state": "down"} for n in PROCESSES]

    def details(self, name):
        """What the process says of itself; waits until it answers, for a busy one misses a question."""
        said = {}

        def answered():
            said.update(next((p.get("details") or {} for p in self.status() if p["name"] == name), {}))
            return said
        until(answered)
        return said

    def ctl(self, *words, **more):
        """outriderctl, asking this service."""
        return run(program("outriderctl"), "--runtime-dir", self.runtime, *words, **more)

    def ctl_json(self, *words, **more):
        return run_json(program("outriderctl"), "--runtime-dir", self.runtime, "--json", *words, **more)

    def pid(self, name):
        for process in self.status():
            if process["name"] == name:
                return process["pid"] if process.get("generation") else None  # one that is silent has a pid too
        return None

    def digested(self):
        """Bytes of the model that the expert-cache can compare with what it read before."""
        return int(self.details("expert-cache").get("digested_bytes", 0))

    def children(self):
        """{pid: name} of the processes that were started, whether they answer or not; none twice, but for a moment."""
        found = {}
        with contextlib.suppress(OSError):
            for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
                with contextlib.suppress(OSError):
                    found[int(pid)] = os.path.basename(os.readlink(f"/proc/{pid}/exe")).removeprefix("outrider-")
        return found

    def processes(self):
        """{name: pid}: two of them tell whether a process is still the same, also where it has no time to answer."""
        return {name: pid for pid, name in self.children().items()}

    def renewed(self, name, before):
        """Waits until another process than `before` is up under the name."""
        return until(lambda: self.pid(name) not in (None, before))

    def kill(self, name, sig=signal.SIGKILL):
        """Kills the process; False when it was not up at that moment."""
        pid = self.pid(name)
        if not pid:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sig)
            return True
        return False

    def end(self, name, sig=signal.SIGKILL):
        """Sends it to the process, which has to be there; returns the pid."""
        pid = self.processes()[name]
        os.kill(pid, sig)
        return pid

    def restart(self, name, sig=signal.SIGKILL):
        """Ends the process, and waits until all are ready again with another in its place."""
        self.renewed(name, self.end(name, sig))
        self.wait_ready()

    def all_resident(self):
        """Whether the expert-cache has read every expert."""
        cache = self.details("expert-cache")
        return cache.get("resident") == cache.get("experts", -1)

    def whole_log(self):
        return (self.directory / "log").read_text(errors="replace")

    def log_text(self):
        return self.whole_log()[-6000:]

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                ended(self.process)
        self.log.close()
        # A process that fails is started again, and answers go on: they alone would not show it.
        reports = [line for line in self.whole_log().splitlines()
                   if re.search(r"Sanitizer:|runtime error:|: Assertion `|simt: kernel |killed by signal ((4|7|8|11) |\d+ .* as it ended)", line)]
        if reports:
            raise RuntimeError(f"{self.directory}/log: " + "\n".join(reports[:10]))
        shutil.rmtree(self.directory, ignore_errors=True)
        return self.process.returncode

    def answer(self, ids, tokens, *more):
        """The JSON of one answer of so many tokens."""
        return run_json(program("outrider"), "run", "--runtime-dir", self.runtime, "--tokens", ",".join(map(str, ids)), "--max-tokens",
                        tokens, "--ignore-eos", "--format", "json", *more, timeout=600)

    def swarm(self, requests, concurrent=1, timeout=900):
        """Runs requests (dicts, see tests/integration/swarm.c) and returns their results in order."""
        text = "".join(json.dumps(r) + "\n" for r in requests)
        result = run(program("tests/swarm"), self.runtime, concurrent, stdin=text, timeout=timeout)
        if result.returncode:
            raise RuntimeError(f"swarm: status {result.returncode}: {result.stderr[-2000:]}\n{self.log_text()}")
        return [json.loads(line) for line in result.stdout.splitlines()]

    def swarm_start(self, requests, concurrent=1):
        """The same in the background: (process, function that waits and returns the results)."""
        text = "".join(json.dumps(r) + "\n" for r in requests)
        process = subprocess.Popen([program("tests/swarm"), str(self.runtime), str(concurrent)],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        process.stdin.write(text)
        process.stdin.close()
        process.stdin = None

        def results(timeout=900):
            out, errors = finish(process, timeout)
            if process.returncode:
                raise RuntimeError(f"swarm: status {process.returncode}: {errors[-2000:]}\n{self.log_text()}")
            return [json.loads(line) for line in out.splitlines()]
        return process, results

    def swarm_held(self, requests, concurrent=1, tokens=8):
        """The same, with a client that stops itself when its first answer has so many tokens, and goes on where results are waited for.
        Until then no answer is complete that is longer than twice as many and what is computed ahead of clients (verifier.ahead_max)."""
        process, results = self.swarm_start([{**r, "window": tokens, "hold": tokens} for r in requests], concurrent)
        if not until(lambda: is_stopped(process.pid) or process.poll() is not None, every=0.01) or process.poll() is not None:
            process.send_signal(signal.SIGCONT)
            raise RuntimeError(f"no answer was caught: {results()}")

        def go_on(timeout=900):
            process.send_signal(signal.SIGCONT)
            return results(timeout)
        return process, go_on

    def swarm_under_kills(self, requests, victim, most, pause, **more):
        """The swarm's results, while the victim is killed up to `most` times, each time after pause(); and how often it was."""
        process, results = self.swarm_start(requests, **more)
        kills = 0
        while process.poll() is None and kills < most:
            pause()
            if process.poll() is None:
                kills += self.kill(victim)
        return results(), kills


def tokens_of(workload, model=TARGET):
    """The token ids of a workload line, from the tokenizer (ChatML written out for conversations)."""
    if "prompt" in workload:
        text = workload["prompt"]
    else:
        text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in workload["messages"])
        text += "<|im_start|>assistant\n"
    return run_json(program("outrider-model"), "tokenize", "--model", model, "--special", "--format", "json",
                    stdin=text)["tokens"]


def prompts(n, model=TARGET, longest=200):
    """n prompts as ids, taken in turn from the four workloads."""
    lines = {name: [json.loads(l) for l in (WORKLOADS / f"{name}.jsonl").read_text().splitlines()]
             for name in ("code", "math", "extract", "prose")}
    out, i = [], 0
    while len(out) < n:
        for name in lines:
            ids = tokens_of(lines[name][i % len(lines[name])], model)[:longest]
            if len(out) < n:
                out.append(ids)
        i += 1
    return out


SAMPLED = {"temperature": 0.8, "top_p": 0.95}


def reference(ids, max_tokens, sampling=None, seed=1, model=TARGET, extra=()):
    """Tokens and logits hashes from the engine alone, K = 0."""
    command = [program("outrider-model"), "generate", "--model", model, "--tokens", ",".join(map(str, ids)),
               "--max-tokens", max_tokens, "--logits-hash", "--format", "json", "--seed", seed, "--threads", 1, *extra]
    for key, value in (sampling or {}).items():
        command += ["--" + key.replace("_", "-"), value]
    return run_json(*command)


def session_name(uid):
    """The short name of a session: its lowest 32 bits in words (proquints), the lowest word first."""
    def word(bits):
        return "".join("bdfghjklmnprstvz"[bits >> shift & 15] if shift % 6 == 0 else "aiou"[bits >> shift & 3] for shift in (12, 10, 6, 4, 0))
    return f"{word(int(uid) & 0xffff)}-{word(int(uid) >> 16 & 0xffff)}"


def difference(result, expected):
    """Where a served result differs from the reference, in words; '' when nowhere."""
    if result.get("error"):
        return f"error: {result['error']}"
    got, want = result["tokens"], expected["tokens"]
    if got != want:
        at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
        return f"tokens differ at {at} of {len(got)}/{len(want)}: {got[at:at + 5]} for {want[at:at + 5]}"
    if result.get("logits_hash") is not None and result["logits_hash"] != expected["logits_hash"]:
        if len(result["logits_hash"]) != len(expected["logits_hash"]):
            return f"{len(result['logits_hash'])} hashes of {len(expected['logits_hash'])} logits"
        at = next(i for i, (a, b) in enumerate(zip(result["logits_hash"], expected["logits_hash"])) if a != b)
        return f"logits differ at {at}"
    if result.get("logprobs") is not None and result["logprobs"] != expected["logprobs"]:
        at = next((i for i, (a, b) in enumerate(zip(result["logprobs"], expected["logprobs"])) if a != b), len(result["logprobs"]))
        return f"log probabilities differ at {at} of {len(expected['logprobs'])}: {result['logprobs'][at:at + 1]} for {expected['logprobs'][at:at + 1]}"
    return ""


def differences(results, expected):
    """Where served results differ from the references of the same places, a line each; '' when nowhere."""
    return "\n".join(f"answer {i}: {what}" for i, (r, e) in enumerate(zip(results, expected)) if (what := difference(r, e)))


def probabilities(ids, temperature, top_k, model=TARGET):
    """The exact distribution of the next token: {token: probability}."""
    row = run_json(program("outrider-model"), "logits", "--model", model, "--tokens", ",".join(map(str, ids)),
                   "--format", "json")["logits"]
    best = sorted(range(len(row)), key=row.__getitem__, reverse=True)[:top_k]
    weights = {t: math.exp((row[t] - row[best[0]]) / temperature) for t in best}
    total = sum(weights.values())
    return {t: w / total for t, w in weights.items()}


def chi_square_limit(freedom, sigmas=4.75):
    """What a true hypothesis exceeds once in a million (Wilson and Hilferty's approximation)."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + sigmas * math.sqrt(spread)) ** 3


class Patience:
    """Time that is left, whatever the machine did meanwhile: of a pause, in which nobody got further, little counts."""

    def __init__(self, seconds):
        self.left, self.at = seconds * PATIENCE, time.monotonic()

    def lasts(self):
        now = time.monotonic()
        self.left -= min(now - self.at, 2)
        self.at = now
        return self.left > 0


def until(condition, timeout=60, every=0.05):
    """Whether the condition came true in time; it is looked at every so many seconds."""
    patience = Patience(timeout)
    while patience.lasts():
        if condition():
            return True
        time.sleep(every)
    return False


def is_stopped(pid):
    """Whether a process was stopped by a signal."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


def asleep(service):
    """The sessions that sleep, by their number."""
    return {str(s["uid"]): s for s in service.ctl_json("sessions")["sessions"] if s["state"] == "asleep"}


def told_to_sleep(service, ask, n=10):
    """Sends a request n times, whose answers are longer than what is computed ahead (Service.swarm_held), and tells those that have begun to
    sleep. Returns the sessions that sleep, the process that sent them, which goes on, and the function that waits for its results."""
    process, results = service.swarm_held([ask] * n, concurrent=n)
    sessions = lambda: service.ctl_json("sessions")["sessions"]
    told = [str(s["uid"]) for s in sessions() if s["state"] == "running" and service.ctl("session", "sleep", s["uid"]).returncode == 0]
    if not told or not until(lambda: all(s["state"] == "asleep" for s in sessions() if str(s["uid"]) in told)):
        raise RuntimeError(f"of {sessions()} {told} were told to sleep\n{service.log_text()}")
    process.send_signal(signal.SIGCONT)
    return {uid: s for uid, s in asleep(service).items() if uid in told}, process, results


def seeded(default=20261121):
    """A random generator whose seed is printed, so that a failure can be repeated (OUTRIDER_TEST_SEED)."""
    seed = int(os.environ.get("OUTRIDER_TEST_SEED", default))
    print(f"# seed {seed}", flush=True)
    return random.Random(seed)
