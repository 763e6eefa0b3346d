"""What comes in from outside: pods of the API server, the pods file, headers, flags."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.waiting import until

from phasewise_runtime.contract import LABEL_FINGERPRINT, LABEL_ROLE
from phasewise_runtime.router import headers, logs, settings
from phasewise_runtime.router.metrics import Metrics
from phasewise_runtime.router.pod_registry import PodRegistry
from phasewise_runtime.router.pods import Pod, pod_from_api, pod_from_file
from phasewise_runtime.router.static_pods import read_pods, watch_file

RAW: dict[str, Any] = {
    "metadata": {"name": "d0", "uid": "u0", "labels": {LABEL_ROLE: "decode", LABEL_FINGERPRINT: "fp"}},
    "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
}


def raw(**changes: Any) -> dict[str, Any]:
    pod = json.loads(json.dumps(RAW))
    for path, value in changes.items():
        section, key = path.split("__")
        pod[section][key] = value
    return pod


@pytest.mark.parametrize(
    ("pod", "usable", "state"),
    [
        (raw(), True, "ready"),
        (raw(status__conditions=[{"type": "Ready", "status": "False"}]), False, "not_ready"),
        (raw(status__conditions=None), False, "not_ready"),
        (raw(status__podIP=None), False, "not_ready"),
        (raw(metadata__deletionTimestamp="2026-01-01T00:00:00Z"), False, "terminating"),
        (raw(status__phase="Failed"), False, "terminating"),
    ],
)
def test_which_pods_are_usable(pod: dict[str, Any], usable: bool, state: str) -> None:
    read = pod_from_api(pod)
    assert read
    assert (read.usable, read.state, read.fingerprint) == (usable, state, "fp")


@pytest.mark.parametrize("labels", [None, {}, {LABEL_ROLE: "router"}])
def test_pods_that_are_no_engines(labels: Any) -> None:
    assert pod_from_api(raw(metadata__labels=labels)) is None


def test_addresses() -> None:
    assert Pod("u", "n", "decode", "fd00::1", "fp", ready=True).base_url == "http://[fd00::1]:8000"


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({}, "'role' is None"),
        ({"role": "router", "address": "a"}, "prefill, decode"),
        ({"role": "decode"}, "'address' is missing"),
        ({"role": "decode", "address": "a", "port": "x"}, "from 1 to 65535"),
    ],
)
def test_bad_entries_of_the_pods_file_are_named(entry: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says):
        pod_from_file(entry)
    file = tmp_path / "pods.json"
    file.write_text(json.dumps([{"role": "decode", "address": "a"}, entry]))
    with pytest.raises(ValueError, match="entry 1"):
        read_pods(file)


def test_the_pods_file_is_a_list(tmp_path: Path) -> None:
    file = tmp_path / "pods.json"
    file.write_text("{}")
    with pytest.raises(ValueError, match="not a list"):
        read_pods(file)


async def test_the_pods_file_is_read_again_and_a_bad_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, pod_registry = tmp_path / "pods.json", PodRegistry(Metrics(), lambda: 0.0)

    def write(text: str) -> None:
        new = tmp_path / "new"
        new.write_text(text)
        new.replace(file)

    def known() -> list[str]:
        return [c.pod.address for c in pod_registry.candidates("decode")]

    write('[{"role": "decode", "address": "a"}]')
    task = asyncio.create_task(watch_file(file, pod_registry))
    await until(lambda: known() == ["a"])
    write("nonsense")
    await until(lambda: any("cannot be read" in r.message for r in caplog.records))
    assert known() == ["a"]
    write('[{"role": "decode", "address": "b"}]')
    await until(lambda: known() == ["b"])
    task.cancel()


def test_headers_that_do_not_cross() -> None:
    client = [("Host", "h"), ("TE", "trailers"), ("Connection", "close, X-Hop"), ("X-Hop", "1"), ("Cookie", "c")]
    sent = headers.to_engine([*client, ("Content-Encoding", "gzip"), ("X-A", "1"), ("X-A", "2")], "id")
    assert [h for h in sent if h[0] not in ("Content-Type", "Accept-Encoding")] == [
        ("Cookie", "c"),
        ("X-A", "1"),
        ("X-A", "2"),
        ("X-Request-Id", "id"),
    ]
    engine = [("Transfer-Encoding", "chunked"), ("Server", "uvicorn"), ("X-Request-Id", "other"), ("X-B", "1")]
    assert headers.to_client(engine, "id") == [("X-B", "1"), ("X-Request-Id", "id")]


@pytest.mark.parametrize(
    ("given", "kept"), [("a-1", True), (None, False), ("", False), ("a b", False), ("x" * 257, False)]
)
def test_request_ids(given: str | None, kept: bool) -> None:
    assert (headers.request_id_of(given) == given) == kept


ARGS = ["--service", "s", "--model-name", "m", "--namespace", "n"]


def test_flags() -> None:
    got = settings.parse([*ARGS, "--hold-seconds", "0.5", "--port", "9000"])
    assert (got.service, got.namespace, got.hold_seconds, got.port) == ("s", "n", 0.5, 9000)
    assert (got.ttft_target_seconds, got.itl_target_seconds) == (0, 0), "no target by default"
    got = settings.parse([*ARGS, "--ttft-target-seconds=0.5", "--itl-target-seconds=0.04"])
    assert (got.ttft_target_seconds, got.itl_target_seconds) == (0.5, 0.04)


def test_the_namespace_comes_from_the_pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POD_NAMESPACE", "from-env")
    assert settings.parse(ARGS[:4]).namespace == "from-env"
    monkeypatch.delenv("POD_NAMESPACE")
    (tmp_path / "namespace").write_text("from-account\n")
    monkeypatch.setattr(settings, "NAMESPACE_FILE", tmp_path / "namespace")
    assert settings.parse(ARGS[:4]).namespace == "from-account"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "--service"),
        (ARGS[:2], "--model-name"),
        (["--service", " ", "--model-name", "m"], "give a name"),
        (ARGS[:4], "give --namespace"),
        ([*ARGS, "--port", "99999"], "0 to 65535"),
        ([*ARGS, "--port", "8081"], "different numbers"),
        ([*ARGS, "--hold-seconds", "soon"], "give seconds"),
        ([*ARGS, "--hold-seconds", "nan"], "give seconds"),
        ([*ARGS, "--max-concurrency", "0"], "1 or more"),
        ([*ARGS, "--held-body-bytes", "9"], "give 4194304 or more"),
        ([*ARGS, "--api-keys-dir", "/nowhere"], "mount the secret"),
        ([*ARGS, "--static-pods", "/nowhere"], "write the list"),
    ],
)
def test_bad_flags_say_what_to_write(
    args: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POD_NAMESPACE", raising=False)
    with pytest.raises(SystemExit) as e:
        settings.parse(args)
    assert e.value.code == 2
    assert says in capsys.readouterr().err


def test_log_lines_are_json() -> None:
    record = logging.makeLogRecord({"msg": "pod ejected", "levelname": "WARNING", "pod": "p0", "created": 0.5})
    line = json.loads(logs.JsonFormatter().format(record))
    assert (line["event"], line["level"], line["pod"]) == ("pod ejected", "warning", "p0")
