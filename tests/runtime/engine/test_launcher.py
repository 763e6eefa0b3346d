"""The launcher's whole life around a stand-in for vLLM: probes, drain, crash, last words. Real processes, loopback."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SECONDS = 20

FAKE_VLLM = """
import http.server, os, pathlib, signal, subprocess, sys, threading, time
control = pathlib.Path(os.environ["CONTROL"])
flags = dict(part.partition("=")[::2] for part in sys.argv[1:])
(control / "pid").write_text(str(os.getpid()))
orphan = subprocess.Popen(["sh", "-c", "sleep 300 & echo $! > \\"$0\\"", str(control / "orphan")])
(control / "token").write_text(os.environ.get("HF_TOKEN", ""))
print("ERROR a telling line with hf_abcdefgh12345678", flush=True)
if (control / "refuse").exists():
    sys.exit(3)

def page():
    load = (control / "load").read_text().split() if (control / "load").exists() else ["0", "0", "0"]
    names = ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"]
    return "".join(f'vllm:{name}{{engine="0"}} {value}\\n' for name, value in zip(names, load))

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        sick = self.path == "/health" and (control / "sick").exists()
        body = page().encode()
        if self.path == "/metrics":
            with (control / "pages").open("a") as seen:
                seen.write("x")
        self.send_response(503 if sick else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass

def on_term(*_):
    (control / "termed").write_text("x")
    if not (control / "stubborn").exists():
        os._exit(0)

signal.signal(signal.SIGTERM, on_term)
while (control / "hold").exists():
    time.sleep(0.02)
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(flags["--port"])), Handler)
server.serve_forever()
"""


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def eventually(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, "did not come true in time"
        time.sleep(0.02)
    return value


class Launcher:
    """A launcher process, its stand-in engine's switches (files in `control`) and what both left behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.control = folder / "control"
        self.port = free_port()
        self.environment: dict[str, str] = {}
        self.process: subprocess.Popen[str] | None = None
        for name in ("vllm/entrypoints/openai", "nixl", "control", "model"):
            (folder / name).mkdir(parents=True)
        for name in ("vllm/__init__.py", "vllm/entrypoints/__init__.py", "vllm/entrypoints/openai/__init__.py"):
            (folder / name).touch()
        (folder / "nixl/__init__.py").touch()
        (folder / "vllm/entrypoints/openai/api_server.py").write_text(FAKE_VLLM)
        for name in ("config.json", "tokenizer.json"):
            (folder / "model" / name).write_text("{}")
        (folder / "model/model.safetensors").write_text("weights")

    def start(self, **changes: object) -> None:
        config = {
            "service": "s",
            "role": "prefill",
            "model_uri": f"file://{self.folder}/model",
            "model_name": "m",
            "device": "cpu",
            "settle_seconds": 0,
            "engine_port": free_port(),
            "launcher_port": self.port,
            **changes,
        }
        environment = {
            "PATH": os.environ["PATH"],
            "PHASEWISE_ENGINE": json.dumps(config),
            "PHASEWISE_SCRATCH_DIR": str(self.folder / "scratch"),
            "PHASEWISE_MODEL_CACHE_DIR": str(self.folder / "models"),
            "PHASEWISE_TERMINATION_LOG": str(self.folder / "last-words"),
            "CONTROL": str(self.control),
            "PYTHONPATH": f"{Path(__file__).parents[3] / 'runtime'}:{self.folder}",
            **self.environment,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "phasewise_runtime.engine"],
            env=environment,
            stdout=(self.folder / "output").open("w"),
            stderr=subprocess.STDOUT,
            text=True,
        )

    def serving(self, **changes: object) -> "Launcher":
        self.start(**changes)
        eventually(lambda: self.status("/readyz") == 200)
        return self

    def status(self, path: str) -> int | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    def text(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
            return answer.read().decode()

    def term(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)

    def ended(self) -> int:
        assert self.process is not None
        return self.process.wait(SECONDS)

    def switch(self, name: str, text: str = "") -> None:
        partial = self.control / f".{name}"
        partial.write_text(text)
        partial.rename(self.control / name)

    def read(self, name: str) -> str | None:
        file = self.control / name
        return file.read_text() if file.exists() else None

    def wait_until_scraped(self, times: int) -> None:
        seen = len(self.read("pages") or "")
        eventually(lambda: len(self.read("pages") or "") >= seen + times)

    @property
    def last_words(self) -> str:
        return (self.folder / "last-words").read_text()

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text()


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    made = Launcher(tmp_path)
    yield made
    if made.process is not None:
        made.process.kill()
        made.process.wait()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_it_is_ready_when_the_engine_serves(launcher: Launcher) -> None:
    launcher.switch("hold")
    launcher.start()
    eventually(lambda: launcher.read("pid"))
    assert (launcher.status("/livez"), launcher.status("/startupz"), launcher.status("/readyz")) == (200, 503, 503)
    assert "starting: engine" not in launcher.output
    (launcher.control / "hold").unlink()
    eventually(lambda: launcher.status("/readyz") == 200)
    assert launcher.status("/startupz") == 200
    assert launcher.status("/nothing") == 404
    metrics = launcher.text("/metrics")
    assert 'phasewise_launcher_phase{phase="serving"} 1.0' in metrics
    assert 'phasewise_launcher_phase_seconds{phase="engine"}' in metrics


def test_a_proxy_is_not_asked_for_the_engine_beside(launcher: Launcher) -> None:
    launcher.environment["http_proxy"] = f"http://127.0.0.1:{free_port()}"
    launcher.serving()
    launcher.term()
    assert launcher.ended() == 0, "the load, too, was asked of the engine"


def test_a_sick_engine_is_not_ready(launcher: Launcher) -> None:
    launcher.serving()
    launcher.switch("sick")
    eventually(lambda: launcher.status("/readyz") == 503)
    assert launcher.status("/startupz") == 200


def test_term_waits_until_the_last_request_ended_and_the_last_block_was_pulled(launcher: Launcher) -> None:
    launcher.serving()
    launcher.switch("load", "1 0 0")
    launcher.term()
    eventually(lambda: "TERM reaches the engine when it is idle" in launcher.output)
    assert launcher.status("/readyz") == 503
    for load in ("1 0 0", "0 1 0", "0 0 0.01"):
        launcher.switch("load", load)
        launcher.wait_until_scraped(3)
        assert launcher.read("termed") is None
    launcher.switch("load", "0 0 0")
    assert launcher.ended() == 0
    assert launcher.read("termed") == "x"
    assert not (launcher.folder / "last-words").exists()


def test_a_drain_has_an_end(launcher: Launcher) -> None:
    launcher.serving(max_generation_seconds=0.1, kv_lease_seconds=6)
    launcher.switch("load", "1 0 0.5")
    launcher.switch("stubborn")
    started = time.monotonic()
    launcher.term()
    assert launcher.ended() == 71
    assert time.monotonic() - started > 6
    assert "stopped with work in hand: running 1, waiting 0, KV cache 50.00% in use" in launcher.last_words


def test_a_second_term_does_not_wait(launcher: Launcher) -> None:
    launcher.serving()
    launcher.switch("load", "1 0 0")
    launcher.term()
    eventually(lambda: "TERM reaches the engine when it is idle" in launcher.output)
    launcher.term()
    assert launcher.ended() == 71
    assert launcher.read("termed") == "x"


def test_term_during_the_start_ends_at_once(launcher: Launcher) -> None:
    launcher.switch("hold")
    launcher.start()
    pid = int(eventually(lambda: launcher.read("pid")))
    launcher.term()
    assert launcher.ended() == 0
    eventually(lambda: not is_running(pid))


def test_an_engine_that_refuses_to_start_leaves_its_reason_without_secrets(launcher: Launcher) -> None:
    launcher.switch("refuse")
    launcher.start()
    assert launcher.ended() == 70
    assert launcher.last_words.splitlines() == [
        "the engine ended with exit code 3 in phase engine",
        "ERROR a telling line with ***",
    ]


def test_a_killed_engine_ends_the_launcher(launcher: Launcher) -> None:
    launcher.serving()
    os.kill(int(launcher.read("pid") or 0), signal.SIGKILL)
    assert launcher.ended() == 70
    assert launcher.last_words.startswith("the engine was killed by SIGKILL in phase serving\n")


def test_an_engine_that_never_serves_is_given_up(launcher: Launcher) -> None:
    launcher.switch("hold")
    launcher.start(startup_seconds=0.5)
    assert launcher.ended() == 75
    assert "did not answer /health within 0.5 s" in launcher.last_words


def test_preflight_refuses_before_the_engine_starts(launcher: Launcher) -> None:
    launcher.start(model_uri=f"file://{launcher.folder}/absent")
    assert launcher.ended() == 78
    assert "there is no folder" in launcher.last_words
    assert launcher.read("pid") is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"args": {"port": 1}}, "engine argument 'port'"),
        ({"model_uri": "s3://bucket/model"}, "s3:// is not supported yet"),
        ({"model_uri": "hf://org/name", "secrets_dir": "/nonexistent"}, "no key token"),
    ],
)
def test_what_the_user_must_change_is_said(launcher: Launcher, changes: dict[str, object], message: str) -> None:
    launcher.start(**changes)
    assert launcher.ended() == 78
    assert message in launcher.last_words


def test_the_token_reaches_the_engine_and_nobody_else(launcher: Launcher) -> None:
    (launcher.folder / "token").write_text("sesame-open")
    launcher.serving(model_uri="hf://org/name", secrets_dir=str(launcher.folder))
    assert launcher.read("token") == "sesame-open"
    command = Path(f"/proc/{launcher.read('pid')}/cmdline").read_text()
    assert "sesame" not in launcher.output + command


def test_what_the_engine_leaves_behind_ends_with_the_launcher(launcher: Launcher) -> None:
    launcher.serving()
    orphan = int(eventually(lambda: launcher.read("orphan")))
    os.kill(int(launcher.read("pid") or 0), signal.SIGKILL)
    launcher.ended()
    eventually(lambda: not is_running(orphan))


def test_the_engine_dies_with_a_killed_launcher(launcher: Launcher) -> None:
    launcher.serving()
    pid = int(launcher.read("pid") or 0)
    assert launcher.process is not None
    launcher.process.kill()
    eventually(lambda: not is_running(pid))
    os.kill(int(launcher.read("orphan") or 0), signal.SIGKILL)
