"""A launcher process around a stand-in for vLLM, for the tests of its life. Real processes, loopback."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from tests.runtime.waiting import until_blocking

SECONDS = 20

FAKE_VLLM = """
import http.server, os, pathlib, signal, subprocess, sys, threading, time
control = pathlib.Path(os.environ["CONTROL"])
flags = dict(part.partition("=")[::2] for part in sys.argv[1:])
(control / "pid").write_text(str(os.getpid()))
orphan = subprocess.Popen(["sh", "-c", "sleep 300 & echo $! > \\"$0\\"", str(control / "orphan")])
(control / "token").write_text(os.environ.get("HF_TOKEN", ""))
print("ERROR a line with hf_abcdefgh12345678", flush=True)
if (control / "refuse").exists():
    sys.exit(3)
if (control / "reject").exists():
    refused = (control / "reject").read_text() or "--foo"
    sys.exit("usage: api_server.py [-h]\\n" * 500 + f"api_server.py: error: unrecognized arguments: {refused}")

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
        file = control / "fault"
        fault = file.read_text() if self.path == "/metrics" and file.exists() else ""
        self.send_response(503 if sick or fault == "error" else 200)
        self.send_header("Content-Length", str(len(body) + (fault == "cut off") + (fault == "endless") * 2**30))
        self.end_headers()
        self.wfile.write(body)
        if fault == "endless":
            self.wfile.write(b"#" * (9 * 2**20))
    def log_message(self, *args):
        pass

def on_term(*_):
    (control / "termed").write_text("x")
    if not (control / "stubborn").exists():
        os._exit(0)

def die_when_asked():
    while not (control / "die").exists():
        time.sleep(0.02)
    print("(EngineCore pid=2) RuntimeError: CPU Generator does not use offset", flush=True)
    for _ in range(100):
        print("(APIServer pid=1) Traceback (most recent call last):\\n" * 20)
        print("(APIServer pid=1) vllm.EngineDeadError: See stack trace (above) for the root cause.", flush=True)
    os._exit(0)

threading.Thread(target=die_when_asked, daemon=True).start()
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


LAUNCHER = ("-m", "phasewise_runtime.engine")
FAST = """
import sys
from phasewise_runtime.engine import __main__, command, supervisor
supervisor._TICK_SECONDS = 0.02
supervisor._KILL_GRACE_SECONDS = 0.2
supervisor.shutdown_timeout = lambda config: command.shutdown_timeout(config) / 10
sys.exit(__main__.main())
"""
"""The launcher with a faster loop; a drain may take a tenth of what the configuration allows (7 s at least)."""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Launcher:
    """A launcher process, the switches of its stand-in engine (files in `control`), and the files of both."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.control = folder / "control"
        self.port = free_port()
        self.environment: dict[str, str] = {}
        self.program: tuple[str, ...] = ("-c", FAST)
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
            "PHASEWISE_TERMINATION_LOG": str(self.folder / "termination-message"),
            "CONTROL": str(self.control),
            "PYTHONPATH": f"{Path(__file__).parents[3] / 'runtime'}:{self.folder}",
            **self.environment,
        }
        self.process = subprocess.Popen(
            [sys.executable, *self.program],
            env=environment,
            stdout=(self.folder / "output").open("w"),
            stderr=subprocess.STDOUT,
            text=True,
        )

    def serving(self, **changes: object) -> "Launcher":
        self.start(**changes)
        until_blocking(lambda: self.status("/readyz") == 200)
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
        until_blocking(lambda: len(self.read("pages") or "") >= seen + times)

    @property
    def termination_message(self) -> str:
        return (self.folder / "termination-message").read_text()

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text()
