"""Four small daemons that speak systemd's protocol, beside a copy of `outrider`, for tests of `outrider up`."""
import shutil
import stat
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
from outrider_test import BUILD  # noqa: E402

NAMES = ("verifier", "drafter", "expert-cache", "policy")
# Each life appends a line to DIR/NAME.log: what it was passed, and the content of a stored file, which the first life makes.
DAEMON = """#!%s
import array, os, signal, socket, sys, time
name = os.path.basename(sys.argv[0])[len("outrider-"):]
home = os.environ["TEST_HOME"]
if "--check" in sys.argv:
    if os.path.exists(f"{home}/{name}.endless"):
        time.sleep(3600)
    try:
        sys.stderr.write(open(f"{home}/{name}.wrong").read())
        sys.exit(78)
    except FileNotFoundError:
        sys.exit(0)

def notify(text, fds=()):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    path = os.environ["NOTIFY_SOCKET"]
    s.connect("\\0" + path[1:] if path[0] == "@" else path)
    s.sendmsg([text.encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])

def say(text):
    with open(f"{home}/{name}.log", "a") as log:
        log.write(text + "\\n")

def told(other):
    try:
        log = open(f"{home}/{other}.log").read()
        pid = [l.split()[1] for l in log.splitlines() if l.startswith("start")][-1]
        pending = [int(l.split()[1], 16) for l in open(f"/proc/{pid}/status") if l.startswith(("SigPnd", "ShdPnd"))]
        return log.endswith("term\\n") or any(p >> 14 & 1 for p in pending)
    except (OSError, IndexError):
        return True

def nap():
    # Blocked, the signal is pending until it has been written down: there is no moment at which neither can be seen.
    time.sleep(0.05)
    if signal.SIGTERM not in signal.sigpending():
        return
    say("term")
    others = [n for n in ("verifier", "drafter", "expert-cache", "policy") if not told(n) and n != name]
    if others:
        open(f"{home}/untold", "a").write(f"{name} before {others}\\n")
    if os.path.exists(f"{home}/{name}.ends"):
        how = open(f"{home}/{name}.ends").read()
        if how == "never":
            time.sleep(3600)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.Signals[how]])
        os.kill(os.getpid(), signal.Signals[how])
    os._exit(0)

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
passed = 0
if os.environ.get("LISTEN_PID") == str(os.getpid()):
    passed = int(os.environ["LISTEN_FDS"])
stored = os.pread(3, 100, 0).decode() if passed else ""
say(f"start {os.getpid()} passed={passed} names={os.environ.get('LISTEN_FDNAMES', '')} stored={stored}")
if os.path.exists(f"{home}/talk"):
    sys.stderr.write(f"outrider-{name}: notice: life {os.getpid()}\\noutrider-{name}: error: of life {os.getpid()}\\n")
if os.path.exists(f"{home}/{name}.dies"):
    how = open(f"{home}/{name}.dies").read()
    sys.stderr.write(f"outrider-{name}: the last word\\n")
    sys.stderr.flush()
    if not how.isdigit():
        os.kill(os.getpid(), signal.Signals[how])
    os._exit(int(how))
while os.path.exists(f"{home}/{name}.stuck"):
    notify("EXTEND_TIMEOUT_USEC=1000000")
    nap()
if os.path.exists(f"{home}/{name}.refuse"):
    sys.stderr.write("the setting is wrong\\n")
    sys.exit(78)
if not passed:
    fd = os.memfd_create("state")
    os.write(fd, str(os.getpid()).encode())
    notify("FDSTORE=1\\nFDNAME=state", [fd])
    other = os.memfd_create("other")
    notify("FDSTORE=1\\nFDNAME=other", [other])
    notify("FDSTOREREMOVE=1\\nFDNAME=other")
if os.path.exists(f"{home}/{name}.slow"):
    for _ in range(5):
        notify("EXTEND_TIMEOUT_USEC=1000000")
        nap()
if os.path.exists(f"{home}/{name}.alone"):
    notify("STATUS=degraded: nobody is here")
notify("READY=1")
if os.path.exists(f"{home}/{name}.alone"):
    end = time.monotonic() + float(open(f"{home}/{name}.alone").read())
    while time.monotonic() < end:
        notify("WATCHDOG=1")
        nap()
notify("STATUS=fine")
watched = os.environ.get("WATCHDOG_PID") == str(os.getpid()) and int(os.environ["WATCHDOG_USEC"]) > 0
while True:
    if watched and not os.path.exists(f"{home}/{name}.hang-{os.getpid()}"):
        notify("WATCHDOG=1")
    nap()
"""


def install():
    """A new folder with them, and a model; the daemons look for files there (TEST_HOME) that say how to behave."""
    home = Path(tempfile.mkdtemp(prefix="outrider-up-", dir="/tmp"))
    shutil.copy(BUILD / "outrider", home / "outrider")
    for name in NAMES:
        path = home / f"outrider-{name}"
        path.write_text(DAEMON % sys.executable)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    (home / "model").write_text("x")
    return home


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
