#!/usr/bin/env python3
"""What a request says about sampling has one range and one message: outrider, outrider-model and, past both, the verifier."""
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import rubbish
from outrider_test import TARGET, Service, Tap, program, run

tap = Tap()
FLOAT_MAX = 3.4028235e38
# Flag, number in message Sampling, message's range, values that are refused, values that are taken.
TABLE = (
    ("temperature", 1, "temperature is {}: allowed are 0, or 1e-30 to 100", (-1.0, 100.5, 1e-31, 1e-37, -1e-37), (0.0, 1e-29, 0.7, 100.0)),
    ("top-k", 2, "top-k is {}: allowed are 0 to 1048576", ((1 << 20) + 1, 2000000), (0, 1, 1 << 20)),
    ("top-p", 3, "top-p is {}: allowed are more than 0, up to 1", (-0.5, 1.5, 1.001, -1e-9), (1e-30, 1e-7, 0.5, 1.0)),
    ("min-p", 4, "min-p is {}: allowed are 0 to 1", (-0.1, 1.5), (0.0, 1e-9, 1.0)),
    ("repeat-penalty", 5, "repeat penalty is {}: allowed are more than 0, up to 10", (-1.0, 10.5), (1e-9, 1.0, 10.0)),
    ("repeat-window", 6, "repeat window is {}: allowed are 0 to 1048576", ((1 << 20) + 1,), (0, 1, 1 << 20)),
)


def shown(value):
    return f"{value:.7g}"


with Service() as service:
    peer, uid = rubbish.Peer(service.runtime / "client"), 5000

    def asked(*fields):
        """The verifier's refusal of a request with this Sampling, None when it was taken."""
        global uid
        uid += 1
        answer = peer.ask(rubbish.envelope(10, rubbish.message((1, uid), (3, [5, 6, 7]), (5, rubbish.message((1, 1.0), *fields)), (6, 1),
                                                                (7, 1), (10, 100)), request=uid))
        while not {22, 30} & set(answer):
            answer = rubbish.parse(peer.receive())
        return rubbish.parse(answer[30])[2].decode() if 30 in answer else None

    def said(name, *arguments):
        model = ("--model", TARGET) if name == "outrider-model" else ("--runtime-dir", service.runtime)
        done = run(program(name), *arguments, *model, "--tokens", "5,6,7", "--max-tokens", "1", "--ignore-eos")
        return done.returncode, done.stderr

    def compare(flag, number, message, refused, taken):
        wrong = []
        for value in refused:
            text = message.format(shown(value))
            window = ("--repeat-penalty", "1.1") if flag == "repeat-window" else ()
            status, error = said("outrider", "run", *window, f"--{flag}={value}")
            wrong += [] if status == 64 and text in error else [f"outrider --{flag}={value}: {status} {error}"]
            status, error = said("outrider-model", "generate", f"--{flag}={value}")
            range_alone = "0..1048576" if number in (2, 6) else text
            wrong += [] if status == 64 and range_alone in error else [f"outrider-model --{flag}={value}: {status} {error}"]
            error = asked((number, value))
            wrong += [] if error == text else [f"verifier, {flag} {value}: {error}"]
        for value in taken:
            window = ("--repeat-penalty", "1.1") if flag == "repeat-window" else ()
            status, error = said("outrider", "run", *window, f"--{flag}={value}")
            wrong += [] if status == 0 else [f"outrider --{flag}={value}: {status} {error}"]
            status, error = said("outrider-model", "generate", f"--{flag}={value}")
            wrong += [] if status == 0 else [f"outrider-model --{flag}={value}: {status} {error}"]
            error = asked((number, value))
            wrong += [] if error is None else [f"verifier, {flag} {value}: {error}"]
        tap.ok(not wrong, f"{flag}: one range and one message", "\n".join(wrong))

    for row in TABLE:
        compare(*row)
    for name in ("temperature", "top-p", "min-p"):
        for value in ("nan", "x", "", "0x1p-1"):
            status, error = said("outrider", "run", f"--{name}={value}")
            allowed = next(m for f, _, m, _, _ in TABLE if f == name).split(": ")[1]
            tap.ok(status == 64 and allowed in error, f"{name} \"{value}\": the same range", error)
    tap.ok(asked((8, rubbish.message((1, 5), (2, -math.inf)))) is None, "a bias of -inf, which bans a token")
    for bias in (math.inf, math.nan):
        error = asked((8, rubbish.message((1, 5), (2, bias))))
        tap.ok(error and "token 5: logit bias is" in error and "numbers that a float can hold" in error, f"a bias of {bias}", error)
    status, error = said("outrider", "run", "--logit-bias", "5=1e39")
    tap.ok(status == 64 and "logit bias is 1e+39: allowed are numbers that a float can hold" in error, "a bias of 1e39", error)
    tap.ok(said("outrider", "run", "--logit-bias", "5=-3e38")[0] == 0, "a bias of -3e38")
    status, error = said("outrider", "run", "--top-k=1.5")
    tap.ok(status == 64 and "whole numbers, 0 to 1048576" in error, "top-k is whole", error)
    peer.close()
tap.done()
