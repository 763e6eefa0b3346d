"""The launcher's life: start, probes, drain, crash, termination message."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.runtime.engine.launcher import LAUNCHER, SECONDS, Launcher, free_port, is_running
from tests.runtime.waiting import until_blocking

from phasewise_runtime import contract


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    made = Launcher(tmp_path)
    yield made
    if made.process is not None:
        made.process.kill()
        made.process.wait()


def test_it_is_ready_when_the_engine_serves(launcher: Launcher) -> None:
    launcher.program = LAUNCHER
    launcher.switch("hold")
    launcher.start()
    until_blocking(lambda: launcher.read("pid"))
    assert (launcher.status("/livez"), launcher.status("/startupz"), launcher.status("/readyz")) == (200, 503, 503)
    assert "starting: engine" not in launcher.output
    (launcher.control / "hold").unlink()
    until_blocking(lambda: launcher.status("/readyz") == 200)
    assert launcher.status("/startupz") == 200
    assert launcher.status("/nothing") == 404
    metrics = launcher.text("/metrics")
    assert 'phasewise_launcher_phase{phase="serving"} 1.0' in metrics
    assert 'phasewise_launcher_phase_seconds{phase="engine"}' in metrics


def test_its_metrics_are_followed_by_those_of_the_engine_once_it_answers(launcher: Launcher) -> None:
    launcher.switch("hold")
    launcher.start()
    until_blocking(lambda: launcher.read("pid"))
    before = launcher.text("/metrics")
    assert f"{contract.METRIC_ENGINE_UP} 0\n" in before
    assert "vllm:" not in before
    (launcher.control / "hold").unlink()
    until_blocking(lambda: launcher.status("/readyz") == 200)
    after = launcher.text("/metrics")
    families = {family.name for family in text_string_to_metric_families(after)}
    assert {contract.METRIC_ENGINE_UP, "phasewise_launcher_phase", "vllm:num_requests_running"} <= families
    assert f"{contract.METRIC_ENGINE_UP} 1\n" in after


@pytest.mark.parametrize(
    "path", ["/health", "/v1/models", "/v1/completions", "/metrics/", "/metrics/../health", "//127.0.0.1/metrics"]
)
def test_nothing_but_its_metrics_is_passed_on_of_the_engine(launcher: Launcher, path: str) -> None:
    launcher.serving()
    with socket.create_connection(("127.0.0.1", launcher.port), timeout=5) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        assert client.makefile("rb").read().startswith(b"HTTP/1.1 404 ")
    with socket.create_connection(("127.0.0.1", launcher.port), timeout=5) as client:
        client.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
        assert client.makefile("rb").readline().startswith(b"HTTP/1.1 501 ")


@pytest.mark.parametrize("fault", ["cut off", "endless", "error"])
def test_metrics_of_the_engine_that_are_not_complete_are_left_out(launcher: Launcher, fault: str) -> None:
    launcher.serving()
    launcher.switch("fault", fault)
    page = launcher.text("/metrics")
    assert f"{contract.METRIC_ENGINE_UP} 0\n" in page
    assert "vllm:" not in page


def test_a_connection_serves_several_scrapes(launcher: Launcher) -> None:
    launcher.serving()
    connection = HTTPConnection("127.0.0.1", launcher.port, timeout=5)
    connection.connect()
    connection.auto_open = 0
    for _ in range(3):
        connection.request("GET", "/metrics")
        assert b"vllm:" in connection.getresponse().read()


def test_the_engine_is_reached_directly_whatever_proxy_is_set(launcher: Launcher) -> None:
    launcher.environment["http_proxy"] = f"http://127.0.0.1:{free_port()}"
    launcher.serving()
    launcher.term()
    assert launcher.ended() == 0, "its metrics, too, were scraped directly"


def test_a_sick_engine_is_not_ready(launcher: Launcher) -> None:
    launcher.serving()
    launcher.switch("sick")
    until_blocking(lambda: launcher.status("/readyz") == 503)
    assert launcher.status("/startupz") == 200


def test_term_waits_until_the_last_request_ended_and_the_last_block_was_pulled(launcher: Launcher) -> None:
    launcher.serving()
    launcher.switch("load", "1 0 0")
    launcher.term()
    until_blocking(lambda: "TERM reaches the engine when it is idle" in launcher.output)
    assert launcher.status("/readyz") == 503
    for load in ("1 0 0", "0 1 0", "0 0 0.01"):
        launcher.switch("load", load)
        launcher.wait_until_scraped(3)
        assert launcher.read("termed") is None
    launcher.switch("load", "0 0 0")
    assert launcher.ended() == 0
    assert launcher.read("termed") == "x"
    assert not (launcher.folder / "termination-message").exists()


@pytest.mark.parametrize(
    ("generation", "lease", "earliest", "latest"),
    [(0.5, 6, 0.7, 4), (20, 20, 4, SECONDS)],
)
def test_a_drain_ends_when_the_longest_generation_and_its_lease_are_over(
    launcher: Launcher, generation: float, lease: float, earliest: float, latest: float
) -> None:
    launcher.serving(max_generation_seconds=generation, kv_lease_seconds=lease)
    launcher.switch("load", "1 0 0.5")
    launcher.switch("stubborn")
    started = time.monotonic()
    launcher.term()
    assert launcher.ended() == 71
    assert earliest < time.monotonic() - started < latest
    assert (
        "stopped with unfinished requests: running 1, waiting 0, KV cache 50.00% in use" in launcher.termination_message
    )


def test_a_second_term_does_not_wait(launcher: Launcher) -> None:
    launcher.serving()
    launcher.switch("load", "1 0 0")
    launcher.term()
    until_blocking(lambda: "TERM reaches the engine when it is idle" in launcher.output)
    launcher.term()
    assert launcher.ended() == 71
    assert launcher.read("termed") == "x"


def test_term_during_the_start_ends_at_once(launcher: Launcher) -> None:
    launcher.switch("hold")
    launcher.start()
    pid = int(until_blocking(lambda: launcher.read("pid")))
    launcher.term()
    assert launcher.ended() == 0
    until_blocking(lambda: not is_running(pid))


def test_an_engine_that_refuses_to_start_leaves_its_reason_without_secrets(launcher: Launcher) -> None:
    launcher.switch("refuse")
    launcher.start()
    assert launcher.ended() == 70
    assert launcher.termination_message.splitlines() == [
        "the engine ended with exit code 3 in phase engine",
        "ERROR a line with ***",
    ]


def test_an_argument_that_the_engine_does_not_know_is_refused_as_part_of_the_spec(launcher: Launcher) -> None:
    launcher.switch("reject")
    launcher.start()
    assert launcher.ended() == 78
    assert launcher.termination_message.splitlines()[0] == (
        "spec.engine.args: the engine refuses them: unrecognized arguments: --foo; "
        "the engine ended with exit code 1 in phase engine"
    )


def test_no_part_of_the_token_is_left_where_what_the_engine_refused_is_cut_off(launcher: Launcher) -> None:
    (launcher.folder / "token").write_text("sesame-open-and-more")
    launcher.switch("reject", "--" + "x" * 460 + "=sesame-open-and-more")
    launcher.start(model_uri="hf://org/name", secrets_dir=str(launcher.folder))
    assert launcher.ended() == 78
    assert "sesa" not in launcher.termination_message


def test_an_engine_that_dies_while_it_serves_leaves_its_exception(launcher: Launcher) -> None:
    """Although the API server then ends with 0, and prints tracebacks of all its requests."""
    launcher.serving()
    launcher.switch("die")
    assert launcher.ended() == 70
    assert launcher.termination_message.splitlines()[0] == (
        "RuntimeError: CPU Generator does not use offset; the engine ended with exit code 0 in phase serving"
    )


def test_a_killed_engine_ends_the_launcher(launcher: Launcher) -> None:
    launcher.serving()
    os.kill(int(launcher.read("pid") or 0), signal.SIGKILL)
    assert launcher.ended() == 70
    assert launcher.termination_message.startswith("the engine was killed by SIGKILL in phase serving\n")


def test_an_engine_that_never_serves_is_stopped(launcher: Launcher) -> None:
    launcher.switch("hold")
    launcher.start(startup_seconds=0.5)
    assert launcher.ended() == 75
    assert "did not answer /health within 0.5 s" in launcher.termination_message


def test_preflight_refuses_before_the_engine_starts(launcher: Launcher) -> None:
    launcher.start(model_uri=f"file://{launcher.folder}/absent")
    assert launcher.ended() == 78
    assert "there is no folder" in launcher.termination_message
    assert launcher.read("pid") is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"args": {"port": 1}}, "engine argument 'port'"),
        ({"model_uri": "s3://bucket/model"}, "s3:// is not supported yet"),
        ({"model_uri": "hf://org/name", "secrets_dir": "/nonexistent"}, "no key token"),
    ],
)
def test_the_message_says_what_the_user_must_change(
    launcher: Launcher, changes: dict[str, object], message: str
) -> None:
    launcher.start(**changes)
    assert launcher.ended() == 78
    assert message in launcher.termination_message


def test_the_token_reaches_only_the_engine(launcher: Launcher) -> None:
    (launcher.folder / "token").write_text("sesame-open")
    launcher.serving(model_uri="hf://org/name", secrets_dir=str(launcher.folder))
    assert launcher.read("token") == "sesame-open"
    command = Path(f"/proc/{launcher.read('pid')}/cmdline").read_text()
    assert "sesame" not in launcher.output + command


def test_processes_that_the_engine_leaves_end_with_the_launcher(launcher: Launcher) -> None:
    launcher.serving()
    orphan = int(until_blocking(lambda: launcher.read("orphan")))
    os.kill(int(launcher.read("pid") or 0), signal.SIGKILL)
    launcher.ended()
    until_blocking(lambda: not is_running(orphan))


def test_the_engine_dies_with_a_killed_launcher(launcher: Launcher) -> None:
    launcher.serving()
    pid = int(launcher.read("pid") or 0)
    assert launcher.process is not None
    launcher.process.kill()
    until_blocking(lambda: not is_running(pid))
    os.kill(int(launcher.read("orphan") or 0), signal.SIGKILL)
