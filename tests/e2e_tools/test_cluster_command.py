"""The command line, and the cluster behind it when it is the user's own."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from e2e.cluster import selected
from e2e.cluster.__main__ import main, parser
from e2e.cluster.current import CurrentCluster
from e2e.cluster.interface import Target, parse_target
from e2e.cluster.local import LocalCluster, service_ports
from e2e.cluster.progress import wait_for
from e2e.cluster.settings import ClusterError, settings_from
from e2e.cluster.status import condition

FAKE_KUBECTL = """#!/bin/sh
case "$*" in
  *port-forward*) echo "Forwarding from 127.0.0.1:4567 -> 8080"; exec sleep 60 ;;
  *readyz*) [ -z "$BROKEN" ] || { echo "connection refused" >&2; exit 1; } ;;
  *) echo "$@" ;;
esac
"""


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A user's machine: a kubectl on PATH that prints its arguments."""
    kubectl = tmp_path / "bin" / "kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text(FAKE_KUBECTL)
    kubectl.chmod(0o755)
    given = {"PATH": f"{kubectl.parent}:/usr/bin:/bin", "PHASEWISE_STATE": str(tmp_path / "s"), "CLUSTER": "current"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("IMAGE_REGISTRY", raising=False)
    return given


@pytest.mark.parametrize(
    ("text", "target"),
    [("default/chat:80", Target("default", "chat", "80")), ("a/b:http", Target("a", "b", "http"))],
)
def test_a_target_is_read_and_written_alike(text: str, target: Target) -> None:
    assert parse_target(text) == target
    assert str(target) == text


@pytest.mark.parametrize("text", ["chat:80", "default/chat", "/chat:80", "default/:80", "a/b/c:80", ""])
def test_a_bad_target_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ClusterError, match="default/chat:80"):
        parse_target(text)


def test_a_services_ports_go_by_number_and_by_name() -> None:
    service = {"spec": {"ports": [{"port": 80, "name": "http"}, {"port": 8081}]}}
    assert service_ports(service) == {"80": 80, "http": 80, "8081": 8081}


@pytest.mark.parametrize(
    ("thing", "holds"),
    [
        ({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, True),
        ({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, False),
        ({"status": {"conditions": [{"type": "Other", "status": "True"}]}}, False),
        ({}, False),
        (None, False),
    ],
)
def test_a_condition_holds_only_when_it_says_so(thing: object, holds: bool) -> None:
    assert condition(thing, "Ready") is holds


def test_an_unknown_verb_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["dance"])
    assert "invalid choice: 'dance'" in capsys.readouterr().err


def test_the_environment_chooses_the_cluster(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(selected(), CurrentCluster)
    monkeypatch.setenv("CLUSTER", "")
    assert isinstance(selected(), LocalCluster)
    monkeypatch.setenv("CLUSTER", "moon")
    with pytest.raises(ClusterError, match="use local"):
        selected()


def test_an_error_is_one_line_and_exit_code_1(environ: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stop", "kube-apiserver"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("cluster: kube-apiserver of your own cluster is not ours to stop")
    assert error.count("\n") == 1


def test_a_cluster_of_the_users_own_must_answer(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["up"]) == 0
    monkeypatch.setenv("BROKEN", "1")
    with pytest.raises(ClusterError, match="does not answer: connection refused"):
        selected().up()


def test_clean_removes_the_build_cache(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    (cache / "bin").mkdir(parents=True)
    monkeypatch.setenv("PHASEWISE_CACHE", str(cache))
    assert main(["clean"]) == 0
    assert not cache.exists()
    assert main(["clean"]) == 0


def test_images_for_a_cluster_of_the_users_own_need_a_registry(environ: dict[str, str]) -> None:
    with pytest.raises(ClusterError, match="set IMAGE_REGISTRY"):
        selected().load_image("buildah:localhost/phasewise/operator:dev")


def test_a_forward_to_the_users_own_cluster_is_opened_once_and_opened_again_when_it_has_ended(
    environ: dict[str, str],
) -> None:
    cluster = CurrentCluster(settings_from(environ, Path.home()), environ)
    assert cluster.expose("default/chat:80") == "http://127.0.0.1:4567"
    record = next(cluster.forwards.glob("*.json"))
    before = record.read_text()
    assert cluster.expose("default/chat:80") == "http://127.0.0.1:4567"
    assert record.read_text() == before
    os.kill(json.loads(before)["pid"], signal.SIGKILL)
    wait_for("a new forward", lambda: cluster.expose("default/chat:80") and record.read_text() != before, 10)
    assert cluster.expose("default/chat:80") == "http://127.0.0.1:4567"
    cluster.unexpose("default/chat:80")
    assert not record.exists()
    cluster.down()
    assert not cluster.forwards.exists()
