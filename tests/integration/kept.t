#!/usr/bin/env python3
"""A sandbox that does not let memory of a file be given back: the bytes are the same, and that a budget which falls leaves memory
behind is said once, and counted."""
import ctypes
import platform
import struct

from outrider_test import Service, Tap, difference, prompts, reference, until

FALLOCATE = {"x86_64": 285, "aarch64": 47}
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
SAID = "does not take back the memory of slots"
tap = Tap()


def refuse(number):
    """This process and those that it starts get EPERM for the system call."""
    load, equal, ret, refused, allowed = 0x20, 0x15, 0x06, 0x00050001, 0x7fff0000
    code = b"".join(struct.pack("HBBI", *i) for i in ((load, 0, 0, 0), (equal, 0, 1, number), (ret, 0, 0, refused), (ret, 0, 0, allowed)))
    instructions = ctypes.create_string_buffer(code, len(code))
    filters = struct.pack("HP", len(code) // 8, ctypes.addressof(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filters):
        raise OSError(ctypes.get_errno(), "seccomp")


def stats(service):
    return service.ctl_json("cache", "stats")


ids = prompts(2, longest=80)
expected = [reference(p, 50, extra=("--ignore-eos",)) for p in ids]
requests = [{"tokens": p, "max_tokens": 50, "ignore_eos": True, "logits_hash": True} for p in ids]


def same(service, name):
    found = [difference(r, e) for r, e in zip(service.swarm(requests, 2), expected)]
    tap.ok(not any(found), name, found)


if platform.machine() not in FALLOCATE:
    tap.skip("a sandbox without fallocate", f"no number of the system call for {platform.machine()}")
    tap.done()
refuse(FALLOCATE[platform.machine()])
with Service(options=("--budget", "all")) as service:
    tap.ok(until(lambda: stats(service)["resident"] == stats(service)["slots"]), "all experts are there", stats(service))
    tap.ok(stats(service)["kept_bytes"] == 0 and "\nkept " not in service.ctl("cache", "stats").stdout, "nothing is kept yet", stats(service))
    total = stats(service)["slots"]
    for budget in ("50%", "min"):
        service.ctl("cache", "set", f"budget={budget}", "preload=no")
        tap.ok(until(lambda: stats(service)["in_use"] == stats(service)["slots"]), f"{budget}: so many slots are in use", stats(service))
    now = stats(service)
    tap.ok(now["kept_bytes"] == (total - now["slots"]) * now["slot_bytes"] and now["arena_bytes"] > now["budget_bytes"], "memory is above the budget, and counted", now)
    tap.ok(f"kept       {now['kept_bytes'] / 2**20:.1f} MiB" in service.ctl("cache", "stats").stdout, "cache stats shows it")
    tap.ok(service.log_text().count(SAID) == 1, "the log says it once", service.log_text())
    same(service, "the same bytes")
    service.restart("expert-cache")
    tap.ok(stats(service)["kept_bytes"] > 0, "a successor counts it too", stats(service))
    service.ctl("cache", "set", "budget=all", "preload=yes")
    tap.ok(until(lambda: stats(service)["kept_bytes"] == 0), "a budget that rises uses it again", stats(service))
    same(service, "and again the same bytes")
tap.done()
