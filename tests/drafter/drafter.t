#!/usr/bin/env python3
"""Starts and stops outrider-drafter alone: readiness, refusals, exit statuses, configuration."""
import functools
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
import outrider_test  # noqa: E402
from alone import Daemon, common  # noqa: E402
from outrider_test import DRAFTS, Tap, program  # noqa: E402

NAME, MODEL = "outrider-drafter", DRAFTS["small"]
tap = Tap()
run = functools.partial(outrider_test.run, program(NAME))
common(tap, NAME, run,
       (("ngram_min=0", "1 to 32"), ("ngram_min=9", "1 to ngram_max"), ("chunk=4096", "16 to 2048"),
        ("run_ahead=maybe", "auto, on, off"), ("spin=fast", "spin takes auto, or 0 to 1s"), ("method=model", "draft = FILE"),
        ("method=oracle", "ngram")), "ngram_max=12", ("# comment\nchunk = 64\nchonk = 64\n", "chonk"), "--draft FILE")


@tap.test
def a_draft_file_that_is_missing_or_rubbish_is_named():
    missing = run("--draft", "/no/such/file.gguf")
    assert missing.returncode == 66 and "/no/such/file.gguf" in missing.stderr, missing
    with tempfile.NamedTemporaryFile(suffix=".gguf") as f:
        f.write(b"GGUF" + b"\xff" * 100)
        f.flush()
        rubbish = run("--draft", f.name)
        assert rubbish.returncode == 65 and f.name in rubbish.stderr, rubbish


if MODEL.exists():
    @tap.test
    def it_becomes_ready_with_a_draft_model():
        status, log = Daemon(NAME, "--draft", MODEL).stop()
        assert status == 0 and str(MODEL) in log, (status, log)
else:
    tap.skip("it becomes ready with a draft model", f"{MODEL.name} is not there")
tap.done()
