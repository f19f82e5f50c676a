#!/usr/bin/env python3
"""Starts and stops outrider-policy alone: readiness, refusals, exit statuses, configuration."""
import functools
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
import outrider_test  # noqa: E402
from alone import Daemon, common  # noqa: E402
from outrider_test import Tap, program  # noqa: E402

NAME = "outrider-policy"
tap = Tap()
common(tap, NAME, functools.partial(outrider_test.run, program(NAME)),
       (("policy=fastest", "yield, goodput, cascade, static:K with K 0 to 63"), ("policy=static:64", "0 to 63"), ("k_max=0", "1 to 63"),
        ("set_max=8", "set (16) to 65536"), ("converge=2", "0 to 1"),
        ("threshold=0.1", "0.5 to 2")), "policy=static:3", ("# comment\nk_max = 5\nk_min = 5\n", "k_min"), "--config FILE")


@tap.test
def an_idle_one_takes_no_cpu_time():
    daemon = Daemon(NAME)

    def ticks():
        fields = Path(f"/proc/{daemon.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])
    # What starting takes may go on for a while on a machine that is busy.
    for _ in range(5):
        before = ticks()
        time.sleep(3)
        used = (ticks() - before) / os.sysconf("SC_CLK_TCK")
        if used <= 0.03:
            break
    assert used <= 0.03, f"{used} s of CPU time in 3 s"
    assert daemon.stop()[0] == 0


tap.done()
