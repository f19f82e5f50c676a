#!/usr/bin/env python3
"""outrider-model: the commands that run a model, their output, and what bad input gets."""
import json
import math
import os
import subprocess
import tempfile

from outrider_test import PATIENCE, Tap

BUILD = os.environ.get("B", "build")
PROGRAM = os.path.join(BUILD, "outrider-model")
GOLDEN = "tests/data/golden/models/"
DEMO = "models/outrider-demo-moe-q4_0.gguf"
tap = Tap()


def run(*args):
    return subprocess.run([PROGRAM, *args], capture_output=True, timeout=1500 * PATIENCE)


def output(*args):
    result = run(*args)
    assert result.returncode == 0, result.stderr.decode()
    return json.loads(result.stdout)


def golden(name, prompt):
    with open(f"{GOLDEN}{name}.json") as f:
        return json.load(f)["prompts"][prompt]


def ids(tokens):
    return ",".join(map(str, tokens))


def demo_prompts(n):
    with open("models/golden/outrider-demo-moe-q4_0.json") as f:
        return json.load(f)["prompts"][:n]


@tap.test
def logits_of_the_last_token_are_the_reference():
    for name in ("llama-dense", "mixtral", "qwen3moe"):
        prompt = golden(name, 2)
        got = output("logits", "--model", f"{GOLDEN}{name}.f32.gguf", "--tokens", ids(prompt["ids"]),
                     "--format", "json")["logits"]
        expected = prompt["logits_last"]
        assert len(got) == len(expected)
        rms = math.sqrt(sum(x * x for x in expected) / len(expected))
        assert max(abs(a - b) for a, b in zip(got, expected)) <= 2e-4 * rms


@tap.test
def all_gives_a_list_per_position_and_the_last_is_the_same():
    prompt = golden("qwen3", 1)
    args = ["logits", "--model", GOLDEN + "qwen3.f32.gguf", "--tokens", " ".join(map(str, prompt["ids"]))]
    rows = output(*args, "--all")["logits"]
    assert len(rows) == len(prompt["ids"])
    assert [row.index(max(row)) for row in rows] == prompt["argmax_all"]
    assert rows[-1] == output(*args)["logits"]


@tap.test
def greedy_tokens_are_the_reference():
    for name in ("llama-rope3", "qwen3", "mixtral"):
        for i in (0, 3, 4):
            prompt = golden(name, i)
            got = output("generate", "--model", f"{GOLDEN}{name}.f32.gguf", "--tokens", ids(prompt["ids"]),
                         "--max-tokens", "48", "--ignore-eos", "--format", "json")
            assert got["tokens"] == prompt["greedy"]["ids"], (name, i)
            assert got["end"] == "length"


@tap.test
def routes_are_the_reference():
    prompt = golden("qwen3moe", 2)
    routes = output("routes", "--model", GOLDEN + "qwen3moe.f32.gguf", "--tokens", ids(prompt["ids"]),
                    "--prefill-chunk", "7")["routes"]
    assert len(routes) == len(prompt["routing"])
    for got, expected in zip(routes, prompt["routing"]):
        assert got["layer"] == expected["layer"] and got["experts"] == expected["experts"]
        for a, b in zip(got["weights"], expected["weights"]):
            assert max(abs(x - y) for x, y in zip(a, b)) <= 1e-5


@tap.test
def nothing_but_the_request_changes_a_bit():
    prompt = demo_prompts(2)[1]
    args = ["generate", "--model", DEMO, "--tokens", ids(prompt["input_ids"]), "--max-tokens", "40",
            "--ignore-eos", "--logits-hash", "--temperature", "0.8", "--top-p", "0.95", "--seed", "5"]
    reference = output(*args, "--kernels", "scalar", "--threads", "1", "--prefill-chunk", "1")
    assert len(reference["logits_hash"]) == 40
    for kernels in ("auto", "avx2", "avx512", "scalar"):
        for threads, chunk in (("1", "64"), ("2", "7"), ("3", "128")):
            result = run(*args, "--kernels", kernels, "--threads", threads, "--prefill-chunk", chunk)
            if result.returncode == 64 and kernels.startswith("avx"):
                continue  # not on this CPU
            got = json.loads(result.stdout)
            for key in ("tokens", "text", "logits_hash"):
                assert got[key] == reference[key], (kernels, threads, chunk, key)
    other = output(*args[:-1], "6")
    assert other["tokens"] != reference["tokens"]
    # What a position's logits are does not depend on how many tokens were asked for.
    short = output(*args[:6], "3", *args[7:])
    assert short["logits_hash"] == reference["logits_hash"][:3]


def quantised(model, kind):
    """A file of tests/data/golden/quants with its last prompt: ids and the reference's logits."""
    with open(f"tests/data/golden/quants/{model}.json") as f:
        golden = json.load(f)
    variant = next(v for v in golden["variants"] if v["type"] == kind)
    return "tests/data/golden/quants/" + variant["file"], golden["prompts"][-1]["ids"], variant["prompts"][-1]["logits_last"]


@tap.test
def float32_activations_give_the_reference_on_quantised_weights():
    for model, kind in (("qwen3moe-256", "Q4_K_M"), ("qwen3moe-256", "MXFP4_MOE"), ("llama-dense-256", "IQ4_XS"),
                        ("qwen3moe-256", "IQ2"), ("llama-dense-256", "IQ"), ("llama-dense-256", "TQ")):
        path, prompt, expected = quantised(model, kind)
        args = ["logits", "--model", path, "--tokens", ids(prompt), "--kv", "f32"]
        rms = math.sqrt(sum(x * x for x in expected) / len(expected))
        got = output(*args, "--activations", "f32")["logits"]
        assert max(abs(a - b) for a, b in zip(got, expected)) <= 2e-4 * rms, kind
        other = run(*args, "--kernels", "reference")
        assert other.returncode == 64 and b"--activations f32" in other.stderr, other
        # 8-bit activations are another arithmetic, near it.
        fast = output(*args)["logits"]
        difference = math.sqrt(sum((a - b) ** 2 for a, b in zip(fast, got)) / len(got))
        assert 1e-3 * rms < difference < 0.04 * rms, (kind, difference / rms)
        assert output(*args, "--activations", "q8")["logits"] == fast


@tap.test
def mixed_types_give_the_same_bits_on_every_instruction_set():
    for model, kind in (("qwen3moe-256", "Q4_K_M"), ("qwen3moe-256", "MXFP4_MOE"), ("llama-dense-256", "Q5_1")):
        path, prompt, _ = quantised(model, kind)
        args = ["generate", "--model", path, "--tokens", ids(prompt), "--max-tokens", "24", "--ignore-eos", "--logits-hash"]
        reference = output(*args, "--kernels", "scalar", "--threads", "1", "--prefill-chunk", "1")["logits_hash"]
        assert len(reference) == 24
        for kernels in ("avx2", "avx512"):
            result = run(*args, "--kernels", kernels, "--threads", "2", "--prefill-chunk", "33")
            if result.returncode != 64:  # else not on this CPU
                assert json.loads(result.stdout)["logits_hash"] == reference, (kind, kernels)


@tap.test
def text_and_tokens_say_the_same():
    args = ["generate", "--model", DEMO, "--prompt", "What is 12 + 30?", "--chat", "--max-tokens", "30"]
    tokens = output(*args)
    text = run(*args, "--format", "text")
    assert text.returncode == 0 and text.stderr == b""
    assert text.stdout.decode() == tokens["text"] + "\n"
    assert set(tokens["timing"]) >= {"prefill_tokens_per_s", "decode_tokens_per_s"}
    assert "timing" not in output(*args, "--quiet")


@tap.test
def generation_ends_at_the_context_and_at_the_end_token():
    assert len(output("generate", "--model", DEMO, "--tokens", "1,2,3", "--context", "10", "--ignore-eos")["tokens"]) == 7
    args = ["generate", "--model", DEMO, "--prompt", "What is 12 + 30?", "--chat", "--max-tokens", "400"]
    got = output(*args)
    assert got["end"] == "eos" and got["tokens"][-1] in (0, 2)
    assert output(*args, "--ignore-eos")["tokens"][:len(got["tokens"])] == got["tokens"]


def refused(status, word, *args):
    result = run(*args)
    message = result.stderr.decode()
    assert result.returncode == status, (args, result.returncode, message)
    assert word in message and message.startswith("outrider-model: "), (args, message)


@tap.test
def bad_input_is_named_and_has_its_status():
    model = ["--model", DEMO]
    with tempfile.TemporaryDirectory() as folder:
        cut = os.path.join(folder, "cut.gguf")
        with open(DEMO, "rb") as source, open(cut, "wb") as target:
            target.write(source.read(3_000_000))
        empty = os.path.join(folder, "empty.gguf")
        open(empty, "w").close()
        refused(65, "cut.gguf", "logits", "--model", cut, "--tokens", "1")
        refused(65, "empty.gguf", "logits", "--model", empty, "--tokens", "1")
        refused(66, "gone.gguf", "logits", "--model", folder + "/gone.gguf", "--tokens", "1")
    refused(65, "Makefile", "generate", "--model", "Makefile", "--tokens", "1")
    refused(65, "0..4095", "generate", *model, "--tokens", "1,4096")
    refused(65, "0..4095", "generate", *model, "--tokens", "-1")
    refused(65, "empty", "generate", *model, "--tokens", " ")
    refused(65, "a comma without an id", "generate", *model, "--tokens", " , ")
    refused(65, "empty", "generate", *model, "--prompt", "")
    refused(65, "list of ids", "generate", *model, "--tokens", "1,two")
    refused(65, "too long", "logits", *model, "--tokens", ids([1] * 1025))
    refused(65, "too long", "generate", *model, "--tokens", ids([1] * 1024))
    refused(65, "no experts", "routes", "--model", "models/outrider-demo-draft-small-q8_0.gguf", "--tokens", "1")
    refused(64, "1e-30 to 100", "generate", *model, "--tokens", "1", "--temperature", "-1")
    refused(64, "top-p", "generate", *model, "--tokens", "1", "--top-p", "0")
    refused(64, "not a number", "generate", *model, "--tokens", "1", "--min-p", "much")
    refused(64, "1..256", "generate", *model, "--tokens", "1", "--threads", "0")
    refused(64, "--max-tokens", "generate", *model, "--tokens", "1", "--max-tokens", "-3")
    refused(64, "needs a value", "generate", *model, "--tokens")
    refused(64, "unknown option", "generate", *model, "--tokens", "1", "--tempreature", "1")
    refused(64, "unexpected", "generate", *model, "1")
    refused(64, "--model", "logits", "--tokens", "1")
    refused(64, "prompt", "logits", *model)
    refused(64, "f32, f16", "logits", *model, "--tokens", "1", "--kv", "f8")
    refused(64, '--kernels: there are no kernels called "mmx", allowed are auto, scalar, avx2, avx512', "logits", *model, "--tokens", "1",
            "--kernels", "mmx")
    refused(64, "--kernels", "logits", *model, "--tokens", "1", "--kernels", "")
    refused(64, "q8 and f32", "logits", *model, "--tokens", "1", "--activations", "bf16")
    refused(64, "contradict", "logits", *model, "--tokens", "1", "--activations", "f32", "--kernels", "scalar")
    refused(64, "contradict", "logits", *model, "--tokens", "1", "--activations", "f32", "--kernels", "avx2")
    refused(64, "json", "logits", *model, "--tokens", "1", "--format", "xml")
    refused(64, "unknown command", "frobnicate")


@tap.test
def a_prompt_is_text_for_every_command_that_takes_one():
    model = ["--model", DEMO]
    for more in ([], ["--chat"]):
        tokens = output("tokenize", *model, "--prompt", "In the beginning", *more)["tokens"]
        plain = output("tokenize", *model, "--text", "In the beginning")["tokens"]
        assert (tokens[-len(plain):] == plain) == (not more) and len(tokens) >= len(plain), (tokens, plain)
        for command, what in (("generate", ["--max-tokens", "4", "--quiet"]), ("logits", ["--logits-hash"]), ("routes", [])):
            said = output(command, *model, "--prompt", "In the beginning", *more, *what)
            assert said == output(command, *model, "--tokens", ids(tokens), *what), (command, more)
    for words in (["--text", "a", "--prompt", "b"], ["--chat", "--text", "a"], ["--special", "--prompt", "a"]):
        refused(64, "--", "tokenize", *model, *words)
    assert b"--prompt" not in run("perplexity", "--help").stdout


@tap.test
def the_window_of_perplexity_has_one_default():
    line, = [x for x in run("perplexity", "--help").stdout.splitlines() if b"--context" in x]
    assert b"512" in line and b"model's" not in line, line


@tap.test
def more_threads_than_cpus_are_noticed():
    few = len(os.sched_getaffinity(0))
    arguments = ["generate", "--model", DEMO, "--tokens", "1", "--max-tokens", "1"]
    said = run(*arguments, "--threads", str(few + 1))
    assert said.returncode == 0 and f"threads = {few + 1}".encode() in said.stderr and said.stderr.count(b"\n") == 1, said.stderr
    assert not run(*arguments, "--threads", str(few + 1), "--quiet").stderr
    assert b"threads =" not in run(*arguments, "--threads", "1").stderr


@tap.test
def help_lists_every_option():
    assert b"generate" in run("--help").stdout
    for command in ("logits", "generate", "routes"):
        result = run(command, "--help")
        assert result.returncode == 0 and b"--kernels" in result.stdout and b"--activations" in result.stdout and b"--tokens" in result.stdout
    assert b"--repeat-penalty" in run("generate", "--help").stdout
    assert run("--version").stdout.startswith(b"outrider-model ")


tap.done()
