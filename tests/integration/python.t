#!/usr/bin/env python3
"""The Python package against the real service: the same tokens as everybody's, through cancels, resumes, kills and bad input."""
import asyncio
import contextlib
import errno
import filecmp
import inspect
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

DEBIAN = "/usr/bin/python3"  # whose packages mk/packages.mk names
try:
    import google.protobuf  # noqa: F401
    import zmq  # noqa: F401
except ImportError:
    if os.path.realpath(sys.executable) != os.path.realpath(DEBIAN) and os.path.exists(DEBIAN):
        os.execv(DEBIAN, [DEBIAN, *sys.argv])
    print("1..0 # SKIP python3-zmq and python3-protobuf are not installed")
    sys.exit(0)

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "client" / "python"
sys.path[:0] = [str(ROOT / "tests" / "integration"), str(PACKAGE)]
os.environ["PYTHONPATH"] = str(PACKAGE)
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
import outrider  # noqa: E402
from outrider import _request  # noqa: E402
from outrider_test import DRAFTS, SAMPLED, SANITIZED, Service, Tap, program, prompts, reference, run, until  # noqa: E402

N = 40
LONG = 60 if SANITIZED else 400
tap = Tap()
ids = prompts(8)
greedy = [reference(p, N, extra=("--ignore-eos",)) for p in ids]
sampled = reference(ids[0], LONG, SAMPLED, seed=7, extra=("--ignore-eos",))
OPEN = {"max_tokens": N, "ignore_eos": True}


def raised(function, kind=outrider.OutriderError):
    """What the function raises, which must be of this kind."""
    try:
        function()
    except kind as e:
        return e
    raise AssertionError(f"{kind.__name__} was not raised")


def python(*arguments, stdin=None):
    return run(sys.executable, *arguments, stdin=stdin)


def live_sessions(service):
    return [s for s in service.ctl_json("sessions")["sessions"] if s["state"] != "done"]


# The package by itself.

@tap.test
def the_messages_are_those_of_proto():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["sh", "tools/python-proto.sh", folder], cwd=ROOT, check=True)
        names = sorted(os.listdir(folder))
        assert len(names) == 2 * len(list((ROOT / "proto").glob("*.proto"))), names
        there = PACKAGE / "outrider" / "_proto"
        # Another protoc writes other Python: what the messages are is what counts.
        if "libprotoc 3.21" in run("protoc", "--version").stdout:
            _, differ, missing = filecmp.cmpfiles(folder, there, names, shallow=False)
            assert not differ and not missing, f"make python: {differ + missing} are not those of proto/"
        assert {n for n in os.listdir(there) if "_pb2" in n} == set(names), "make python: a file of client/python has no .proto"


@tap.test
def the_version_is_the_one_of_the_programs():
    version = run(program("outrider"), "--version").stdout.split()[-1]
    assert outrider.__version__ == version and f'version = "{version}"' in (PACKAGE / "pyproject.toml").read_text()


@tap.test
def requests_have_what_those_in_C_have():
    header = (ROOT / "client/include/outrider.h").read_text()
    setters = set(re.findall(r"\boutrider_request_(?:set|add)_(\w+)\(", header))
    names = {"message": "messages", "message_json": "messages", "repeat": "repeat_penalty", "deadline_ms": "deadline", "class": "request_class", "dry": "dry_multiplier",
             "dry_breaker": "dry_breakers"}
    missing = {s for s in setters - {"prompt"} if names.get(s, s) not in outrider.Options.__annotations__}
    assert setters and not missing, missing


@tap.test
def bounds_are_those_in_C():
    limits = {name: value for name, value in re.findall(r"LIMIT_(\w+) =\s+([^,/]+)", (ROOT / "shared/base/limits.h").read_text())}
    known = {"CONTEXT": _request.CONTEXT_MAX, "VOCAB": _request.VOCAB_MAX, "MESSAGE_BYTES": _request.MESSAGE_BYTES_MAX,
             "DRAFT_DEPTH": _request.DRAFT_DEPTH_MAX, "DRAFT_NODES": _request.DRAFT_NODES_MAX, "DRAFT_WIDTH": _request.DRAFT_WIDTH_MAX,
             "STOPS": _request.STOPS_MAX, "NAME": _request.CLASS_BYTES_MAX + 1, "EXPERTS": _request.EXPERTS_MAX, "STOP_BYTES": _request.STOP_BYTES_MAX + 1, "STOPS_BYTES": _request.STOPS_BYTES_MAX,
             "LOGIT_BIASES": _request.LOGIT_BIASES_MAX, "TOP_LOGPROBS": _request.TOP_LOGPROBS_MAX,
             "DRY_BREAKER_BYTES": _request.DRY_BREAKER_BYTES_MAX + 1}
    wrong = {name: limits.get(name) for name, value in known.items() if eval(limits[name], {}, {}) != value}
    assert not wrong and _request.TEXT_BYTES_MAX * 2 == _request.MESSAGE_BYTES_MAX, wrong


@tap.test
def every_public_name_has_a_docstring():
    bare = [name for name in outrider.__all__ if inspect.isclass(getattr(outrider, name)) and not getattr(outrider, name).__doc__]
    bare += [f"{c.__name__}.{n}" for c in (outrider.Client, outrider.AsyncClient, outrider.Stream, outrider.AsyncStream)
             for n, m in vars(c).items() if not n.startswith("_") and not inspect.getdoc(m)]
    assert not bare, bare


if run("sh", "-c", "command -v mypy").returncode == 0:
    @tap.test
    def types_are_right_strictly():
        new = [int(n) for n in re.findall(r"\d+", run("mypy", "--version").stdout)[:2]] >= [1, 7]
        with tempfile.TemporaryDirectory() as cache:
            result = run("mypy", "--strict", "--cache-dir", cache, "--config-file", PACKAGE / "pyproject.toml",
                         *([] if new else ["--enable-incomplete-feature=Unpack"]), PACKAGE / "outrider", *PACKAGE.glob("examples/*.py"),
                         timeout=1500)
        assert result.returncode == 0, result.stdout + result.stderr
else:
    tap.skip("types are right strictly", "mypy is not installed")


# With a service.

def answers(service):
    @tap.test
    def greedy_tokens_are_the_reference_s():
        with outrider.Client(service.runtime) as client:
            for i in range(4):
                for k in (-1, 0, 3):
                    answer = client.generate(tokens=ids[i], k=k, logits_hash=True, logprobs=2, **OPEN)
                    assert list(answer.tokens) == greedy[i]["tokens"] and answer.text == greedy[i]["text"], (i, k, answer)
                    assert [f"{h:016x}" for h in answer.logits_hash] == greedy[i]["logits_hash"], (i, k)
                    assert [(p.token, p.token, 2) for p in answer.logprobs] == [(t, p.top[0].token, len(p.top)) for t, p in
                                                                                zip(answer.tokens, answer.logprobs)], (i, k)
                    assert b"".join(p.text for p in answer.logprobs).decode(errors="replace") == answer.text
                    assert answer.end == "length" and answer.usage.output_tokens == N and answer.usage.prompt_tokens == len(ids[i])

    @tap.test
    def an_audit_says_what_the_model_picks():
        with outrider.Client(service.runtime) as client:
            wrong = [*greedy[0]["tokens"][:5], (greedy[0]["tokens"][5] + 1) % 1000]
            audit = client.generate(tokens=ids[0], audit=wrong, **OPEN)
            assert list(audit.tokens) == wrong and list(audit.picked) == greedy[0]["tokens"][:6] and audit.usage.changed_tokens == 1, audit

    @tap.test
    def a_text_is_answered_as_by_outrider_run():
        with outrider.Client(service.runtime) as client:
            for more, flags in (({}, ()), ({"temperature": 0.8, "top_p": 0.95, "seed": 3}, ("--temperature", 0.8, "--top-p", 0.95, "--seed", 3)),
                                ({"temperature": 1.1, "top_k": 20, "min_p": 0.02, "repeat_penalty": 1.2, "repeat_window": 16},
                                 ("--temperature", 1.1, "--top-k", 20, "--min-p", 0.02, "--repeat-penalty", 1.2, "--repeat-window", 16))):
                told = run(program("outrider"), "run", "--runtime-dir", service.runtime, "--max-tokens", N, *flags, "In the beginning")
                assert told.returncode == 0, told
                assert client.generate("In the beginning", max_tokens=N, **more).text.strip() == told.stdout.strip(), more

    @tap.test
    def a_conversation_is_answered():
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who made the heaven?"}]
        parts = [messages[0], {"role": "user", "content": [{"type": "text", "text": "Who made the heaven?"}]}]
        with outrider.Client(service.runtime) as client:
            one, two = (client.generate(messages=m, max_tokens=N) for m in (messages, parts))
            assert one.tokens and one.tokens == two.tokens, (one, two)
            assert one.usage.prompt_tokens > 10

    @tap.test
    def control_tokens_give_their_text_where_it_is_wanted():
        always = {"tokens": ids[0], "max_tokens": 2, "logit_bias": {1: 100}}
        with outrider.Client(service.runtime) as client:
            assert client.generate(**always).text == ""
            assert client.generate(**always, control_text=True).text == 2 * "<|im_start|>"
            assert client.generate(tokens=ids[0], max_tokens=2, logit_bias={2: 100}, control_text=True).text == "", "but the one that ends it"

    @tap.test
    def parts_put_an_answer_together():
        source = json.dumps({"sequence": ["f(", {"schema": {"enum": [1, 2]}}, ")", {"control": "<|im_start|>"}, "g"]})
        with outrider.Client(service.runtime) as client:
            answer = client.generate(tokens=ids[0], grammar=("parts", source), control_text=True)
            assert answer.text in ("f(1)<|im_start|>g", "f(2)<|im_start|>g"), answer

    @tap.test
    def events_put_together_are_the_answer():
        with outrider.Client(service.runtime, window=8) as client, client.stream(
                tokens=ids[0], max_tokens=LONG, ignore_eos=True, temperature=0.8, top_p=0.95, seed=7) as stream:
            events = list(stream)
            tokens = [t for e in events if isinstance(e, outrider.Tokens) for t in e.tokens]
            at = 0
            for event in events[:-1]:
                assert event.first == at, event
                at += len(event.tokens)
            assert tokens == sampled["tokens"] and "".join(e.text for e in events) == sampled["text"]
            assert isinstance(events[-1], outrider.Done) and events[-1].end == "length" and stream.usage == events[-1].usage
            assert len(events) > 3 and stream.have == LONG and stream.next() is None
            assert stream.answer().text == sampled["text"], "the answer has what was taken before"

    @tap.test
    def a_stop_string_ends_the_answer_before_it():
        text = greedy[0]["text"]
        stop = text[20:26]
        with outrider.Client(service.runtime) as client:
            answer = client.generate(tokens=ids[0], stop=["\x01never", stop], **OPEN)
            assert (answer.end, answer.stop, answer.text) == ("stop", stop, text[:text.find(stop)]), answer

    @tap.test
    def a_logit_bias_makes_a_token_certain():
        with outrider.Client(service.runtime) as client:
            assert set(client.generate(tokens=ids[0], logit_bias={77: 1000}, **OPEN).tokens) == {77}

    @tap.test
    def drafts_of_every_kind_change_nothing():
        with outrider.Client(service.runtime) as client:
            for more in ({"draft_method": "none"}, {"draft_method": "ngram", "k": 7}, {"draft_method": "model", "k": 4},
                         {"draft_method": "model", "k": 4, "draft_tree": (12, 3)}, {"coupling": "maximal", "k": 3},
                         {"draft_method": "replay", "k": 5, "replay": greedy[1]["tokens"], "replay_error": 0.2}):
                answer = client.generate(tokens=ids[1], **more, **OPEN)
                assert list(answer.tokens) == greedy[1]["tokens"], more
            assert answer.usage.drafted > answer.usage.accepted > 0, answer.usage

    @tap.test
    def a_deadline_ends_the_answer():
        with outrider.Client(service.runtime) as client:
            answer = client.generate(tokens=ids[0], max_tokens=900, ignore_eos=True, deadline=0.001)
            assert answer.end == "deadline" and len(answer.tokens) < 900


def many(service):
    @tap.test
    def asynchronous_streams_32_at_once():
        async def one(client, i):
            if i % 2:
                return await client.generate(tokens=ids[i % 8], **OPEN)
            async with client.stream(tokens=ids[i % 8], k=i % 5, **OPEN) as stream:
                text = "".join([event.text async for event in stream])
                answer = await stream.answer()
                assert text == answer.text
                return answer

        async def all_of_them():
            async with outrider.AsyncClient(service.runtime, window=16) as client:
                return await asyncio.gather(*(one(client, i) for i in range(32)))

        results = asyncio.run(all_of_them())
        wrong = [i for i, r in enumerate(results) if list(r.tokens) != greedy[i % 8]["tokens"] or r.text != greedy[i % 8]["text"]]
        assert len(results) == 32 and not wrong, wrong

    @tap.test
    def one_thread_serves_many_streams():
        with outrider.Client(service.runtime, window=4) as client:
            streams = [client.stream(tokens=ids[i], **OPEN) for i in range(8)]
            order = []
            while (told := client.next_event()) is not None:
                order.append(told[0].uid)
            assert client.next_event() is None
            for i, stream in enumerate(streams):
                assert list(stream.answer().tokens) == greedy[i]["tokens"], i
            first = {uid: order.index(uid) for uid in order}
            last = {uid: len(order) - order[::-1].index(uid) for uid in order}
            assert max(first.values()) < min(last.values()), "they take turns"

    @tap.test
    def threads_open_their_own_clients():
        got = {}

        def work(i):
            with outrider.Client(service.runtime) as client:
                got[i] = list(client.generate(tokens=ids[i], **OPEN).tokens)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for step in (threading.Thread.start, threading.Thread.join):
            for thread in threads:
                step(thread)
        assert got == {i: greedy[i]["tokens"] for i in range(4)}

    @tap.test
    def a_client_that_another_thread_or_process_uses_says_so():
        with outrider.Client(service.runtime) as client, client.stream(tokens=ids[0], max_tokens=LONG, ignore_eos=True) as stream:
            stream.next()
            with client._connection.used():
                error = raised(stream.cancel)
            assert error.code == errno.EBUSY and "thread" in str(error), error
            child = os.fork()
            if child == 0:
                try:
                    error = raised(lambda: client.generate("x"))
                    stream.close()
                    client.close()
                    os._exit(0 if error.code == errno.EPERM and "fork" in str(error) else 1)
                finally:
                    os._exit(2)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            rest = stream.answer()
            assert rest.end == "length" and len(rest.tokens) == LONG, "the parent's stream goes on"


def ends(service):
    long = {"tokens": ids[0], "max_tokens": 900, "ignore_eos": True}
    expected = reference(ids[0], 900, extra=("--ignore-eos",))["tokens"]

    @tap.test
    def a_cancelled_stream_says_so_and_has_a_true_beginning():
        with outrider.Client(service.runtime, window=8) as client:
            with client.stream(**long) as stream:
                stream.next()
                stream.cancel()
                answer = stream.answer()
                assert answer.end == "cancelled" and list(answer.tokens) == expected[:len(answer.tokens)], answer
            assert until(lambda: not live_sessions(service))

    @tap.test
    def leaving_a_stream_cancels_it():
        with outrider.Client(service.runtime, window=8) as client:
            with client.stream(**long) as stream:
                stream.next()
            assert stream.next() is None and raised(stream.answer, EOFError)
            assert until(lambda: not live_sessions(service)), live_sessions(service)

    @tap.test
    def cancelling_a_task_cancels_its_request():
        async def work():
            async with outrider.AsyncClient(service.runtime, window=8) as client:
                stream = client.stream(**long)
                await stream.next()
                task = asyncio.create_task(client.generate(**long))
                await asyncio.sleep(0)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                await stream.close()
                assert task.cancelled() and await stream.next() is None
                with contextlib.suppress(TimeoutError):
                    async with client.stream(**long) as limited, asyncio.timeout(0.001):
                        await limited.answer()

        asyncio.run(work())
        assert until(lambda: not live_sessions(service)), live_sessions(service)

    @tap.test
    def another_process_goes_on_with_a_stream():
        code = ("import outrider, sys\nc = outrider.Client(window=8)\ns = c.stream(tokens=eval(sys.argv[1]), max_tokens=900, ignore_eos=True)\n"
                "s.next()\nprint(s.uid, s.have, flush=True)\nsys.stdin.read()")
        with subprocess.Popen([sys.executable, "-c", code, str(ids[0])], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True,
                              env={**os.environ, "OUTRIDER_RUNTIME_DIR": str(service.runtime)}) as child:
            uid, have = map(int, child.stdout.readline().split())
            child.kill()
        with outrider.Client(service.runtime) as client:
            rest = client.resume(uid, have).answer()
            assert 0 < have < 900 and list(rest.tokens) == expected[have:], (have, len(rest.tokens))
            assert list(client.resume(uid).answer().tokens) == expected, "and from the start"

    @tap.test
    def a_detached_stream_is_not_cancelled():
        with outrider.Client(service.runtime, window=8) as client:
            stream = client.stream(**long)
            stream.next()
            stream.detach()
            assert list(client.resume(stream.uid, stream.have).answer().tokens) == expected[stream.have:]

    @tap.test
    def a_session_that_nobody_has_is_unknown():
        with outrider.Client(service.runtime) as client:
            error = raised(client.resume(12345).answer, outrider.UnknownSession)
            assert error.code == errno.ENOENT and "session" in str(error), error


def killed(service):
    @tap.test
    def a_killed_verifier_loses_no_token():
        with outrider.Client(service.runtime, window=16) as client:
            stream = client.stream(tokens=ids[0], max_tokens=LONG, ignore_eos=True, temperature=0.8, top_p=0.95, seed=7)
            kills = 0
            for event in stream:
                if kills < 2 and isinstance(event, outrider.Tokens) and stream.have >= (kills + 1) * LONG // 4:
                    before = service.end("verifier")
                    kills += 1
                    # The next stroke must hit the one that follows.
                    assert until(lambda: service.processes().get("verifier") not in (None, before))
            answer = stream.answer()
            assert kills == 2 and list(answer.tokens) == sampled["tokens"] and answer.text == sampled["text"]
            assert answer.usage.restarts >= 1 and stream.restarts >= 1, answer.usage

    @tap.test
    def nor_do_asynchronous_streams():
        async def one(client, i, half):
            async with client.stream(tokens=ids[i], **OPEN) as stream:
                async for _ in stream:
                    if stream.have >= N // 4:
                        half.set()
                        await killed_.wait()
                return await stream.answer()

        async def work():
            async with outrider.AsyncClient(service.runtime, window=8) as client:
                half = [asyncio.Event() for _ in range(8)]
                tasks = [asyncio.create_task(one(client, i, half[i])) for i in range(8)]
                await asyncio.gather(*(event.wait() for event in half))
                service.end("verifier")
                killed_.set()
                return await asyncio.gather(*tasks)

        killed_ = asyncio.Event()
        results = asyncio.run(work())
        wrong = [i for i, r in enumerate(results) if list(r.tokens) != greedy[i]["tokens"] or r.text != greedy[i]["text"]]
        assert not wrong, [(i, len(results[i].tokens)) for i in wrong]
        assert all(r.usage.restarts for r in results), [r.usage.restarts for r in results]
        service.wait_ready()

    @tap.test
    def a_request_begun_while_the_verifier_is_away_is_answered():
        with outrider.Client(service.runtime, first_wait=60) as client:
            service.end("verifier")
            assert list(client.generate(tokens=ids[2], **OPEN).tokens) == greedy[2]["tokens"]
        service.wait_ready()

    @tap.test
    def a_verifier_that_hangs_ends_the_wait_with_its_sentence():
        with outrider.Client(service.runtime, window=8, away_wait=1) as client:
            with client.stream(tokens=ids[0], max_tokens=900, ignore_eos=True) as stream:
                stream.next()
                pid = service.end("verifier", signal.SIGSTOP)
                try:
                    error = raised(stream.answer, outrider.Unavailable)
                finally:
                    os.kill(pid, signal.SIGCONT)
            assert error.code == errno.ETIMEDOUT and "no answer" in str(error) and "stopped or hangs" in str(error), error
        service.wait_ready()


BAD = [
    ({"temperature": -1}, "temperature"), ({"temperature": 1e-31}, "1e-30"), ({"temperature": float("nan")}, "temperature"),
    ({"temperature": 101}, "100"), ({"temperature": "hot"}, "number"), ({"top_k": -1}, "top_k"), ({"top_k": 1 << 21}, "1048576"),
    ({"top_k": 1.5}, "whole"), ({"top_p": 0}, "top_p"), ({"top_p": 1.1}, "up to 1"), ({"min_p": 2}, "min_p"),
    ({"repeat_penalty": 0}, "repeat_penalty"), ({"repeat_window": -1}, "repeat_window"), ({"seed": -1}, "seed"), ({"seed": 1 << 64}, "seed"),
    ({"max_tokens": 1 << 32}, "max_tokens"), ({"max_tokens": True}, "max_tokens"), ({"stop": ""}, "stop"), ({"stop": "x" * 4096}, "4095"),
    ({"stop": ["x"] * 257}, "256"), ({"stop": ["x" * 4095] * 5}, "16379"), ({"stop": 5}, "stop"), ({"logit_bias": {-1: 1}}, "-1"),
    ({"logit_bias": {1: float("inf")}}, "logit bias"), ({"logit_bias": {i: 1 for i in range(257)}}, "256"), ({"logit_bias": [1]}, "dict"),
    ({"k": 64}, "63"), ({"k": -2}, "-1"), ({"draft_tree": (512, 1)}, "511"), ({"draft_tree": (4, 0)}, "width"), ({"draft_tree": 4}, "draft_tree"),
    ({"draft_method": "magic"}, "ngram"), ({"coupling": "loose"}, "gumbel"), ({"replay": [-1]}, "replay"), ({"replay_error": 2}, "replay_error"),
    ({"presence_penalty": 2.1}, "presence_penalty"), ({"frequency_penalty": "x"}, "number"), ({"top_n_sigma": -1}, "top_n_sigma"),
    ({"xtc": 0.5}, "xtc"), ({"xtc": (0.5, 0)}, "0.5"), ({"xtc": (2, 0.1)}, "0 to 1"), ({"logprobs": 21}, "20"),
    ({"dry_multiplier": -1}, "0 to 100"), ({"dry_base": 0.5}, "1 to 100"), ({"dry_allowed_length": 0}, "256"), ({"dry_window": -1}, "1048576"),
    ({"dry_breakers": "x"}, "list"), ({"dry_breakers": [""]}, "empty"), ({"dry_breakers": ["x" * 127]}, "127"),
    ({"deadline": -1}, "deadline"), ({"ignore_eos": 1}, "ignore_eos"), ({"logits_hash": "yes"}, "logits_hash"), ({"tempreature": 1}, "tempreature"),
    ({"tokens": [1]}, "one of them"), ({"variables": {}}, "variables"),
]
BAD_INPUT = [
    ({}, "neither"), ({"prompt": "a\0b"}, "NUL"), ({"prompt": "\ud800"}, "surrogate"), ({"prompt": 5}, "string"),
    ({"prompt": "x" * ((2 << 20) + 1)}, "2097152"), ({"tokens": [-1]}, "tokens[0]"), ({"tokens": "abc"}, "tokens"),
    ({"tokens": [0] * ((1 << 20) + 1)}, "1048576"), ({"messages": [{"role": "king", "content": "x"}]}, "king"), ({"messages": ["x"]}, "messages[0]"),
    ({"messages": "x"}, "list"), ({"messages": [{"role": "user", "content": object()}]}, "JSON"),
    ({"messages": [{"role": "user", "content": "x" * ((2 << 20) + 1)}]}, "2097152"),
    ({"messages": [{"role": "user", "content": "x"}], "variables": 5}, "variables"),
]


def bad_input(service):
    with outrider.Client(service.runtime) as client:
        @tap.test
        def what_is_out_of_range_is_named():
            for options, word in [*(({"prompt": "x", **o}, w) for o, w in BAD), *BAD_INPUT]:
                error = raised(lambda: client.stream(**options), outrider.InvalidRequest)
                assert word in str(error) and error.code in (errno.EINVAL, errno.E2BIG), f"{str(options)[:80]}: {error}"
            assert isinstance(error, ValueError) and not client._streams

        @tap.test
        def what_the_service_refuses_has_its_sentence():
            error = raised(lambda: client.generate(tokens=[1 << 30]))
            assert "token" in str(error) and "1073741824" in str(error), error
            error = raised(lambda: client.generate("word " * 100000))
            assert "context" in str(error), error
            assert list(client.generate(tokens=ids[0], **OPEN).tokens) == greedy[0]["tokens"], "the client can still be used"

        @tap.test
        def too_many_requests_are_busy():
            # More than client_requests, of which none is over when the last is sent; who was taken is answered.
            streams = [client.stream(tokens=ids[0], max_tokens=2) for _ in range(80)]
            busy, retry = 0, []
            for stream in streams:
                try:
                    assert list(stream.answer().tokens) == greedy[0]["tokens"][:2]
                except outrider.Busy as e:
                    assert e.code == errno.EBUSY and str(e), e
                    busy += 1
                    retry.append(e.retry_s)
            # Sessions had ended before, so it is known how often they do.
            assert 0 < busy < 80 and all(0 < r <= 3600 for r in retry), (busy, retry)

    @tap.test
    def a_closed_client_says_so():
        assert raised(lambda: client.generate("x")).code == errno.EBADF

    @tap.test
    def values_of_a_client_have_ranges():
        for more in ({"window": 0}, {"window": 65537}, {"first_wait": -1}, {"away_wait": 1e6}):
            raised(lambda: outrider.Client(service.runtime, **more), outrider.InvalidRequest)


def absent():
    with tempfile.TemporaryDirectory() as folder:
        @tap.test
        def without_a_service_the_wait_is_bounded():
            os.chmod(folder, 0o700)
            with outrider.Client(folder, first_wait=0.3) as client:
                error = raised(lambda: client.generate("x"), outrider.Unavailable)
                assert error.code == errno.ECONNREFUSED and folder in str(error) and "outrider up" in str(error), error
                assert all(p.state == "down" and not p.answers for p in client.status().processes)
                raised(client.knobs, outrider.Unavailable)
            error = raised(lambda: outrider.Client(folder + "/none"), outrider.Unavailable)
            assert "no service" in str(error), error
            assert not outrider.status(folder + "/none").ready

        @tap.test
        def a_directory_that_others_may_write_to_is_refused():
            os.chmod(folder, 0o777)
            assert raised(lambda: outrider.Client(folder)).code == errno.EPERM

        @tap.test
        def a_service_that_has_given_up_is_not_waited_for():
            os.chmod(folder, 0o700)
            with outrider.Client(folder, first_wait=3600) as client:
                stream = client.stream("x")
                (Path(folder) / "given-up").write_text("the verifier ended too often\n")
                os.utime(Path(folder) / "given-up", None)
                error = raised(stream.answer, outrider.Unavailable)
                assert "given up: the verifier ended too often" in str(error), error
                assert client.status().given_up == "the verifier ended too often"


def administration(service):
    with outrider.Client(service.runtime) as client:
        @tap.test
        def status_is_that_of_the_command():
            status, told = client.status(), {p["name"]: p for p in service.status()}
            assert [p.name for p in status.processes] == ["verifier", "drafter", "expert-cache", "policy"]
            assert status.ready and status.given_up is None and all(p.answers and p.pid == told[p.name]["pid"] for p in status.processes)
            assert status["cache"].details.keys() == told["expert-cache"]["details"].keys() and status["verifier"].rss_bytes > 0

        @tap.test
        def knobs_are_those_of_the_command():
            told = {(k["process"], k["name"]): k for k in service.ctl_json("knob", "list")["knobs"] if k["running"]}
            mine = {(k.process, k.name): k for k in client.knobs()}
            assert mine.keys() == told.keys() and all(k.range == told[n]["range"] and k.value == told[n]["value"] for n, k in mine.items())
            assert {k.process for k in client.knobs("policy-controller")} == {"policy"}

        @tap.test
        def knobs_are_set_for_a_time_and_reset():
            change, = client.set_knobs({"policy.k_max": 5})
            assert (change.process, change.name, change.old, change.new) == ("policy", "k_max", "15", "5"), change
            assert client.knob("k_max").value == "5" and "= 5" in service.ctl("knob", "get", "policy.k_max").stdout
            client.set_knobs({"policy.k_max": 6}, seconds=3600)
            assert client.knob("policy.k_max").reverts_in_ns > 0 and client.knob("policy.k_max").reverts_to == "5"
            assert client.reset_knobs("policy.k_max")[0].new == "15" and client.knob("policy.k_max").value == "15"

        @tap.test
        def a_batch_is_made_as_a_whole_or_not_at_all():
            changes = client.set_knobs({"policy.k_max": 7, "verifier.prefill_chunk": 32})
            assert {(c.process, c.new) for c in changes} == {("policy", "7"), ("verifier", "32")}, changes
            error = raised(lambda: client.set_knobs({"verifier.prefill_chunk": 64, "policy.k_max": 5000}), outrider.InvalidRequest)
            assert "k_max" in str(error) and "63" in str(error), error
            assert client.knob("verifier.prefill_chunk").value == "32" and client.knob("policy.k_max").value == "7"
            raised(lambda: client.set_knobs({"policy.k_max": 9}, expected={"policy.k_max": 8}))
            client.set_knobs({"policy.k_max": 9}, expected={"policy.k_max": 7})
            assert client.knob("policy.k_max").value == "9"
            client.reset_knobs("policy.k_max", "verifier.prefill_chunk")

        @tap.test
        def what_is_no_knob_is_named():
            for ask, word in ((lambda: client.knob("no_such"), "no_such"), (lambda: client.set_knobs({}), "no knob"),
                              (lambda: client.knob("threads"), "several"), (lambda: client.knobs("gateway-x"), "gateway-x"),
                              (lambda: client.set_knobs({"policy.k_max": 5}, expected={"k_min": 1}), "k_min")):
                assert word in str(raised(ask, outrider.InvalidRequest)), word

    @tap.test
    def the_asynchronous_client_does_the_same():
        async def work():
            async with outrider.AsyncClient(service.runtime) as client:
                assert (await client.status()).ready and len(await client.knobs()) > 20
                await client.set_knobs({"policy.k_max": 5})
                assert (await client.knob("policy.k_max")).value == "5"
                await client.reset_knobs("policy.k_max")

        asyncio.run(work())


def pages(service):
    env = {"OUTRIDER_RUNTIME_DIR": str(service.runtime)}

    @tap.test
    def the_examples_answer():
        with outrider.Client(service.runtime) as client:
            expected = client.generate("Once", max_tokens=64, temperature=0.7, seed=1)
            result = run(sys.executable, PACKAGE / "examples/complete.py", "Once", env=env)
            assert result.returncode == 0 and result.stdout == expected.text + "\n", result
            lines = [f"Line {i}" for i in range(24)]
            result = run(sys.executable, PACKAGE / "examples/many.py", stdin="\n".join(lines), env=env)
            for line in lines:
                assert f"{line}|{client.generate(line, max_tokens=32).text}\n" in result.stdout, (line, result)
        result = run(sys.executable, PACKAGE / "examples/complete.py", env={"OUTRIDER_RUNTIME_DIR": "/tmp/no-such-dir"})
        assert result.returncode == 1 and result.stderr.startswith("complete.py: no service"), result

    @tap.test
    def the_programs_of_the_page_run():
        blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/python.md").read_text(), re.M | re.S)
        os.environ.update(env)
        with contextlib.redirect_stdout(io.StringIO()) as out, outrider.Client() as client:
            for block in blocks:
                exec(block, {"outrider": outrider, "client": client})
        assert len(blocks) == 3 and out.getvalue().strip()


with Service(draft=DRAFTS["small"], sets=("verifier.client_timeout=1h", "verifier.ahead_max=16")) as service:
    for part in (answers, many, ends, bad_input, administration, pages, killed):
        part(service)
absent()
tap.done()
