#!/usr/bin/env python3
"""The systemd units, and how `outrider up` does what they do: which ends of a process are final, and what a start of the target says.
Where systemd can be booted in a container of this machine's /usr, the units run there."""
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import BUILD, PROCESSES, ROOT, SANITIZED, TARGET, Tap, run, until

tap = Tap()
SYSTEMD = ROOT / "systemd"
SERVICES = {f"outrider-{name}.service" for name in PROCESSES}
home = Path(tempfile.mkdtemp(prefix="outrider-units-", dir="/var/tmp"))
units = home / "units"


def make_units():
    """As `make install` does, with the programs of the build."""
    units.mkdir()
    for path in SYSTEMD.iterdir():
        if path.name.endswith((".service", ".service.in", ".target", ".socket")):
            text = path.read_text().replace("@BINDIR@", str(BUILD)).replace("@SYSCONFDIR@", "/etc")
            (units / path.name.removesuffix(".in")).write_text(text)


def settings(unit):
    """{key: [words of all lines]}"""
    found = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", (units / unit).read_text(), re.M):
        found.setdefault(key, []).extend(value.split())
    return found


def documented(page):
    """The two lists of statuses of a daemon's manual: final ones, and those that may pass."""
    text = (ROOT / "man" / page).read_text().split(".Sh EXIT STATUS")[1].split("\n.Sh")[0]
    return [set(re.findall(r"^\.It (\d+)$", block, re.M)) for block in text.split(".El")[:2]]


def invariants():
    for name in PROCESSES:
        unit, (final, passing) = settings(f"outrider-{name}.service"), documented(f"outrider-{name}.8")
        tap.ok(set(unit["RestartPreventExitStatus"]) == final == {"64", "65", "71", "77", "78"} and not final & passing and
               passing >= {"66", "69", "74", "75"} and unit["Restart"] == ["always"],
               f"{name}: the unit and the manual have the same final statuses", f"{unit} {final} {passing}")
        tap.ok(unit["PartOf"] == ["outrider.target"], f"{name}: the target stops it", unit)
    target, ready = settings("outrider.target"), settings("outrider-ready.service")
    tap.ok(set(target["Wants"]) == SERVICES and target["Requires"] == target["After"] == ["outrider-ready.service"],
           "the target starts all, and fails when they are not ready", target)
    # Nothing that stays active requires a process: who restarts one of them by hand restarts that one.
    tap.ok(set(ready["Requires"]) == set(ready["After"]) == SERVICES and ready["Type"] == ["oneshot"] and
           "RemainAfterExit" not in ready, "which requires all, once", ready)
    if shutil.which("systemd-analyze"):
        said = run("systemd-analyze", "verify", "--man=no", *sorted(units.iterdir()), env={"SYSTEMD_LOG_LEVEL": "warning"})
        ours = [line for line in (said.stdout + said.stderr).splitlines() if "outrider" in line and "outrider.target: Unit" not in line]
        tap.ok(said.returncode == 0 and not ours, "systemd-analyze finds nothing wrong", "\n".join(ours) + said.stderr)
    else:
        tap.skip("systemd-analyze finds nothing wrong", "it is not there")


DAEMON = """#!%s -IS
import os, socket, sys, time
name = os.path.basename(sys.argv[0])[len("outrider-"):]
if "--check" in sys.argv:
    sys.exit(0)
with open(f"{os.environ['TEST_HOME']}/{name}.lives", "a") as lives:
    lives.write("life\\n")
if open(f"{os.environ['TEST_HOME']}/{name}.lives").read().count("life") > 1:
    sys.exit(int(open(f"{os.environ['TEST_HOME']}/{name}.status").read()))
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.connect("\\0" + os.environ["NOTIFY_SOCKET"][1:])
s.send(b"READY=1")
while not os.path.exists(f"{os.environ['TEST_HOME']}/end") or name == "verifier":
    s.send(b"WATCHDOG=1")
    time.sleep(0.05)
"""


class Fakes:
    """`outrider up` of programs that are ready once, and then end with a status each time they are started."""

    def __init__(self, folder, statuses):
        self.folder, self.statuses = folder, statuses
        folder.mkdir()
        shutil.copy(BUILD / "outrider", folder / "outrider")
        (folder / "model").write_text("x")
        for name in PROCESSES:
            (folder / f"outrider-{name}").write_text(DAEMON % sys.executable)
            (folder / f"outrider-{name}").chmod(0o755)
            (folder / f"{name}.status").write_text(str(statuses.get(name, 75)))
        with open(folder / "log", "w") as log:
            self.process = subprocess.Popen([folder / "outrider", "up", "--model", folder / "model", "--runtime-dir", folder / "run"],
                                            stdout=log, stderr=log, env={**os.environ, "TEST_HOME": str(folder)})

    def log(self):
        return (self.folder / "log").read_text()

    def given_up(self, name):
        return f"{name} ended with status {self.statuses[name]} 5 times in a row, giving up on it" in self.log()

    def decided(self, name):
        return self.given_up(name) or (self.folder / f"{name}.lives").read_text().count("life") > 6

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def statuses_under_up():
    """A process that was ready and then ends with a status, again and again."""
    final, passing = ({int(s) for s in block} for block in documented("outrider-verifier.8"))
    # Memory may come back; a unit's process says 75 for it.
    given_up = final - {71}
    others = [n for n in PROCESSES if n != "verifier"]
    codes = sorted(final | passing)
    fakes = [Fakes(home / f"up{i}", dict(zip(others, codes[i:i + len(others)]))) for i in range(0, len(codes), len(others))]
    try:
        for fake in fakes:
            until(lambda: "ready: verifier" in fake.log())
            (fake.folder / "end").touch()
        for fake in fakes:
            for name, code in fake.statuses.items():
                decided = until(lambda: fake.decided(name))
                tap.ok(decided and fake.given_up(name) == (code in given_up) and fake.process.poll() is None,
                       f"under up, a process that was ready and ends with {code} is {'given up' if code in given_up else 'started again'}",
                       fake.log())
    finally:
        for fake in fakes:
            fake.end()


class Container:
    """systemd as the first process of a container, whose /usr is this machine's and the rest empty; a context manager."""

    def __enter__(self):
        binds = [f"--bind-ro={path}" for path in (BUILD, units, SYSTEMD, TARGET.parent)]
        self.process = subprocess.Popen(
            ["systemd-nspawn", "-b", "-D", "/", "--volatile=yes", "--register=no", "--keep-unit", "--private-network",
             "--console=pipe", f"--machine=outrider-{os.getpid()}", *binds, "systemd.unit=basic.target"],
            stdin=subprocess.DEVNULL, stdout=open(home / "console", "w"), stderr=subprocess.STDOUT)
        self.leader = None
        self.up = until(self.booted, 120)
        return self

    def booted(self):
        if self.process.poll() is not None:
            return False
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        self.leader = next((c for c in children if Path(f"/proc/{c}/comm").read_text() == "systemd\n"), None)
        return self.leader is not None and self.sh("systemctl is-system-running").stdout.strip() in ("running", "degraded")

    def sh(self, command, timeout=60):
        return run("nsenter", "-t", self.leader, "-a", "/bin/sh", "-c", command, timeout=timeout)

    def show(self, unit, key):
        return self.sh(f"systemctl show -p {key} --value {unit}").stdout.strip()

    def active(self, unit):
        return self.sh(f"systemctl is-active {unit}").stdout.strip()

    def journal(self):
        return self.sh("journalctl --no-pager -n 60").stdout

    def __exit__(self, *_):
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        if self.leader and Path(f"/proc/{self.leader}").exists():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(self.leader), signal.SIGKILL)
        self.process.kill()
        self.process.wait()


def why_not():
    if SANITIZED:
        return "a sanitized build is too slow for the units' limits"
    if os.getuid() != 0:
        return "only root boots a container"
    if not TARGET.exists():
        return f"{TARGET.name} is not there"
    if {Path("/tmp"), Path("/var/tmp")} & {*BUILD.parents, *TARGET.parents}:
        return "units have a /tmp and a /var/tmp of their own (PrivateTmp), without this tree"
    return next((f"{p} is not there" for p in ("systemd-nspawn", "nsenter", "systemd-sysusers") if not shutil.which(p)), "")


def setting(box, service, text):
    folder = f"/etc/outrider/{service}.conf.d"
    box.sh(f"mkdir -p {folder}; printf '%s\\n' '{text}' > {folder}/test.conf" if text else f"rm -f {folder}/test.conf")


def start_all(box):
    return box.sh("systemctl reset-failed; systemctl start outrider.target", timeout=300)


def all_active(box, but=()):
    return all(box.active(s) == "active" for s in SERVICES if s not in but)


def answers(box):
    result = box.sh(f"OUTRIDER_RUNTIME_DIR=/run/outrider {BUILD}/outrider run --tokens 1,2,3 --max-tokens 8 --wait 200", timeout=300)
    return result.stdout if result.returncode == 0 else f"status {result.returncode}: {result.stderr}"


def in_a_container(box):
    box.sh(f"""systemd-sysusers {SYSTEMD}/outrider-sysusers.conf; mkdir -p /etc/outrider /etc/systemd/system /srv
        cp {units}/* /etc/systemd/system; cp {TARGET} /srv/m.gguf; chmod 644 /srv/m.gguf; systemctl daemon-reload
        for p in verifier expert-cache; do echo 'model = /srv/m.gguf' > /etc/outrider/$p.conf; done
        touch /etc/outrider/drafter.conf /etc/outrider/policy.conf""")
    first = start_all(box)
    want = answers(box)
    tap.ok(first.returncode == 0 and all_active(box) and box.active("outrider.target") == "active" and "status" not in want,
           "systemd starts all, and they answer", f"{first.stderr}{want}{box.journal()}")

    pids = {s: box.show(s, "MainPID") for s in SERVICES}
    again = box.sh("systemctl restart outrider-verifier")
    same = {s: box.show(s, "MainPID") == pids[s] for s in SERVICES}
    tap.ok(again.returncode == 0 and sum(same.values()) == 3 and not same["outrider-verifier.service"] and answers(box) == want,
           "one that is restarted by hand is restarted alone", same)

    restarts = box.show("outrider-verifier", "NRestarts")
    box.sh("touch /srv/m.gguf; cp /srv/m.gguf /srv/n.gguf; mv /srv/n.gguf /srv/m.gguf; sleep 1")
    tap.ok(all_active(box) and box.show("outrider-verifier", "NRestarts") == restarts and answers(box) == want,
           "a model that is touched and replaced is served on", box.journal())
    box.sh("cp /srv/m.gguf /srv/whole.gguf; systemctl restart outrider-verifier; : > /srv/m.gguf")
    lost = until(lambda: box.active("outrider-verifier") != "active")
    box.sh("sleep 2; cat /srv/whole.gguf > /srv/m.gguf")
    tap.ok(lost and until(lambda: all_active(box)) and answers(box) == want,
           "one that is cut, and written again after a while, is served then", box.journal())

    stop = box.sh("systemctl stop outrider.target")
    tap.ok(stop.returncode == 0 and until(lambda: all(box.active(s) == "inactive" for s in SERVICES)), "the target stops all", box.journal())

    box.sh("mv /srv/m.gguf /srv/away.gguf")
    missing = start_all(box)
    restarts = lambda: int(box.show("outrider-verifier", "NRestarts") or 0)
    before, since = restarts(), time.monotonic()
    again = until(lambda: restarts() >= before + 3)
    more, took = restarts() - before, time.monotonic() - since
    box.sh("mv /srv/away.gguf /srv/m.gguf")
    back = until(lambda: all_active(box))
    # Of these starts the second and the third at least have all of their pause within that time.
    tap.ok(missing.returncode == 1 and again and took > more - 1 and back and answers(box) == want,
           "a model that is missing: the start fails, with pauses it is tried again, and served when it is there",
           f"status {missing.returncode}, {more} starts in {took} s, {back}\n{box.journal()}")
    box.sh("systemctl stop outrider.target")

    for service, text, status in (("expert-cache", "budget = 1T", "71"), ("verifier", "threads = none", "78"),
                                  ("drafter", "draft = /etc/passwd", "65"), ("policy", "policy = none", "78")):
        setting(box, service, text)
        refused = start_all(box)
        unit = f"outrider-{service}.service"
        until(lambda: box.show(unit, "ActiveState") == "failed")
        box.sh("sleep 1")
        ended = [box.show(unit, key) for key in ("ActiveState", "ExecMainStatus", "NRestarts")]
        tap.ok(refused.returncode == 1 and ended == ["failed", status, "0"],
               f"{service} with {text}: the start of the target fails, and the unit with {status}, once", f"{refused.returncode} {ended}\n{box.journal()}")
        setting(box, service, "")
        box.sh("systemctl stop outrider.target")
    final = start_all(box)
    tap.ok(final.returncode == 0 and answers(box) == want, "and put right it starts", f"{final.stderr}{box.journal()}")
    # Memory that is short when a process comes back may be there again.
    setting(box, "expert-cache", "budget = 1T")
    ended, before = [], int(box.show("outrider-expert-cache", "NRestarts"))

    def tries():
        ended[:] = [box.show("outrider-expert-cache", key) for key in ("ActiveState", "ExecMainStatus", "NRestarts")]
        return ended[0] == "activating" and int(ended[2]) >= before + 2
    box.sh("systemctl kill -s KILL outrider-expert-cache")
    tried = until(tries)
    setting(box, "expert-cache", "")
    tap.ok(tried and until(lambda: all_active(box)),
           "one that was ready and finds too little memory is started until there is enough", f"{ended}\n{box.journal()}")


def lose_the_device(box):
    """The GPU is emulated, and lost in the middle of each answer: the same process goes on, with its session, whoever else is there."""
    want = answers(box)
    box.sh("systemctl stop outrider.target; systemctl reset-failed")
    drop_in = "/etc/systemd/system/outrider-verifier.service.d"
    box.sh(f"mkdir -p {drop_in}; printf '[Service]\\nEnvironment=OUTRIDER_SIMT_LOST=150\\n' > {drop_in}/lost.conf; systemctl daemon-reload")
    setting(box, "verifier", "device = simt")
    start_all(box)

    def lost(device_lost, beside):
        setting(box, "verifier", f"device = simt\ndevice_lost = {device_lost}")
        box.sh("systemctl restart outrider-verifier")
        box.sh("systemctl start outrider.target" if beside else "systemctl stop outrider-drafter outrider-expert-cache outrider-policy")
        stored = lambda: box.show("outrider-verifier", "NFileDescriptorStore")
        until(lambda: stored() == (time.sleep(0.5), stored())[1])
        before = [box.show("outrider-verifier", key) for key in ("MainPID", "NRestarts", "NFileDescriptorStore")]
        said = answers(box)
        if device_lost == "end":
            until(lambda: box.show("outrider-verifier", "NRestarts") != before[1])
        until(lambda: box.active("outrider-verifier") == "active")
        until(lambda: stored() == (time.sleep(0.5), stored())[1])
        now = [box.show("outrider-verifier", key) for key in ("MainPID", "NRestarts", "NFileDescriptorStore")]
        return before, said, now, box.sh("journalctl --no-pager -o cat -u outrider-verifier -n 12").stdout

    for beside in (True, False):
        before, said, now, journal = lost("cpu", beside)
        # The store has given up the KV cache's memory on the device, and all else once.
        tap.ok(said == want and before[:2] == now[:2] and int(now[2]) == int(before[2]) - 1 and
               re.search("the CPU computes, because the emulated GPU was lost.*\n(?:.*\n)*?took over [1-9]", journal),
               f"device_lost = cpu, {'all four' if beside else 'the verifier alone'}: the process goes on with its session, to the same bytes",
               f"{said} {before} {now} {journal}")
    before, said, now, journal = lost("end", False)
    tap.ok("the emulated GPU was lost in kernel" in said and int(now[1]) == int(before[1]) + 1 and now[0] != before[0] and
           box.active("outrider-verifier") == "active" and "the CPU computes" not in journal,
           "device_lost = end: the session ends with the reason, and systemd starts the verifier again, on the GPU",
           f"{said} {before} {now} {journal}")
    setting(box, "verifier", "")
    box.sh(f"rm -r {drop_in}; systemctl daemon-reload; systemctl restart outrider-verifier")


try:
    make_units()
    invariants()
    statuses_under_up()
    if why_not():
        tap.skip("the units under systemd", why_not())
    else:
        with Container() as container:
            if container.up:
                in_a_container(container)
                lose_the_device(container)
            else:
                tap.skip("the units under systemd", "no container boots here: " + " ".join((home / "console").read_text().split())[-200:])
finally:
    shutil.rmtree(home, ignore_errors=True)
tap.done()
