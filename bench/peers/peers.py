"""The engines that Outrider is measured against: how to get them, build them, and ask each for its figures.

llama.cpp and ik_llama.cpp come from the source packages of their Python bindings on PyPI, which carry the C++ sources;
nothing of the bindings themselves is built. Both have a llama-bench program, whose figures mean here:
  decode      -n: tokens/s, one at a time
  verify n    -p n: one pass of n tokens of one sequence. llama-bench asks for the logits of the last one only, Outrider
              computes those of all n, as a verification needs them: the comparison is in the peer's favour
  prefill     -p: tokens/s of a prompt in one pass
  decode at d decoding behind d tokens
"""
import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import urllib.parse
import urllib.request
from pathlib import Path

INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")


class Failure(Exception):
    """Says in one sentence what cannot be done and why."""


def need_programs(build, *names):
    for name in names:
        if not (build / name).exists():
            raise Failure(f"{build / name} is not there: run make first")


class Package:
    """A source package of the index, pinned to the byte."""

    def __init__(self, name, version, sha256, vendor, options, missing=()):
        """missing: (path, text) of files that the package forgot and its build asks for."""
        self.name, self.version, self.sha256, self.vendor, self.options = name, version, sha256, vendor, options
        self.missing = missing
        self.stem = f"{name.replace('-', '_')}-{version}"

    def fetch(self, cache):
        """The archive's path; downloads it when it is not there."""
        path = cache / f"{self.stem}.tar.gz"
        if not path.exists():
            page = f"{INDEX}/{self.name}/"
            print(f"peers: downloading {path.name} from {page}", flush=True)
            try:
                with urllib.request.urlopen(page, timeout=60) as response:
                    links = re.findall(r'href="([^"#]*/' + re.escape(path.name) + ')[#"]', response.read().decode())
                if not links:
                    raise Failure(f"{page} does not list {path.name}")
                part = path.with_suffix(".part")
                with urllib.request.urlopen(urllib.parse.urljoin(page, links[0]), timeout=60) as response, \
                        open(part, "wb") as out:
                    shutil.copyfileobj(response, out)
                part.rename(path)
            except OSError as problem:
                raise Failure(f"cannot download {path.name}: {problem}") from problem
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest != self.sha256:
            raise Failure(f"{path} has SHA-256 {digest}, expected {self.sha256}: remove it to download it again")
        return path

    def build(self, cache, jobs, name="llama-bench"):
        """The path of this program; builds it when it is not there."""
        top = cache / self.stem
        program = top / "build" / "bin" / name
        if program.exists():
            return program
        for tool in ("cmake", "g++"):
            if not shutil.which(tool):
                raise Failure(f"{tool} is needed to build {self.vendor}: make packages-peers installs it")
        with tarfile.open(self.fetch(cache)) as archive:
            wanted = f"{self.stem}/vendor/{self.vendor}/"
            archive.extractall(cache, [m for m in archive.getmembers() if m.name.startswith(wanted)])
        for path, text in self.missing:
            path = top / "vendor" / self.vendor / path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        log = cache / f"{self.stem}.log"
        print(f"peers: building {self.vendor} (some minutes; {log})", flush=True)
        with open(log, "w") as out:
            for command in (["cmake", "-S", top / "vendor" / self.vendor, "-B", top / "build", *self.cmake(name)],
                            ["cmake", "--build", top / "build", "--target", name, "-j", str(jobs)]):
                if subprocess.run(command, stdout=out, stderr=subprocess.STDOUT).returncode:
                    raise Failure(f"{self.vendor} cannot be built: see the end of {log}")
        return program

    def cmake(self, name="llama-bench"):
        server = "ON" if name == "llama-server" else "OFF"
        return ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_BUILD_TESTS=OFF",
                f"-DLLAMA_BUILD_SERVER={server}", *self.options]

    def facts(self, name="llama-bench"):
        return {"package": self.name, "version": self.version, "sha256": self.sha256, "cmake": self.cmake(name)}


PACKAGES = {
    "llama.cpp": Package(
        "llama-cpp-python", "0.3.36", "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e", "llama.cpp",
        ["-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF",
         "-DLLAMA_OPENSSL=OFF"]),
    "ik_llama.cpp": Package(
        "ik-llama-cpp-python", "0.1.5", "33c67eb99e4dcab5e611050433243815709b8b3067753f9ce18375013cf002ad",
        "ik_llama.cpp", ["-DGGML_IQK_FA_ALL_QUANTS=OFF"],  # attention to a quantised KV cache, an hour to compile
        [("common/cmake/build-info-gen-cpp.cmake",
          "set(BUILD_NUMBER 0)\nset(BUILD_COMMIT unknown)\n"
          "configure_file(common/build-info.cpp.in ${CMAKE_CURRENT_SOURCE_DIR}/common/build-info.cpp)\n")]),
}


def run(wrapper, command, timeout):
    """Standard output of a measurement."""
    words = [*wrapper, *(str(c) for c in command)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired as late:
        raise Failure(f"{' '.join(words)}: not done after {timeout} s") from late
    except OSError as problem:
        raise Failure(f"{words[0]}: {problem.strerror}") from problem
    if done.returncode:
        raise Failure(f"{' '.join(words)}: exit status {done.returncode}: {done.stderr.strip()[-400:]}")
    return done.stdout


class LlamaBench:
    """A llama-bench command, with whatever options its engine is to be measured with."""

    def __init__(self, name, command, deep, facts):
        self.name, self.command, self.facts = name, command, {**facts, "command": [Path(command[0]).name, *command[1:]]}
        self.deep = deep  # the options of decoding n tokens behind d: ("-d", "D", "-n", "N")

    def rows(self, settings, options, timeout):
        out = run(settings.wrapper, [*self.command, "-m", settings.file, "-t", settings.threads, "-o", "json", *options],
                  timeout)
        try:
            return json.loads(out[out.index("["):])
        except ValueError as problem:
            raise Failure(f"{self.name}: no JSON from llama-bench: {out[-200:]!r}") from problem

    def shallow(self, settings):
        counts = [*settings.batch, settings.prefill]
        rows = self.rows(settings, ["-p", ",".join(map(str, counts)), "-n", settings.tokens, "-r", settings.passes],
                         settings.timeout)
        figures = {}
        for row in rows:
            n, gen = int(row["n_prompt"]), int(row["n_gen"])
            name = "decode" if gen else "prefill" if n == settings.prefill else f"verify {n}"
            figures[name] = float(row["avg_ts"])
        return figures

    def deeper(self, settings, depth):
        words = {"D": str(depth), "N": str(settings.tokens), "D,N": f"{depth},{settings.tokens}"}
        rows = self.rows(settings, [words.get(w, w) for w in self.deep] + ["-r", 1], settings.deep_timeout)
        found = [row for row in rows if int(row["n_gen"])]
        if len(found) != 1:
            raise Failure(f"{self.name}: llama-bench gave {len(found)} rows for decoding at depth {depth}")
        return {f"decode at {depth}": float(found[0]["avg_ts"])}


def floor(row, n, name):
    """The most tokens/s there can be, and the bandwidth it goes by (0: not bound by memory)."""
    return 1e3 * n / row[name], row.get("read_gb_s", 0)


class Outrider:
    """outrider-bench model. Its answer has the floors too, which hold for every engine that reads the same file."""

    name = "outrider"

    def __init__(self, program, facts):
        self.program, self.facts = program, facts

    def ask(self, settings, options, timeout):
        return json.loads(run(settings.wrapper, [
            self.program, "model", "--model", settings.file, "--threads", settings.threads, "--rounds", 1, "--tokens",
            settings.tokens, "--passes", settings.passes, "--format", "json", *options], timeout))

    def shallow(self, settings):
        # llama-bench decodes from an empty context, so in the mean behind half of its tokens.
        out = self.ask(settings, ["--depth", settings.tokens // 2, "--batch", ",".join(map(str, settings.batch)),
                                  "--prefill", settings.prefill], settings.timeout)
        decode, prefill = out["decode"], out["prefill"]
        figures = {"decode": decode["tokens_per_s"], "prefill": prefill["tokens_per_s"]}
        facts = self.about(out)
        floors = {"decode": floor(decode, 1, "bytes_ms"), "prefill": floor(prefill, prefill["n"], "roofline_ms")}
        for row in out["batch"]:
            figures[f"verify {row['n']}"] = row["tokens_per_s"]
            floors[f"verify {row['n']}"] = floor(row, row["n"], "roofline_ms")
            facts[f"experts {row['n']}"] = row["distinct_experts"]
        return figures, floors, facts

    def about(self, out):
        return {"int8_gop_s": out["peaks"]["int8_gop_s"], "beyond_bytes": out["memory"]["beyond_bytes"]}

    def deeper(self, settings, depth):
        # As shallow: in the mean behind half of the tokens more.
        half = settings.tokens // 2
        out = self.ask(settings, ["--depth", f"{half},{depth + half}" if depth else half, "--batch", 1, "--prefill", 1],
                       settings.deep_timeout)
        row = out["depths"][0] if depth else out["decode"]
        name, facts = f"decode at {depth}", self.about(out)
        if "kv_cost" in row:
            facts[f"kv cost {depth}"] = row["kv_cost"]
        return {name: row["tokens_per_s"]}, {name: floor(row, 1, "bytes_ms")}, facts

    def read_gb_s(self, settings):
        """The read bandwidth of this moment."""
        return json.loads(run(settings.wrapper, [
            self.program, "kernels", "--types", "Q8_0", "--tokens", 1, "--rounds", 3, "--threads", settings.threads,
            "--format", "json"], settings.timeout))["peaks"]["read_gb_s"]
