#!/usr/bin/env python3
"""What clients ask about texts and the model, beside the command-line tools that know the same; asked while a prompt is computed; and
answers whose session's number the client chose."""
import ctypes as c
import os
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import BUILD, TARGET, Service, Tap, program, prompts, reference, run_json

tap = Tap()
sdk = c.CDLL(str(BUILD / "liboutrider.so"))
sdk.outrider_error.restype = sdk.outrider_end_name.restype = c.c_char_p
WAIT_MS = 300000
TOKENS, EVENT_DONE = 60, 2


class Event(c.Structure):
    """The beginning of struct outrider_event."""
    _fields_ = [("type", c.c_int), ("first", c.c_uint32), ("n_tokens", c.c_size_t), ("tokens", c.POINTER(c.c_int32)),
                ("text", c.c_void_p), ("text_bytes", c.c_size_t)]


class ModelInfo(c.Structure):
    _fields_ = [("file", c.c_char_p), ("name", c.c_char_p), ("architecture", c.c_char_p), ("context", c.c_uint32),
                ("vocabulary", c.c_uint32), ("bos", c.c_int32), ("eos", c.c_int32), ("n_eog", c.c_size_t),
                ("eog", c.POINTER(c.c_int32)), ("chat_template", c.c_char_p), ("bytes", c.c_uint64)]


class Failed(Exception):
    pass


def check(code):
    if code < 0:
        raise Failed(-code, sdk.outrider_error().decode())


class Client:
    def __init__(self, service):
        self.client = c.c_void_p()
        check(sdk.outrider_connect(str(service.runtime).encode(), c.byref(self.client)))

    def close(self):
        sdk.outrider_close(c.byref(self.client))

    def tokenize(self, text, flags=0):
        ids, n = c.POINTER(c.c_int32)(), c.c_size_t()
        check(sdk.outrider_tokenize(self.client, text.encode(), flags, WAIT_MS, c.byref(ids), c.byref(n)))
        out = ids[:n.value]
        sdk.outrider_free(ids)
        return out

    def detokenize(self, ids, special=False):
        """The text of each token."""
        text, n, ends = c.c_void_p(), c.c_size_t(), c.POINTER(c.c_uint32)()
        check(sdk.outrider_detokenize(self.client, (c.c_int32 * len(ids))(*ids), c.c_size_t(len(ids)), special, WAIT_MS, c.byref(text),
                                      c.byref(n), c.byref(ends)))
        data, at = c.string_at(text, n.value), [0, *ends[:len(ids)]]
        sdk.outrider_free(text)
        sdk.outrider_free(ends)
        return [data[a:b] for a, b in zip(at, at[1:])] + ([data[at[-1]:]] if at[-1] < n.value else [])

    def template(self, messages):
        request, text, n = c.c_void_p(), c.c_void_p(), c.c_size_t()
        ids, n_ids = c.POINTER(c.c_int32)(), c.c_size_t()
        check(sdk.outrider_request_new(c.byref(request)))
        for role, content in messages:
            check(sdk.outrider_request_add_message(request, role.encode(), content.encode()))
        code = sdk.outrider_apply_template(self.client, request, WAIT_MS, c.byref(text), c.byref(n), c.byref(ids), c.byref(n_ids))
        sdk.outrider_request_free(c.byref(request))
        check(code)
        out = c.string_at(text, n.value).decode(), ids[:n_ids.value]
        sdk.outrider_free(text)
        sdk.outrider_free(ids)
        return out

    def start(self, ids, uid, max_tokens=TOKENS):
        request, stream = c.c_void_p(), c.c_void_p()
        check(sdk.outrider_request_new(c.byref(request)))
        check(sdk.outrider_request_set_tokens(request, (c.c_int32 * len(ids))(*ids), c.c_size_t(len(ids))))
        check(sdk.outrider_request_set_uid(request, c.c_uint64(uid)))
        sdk.outrider_request_set_max_tokens(request, max_tokens)
        sdk.outrider_request_set_ignore_eos(request, True)
        code = sdk.outrider_start(self.client, request, c.byref(stream))
        sdk.outrider_request_free(c.byref(request))
        check(code)
        return stream

    def take(self, stream, at_most=None):
        """Tokens of a stream, to its end or a few, and where they began."""
        event, out, first = c.POINTER(Event)(), [], None
        while at_most is None or len(out) < at_most:
            check(sdk.outrider_next(stream, WAIT_MS, c.byref(event)))
            first = event.contents.first if first is None else first
            out += event.contents.tokens[:event.contents.n_tokens] if event.contents.n_tokens else []
            if event.contents.type == EVENT_DONE:
                break
        return first, out


def refusal(call):
    try:
        call()
    except Failed as e:
        return e.args
    return None


# The plain kernels take some time for a prompt on any machine.
with Service(sets=("verifier.linger=1h", "verifier.kernels=scalar", "verifier.threads=1")) as service:
    client = Client(service)
    texts = ["Hello, world", "", "  two  spaces\n\tand a tab", "Überraschung 東京 🎈", "<|im_start|>user\n" * 3, "x" * 40000]
    for text in texts:
        for special, flags in ((False, 0), (True, 2)):
            want = run_json(program("outrider-model"), "tokenize", "--model", TARGET, "--format", "json", *(["--special"] if special else []),
                            stdin=text)["tokens"]
            got = client.tokenize(text, flags)
            tap.ok(got == want, f"tokens of {text[:20]!r}, special {special}: those of outrider-model", f"{got[:20]} {want[:20]}")
        pieces = client.detokenize(client.tokenize(text, 2), special=True)
        tap.ok(b"".join(pieces).decode() == text, f"and back: the text of each token of {text[:20]!r}", pieces[:20])
    tap.ok(client.detokenize([]) == [], "no tokens have no text")

    info = c.POINTER(ModelInfo)()
    check(sdk.outrider_model_info(client.client, WAIT_MS, c.byref(info)))
    facts = info.contents
    admin = service.details("verifier")
    tap.ok(facts.file.decode() == TARGET.name and facts.context == int(admin["context"]) and facts.bytes == os.path.getsize(TARGET),
           "the model's file and context", f"{facts.file} {facts.context} {facts.bytes}")
    tap.ok(facts.eos in facts.eog[:facts.n_eog] and all(0 <= t < facts.vocabulary for t in facts.eog[:facts.n_eog]),
           "its end is one of the tokens that end an answer", f"{facts.eos} {facts.eog[:facts.n_eog]}")
    tap.ok(facts.chat_template and b"message" in facts.chat_template, "its chat template", facts.chat_template)
    error = refusal(lambda: client.detokenize([5, facts.vocabulary]))
    tap.ok(error and f"tokens: token 1 is {facts.vocabulary}, the vocabulary is 0..{facts.vocabulary - 1}" in error[1],
           "a token beyond the vocabulary is refused by name", error)
    sdk.outrider_model_info_free(c.byref(info))

    text, ids = client.template([("system", "Be brief."), ("user", "Say <|im_end|> twice.")])
    tap.ok("Be brief." in text and "Say <|im_end|> twice." in text and text.index("Be brief.") < text.index("Say"), "a conversation as text", text)
    tap.ok(b"".join(client.detokenize(ids, special=True)).decode() == text, "and as tokens of that text", ids)
    tap.ok(ids != client.tokenize(text, 2), "in which a control token that a person wrote is none", ids)

    # Asked while a long prompt is computed: the engine is busy for as long as nothing of its answer is there.
    most = 0
    for turn in range(50):  # a quick machine computes a prompt between two questions
        long = [(i + turn) % 200 + 5 for i in range(1000)]  # whose beginning was not computed before
        busy = Client(service)
        stream = busy.start(long, 0, 1)
        done = threading.Event()
        asked = 0
        thread = threading.Thread(target=lambda: (busy.take(stream), done.set()))
        thread.start()
        while not done.is_set():
            client.tokenize("Hello, world")
            asked += not done.is_set()
        thread.join()
        sdk.outrider_stream_free(c.byref(stream))
        busy.close()
        most = max(most, asked)
        if most >= 3:
            break
    tap.note(f"{most} questions while a prompt of {len(long)} tokens was computed")
    tap.ok(most >= 3, "questions are answered while a prompt is computed", most)

    # The same number and request from somebody else.
    prompt = prompts(1)[0]
    expected = reference(prompt, TOKENS, extra=("--ignore-eos",))["tokens"]
    first = Client(service)
    stream = first.start(prompt, 4242)
    _, begun = first.take(stream, 3)
    error = refusal(lambda: first.start(prompt, 4242))
    tap.ok(error and error[0] == 17, "a second stream of a client under the same number is refused", error)
    other = Client(service)
    again = other.start(prompt, 4242)
    start, tokens = other.take(again)
    tap.ok(begun == expected[:len(begun)] and start == 0 and tokens == expected,
           "another client that starts the same request under the same number gets the answer from its beginning", f"{start} {tokens}")
    sdk.outrider_stream_free(c.byref(again))
    sdk.outrider_stream_free(c.byref(stream))
    third = Client(service)
    again = third.start(prompt, 4242)
    start, tokens = third.take(again)
    passes = service.ctl_json("sessions")["iterations_total"]
    tap.ok(start == 0 and tokens == expected, "so does a client that comes when it has ended", f"{start} {tokens}")
    sdk.outrider_stream_free(c.byref(again))
    again = third.start(prompt, 4242)
    third.take(again)
    tap.ok(service.ctl_json("sessions")["iterations_total"] == passes, "and nothing is computed for it")
    sdk.outrider_stream_free(c.byref(again))
    again = third.start(prompt[:-1], 4242)
    error = refusal(lambda: third.take(again))
    tap.ok(error and error[0] == 17 and "another request" in error[1], "another request under that number is refused", error)
    sdk.outrider_stream_free(c.byref(again))
    # A verifier that died in between has the session.
    service.restart("verifier")
    again = third.start(prompt, 4242)
    start, tokens = third.take(again)
    tap.ok(start == 0 and tokens == expected, "after a crash of the verifier too", f"{start} {tokens}")
    sdk.outrider_stream_free(c.byref(again))
    tap.ok(client.tokenize("Hello, world"), "and a client that had asked before asks its successor")
    for each in (client, first, other, third):
        each.close()
tap.done()
