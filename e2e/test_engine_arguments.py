"""Every command that the launcher can render is one that vLLM's own argument parser takes, in the engine image."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from e2e import cluster, kube
from e2e.conftest import Service
from e2e.images import ROOT
from phasewise_runtime import contract

PARSER = ROOT / "tests" / "runtime" / "engine" / "parse_arguments.py"


def golden_commands() -> str:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'runtime'}"}
    command = [sys.executable, "-m", "tests.runtime.engine.golden"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def parse_in_engine_image(service: Service, commands: str) -> str:
    pod = kube.pods(service.name, contract.DECODE, service.namespace)[0]["metadata"]["name"]
    where = ("-n", service.namespace, "exec", "-i", pod, "-c", "engine", "--")
    return cluster.kubectl(*where, "python3", "-c", PARSER.read_text(), text=commands)


def test_vllm_takes_every_golden_command_and_no_other(service: Service) -> None:
    commands = json.loads(golden_commands())
    assert len(commands) > 8
    assert f"{len(commands)} commands parsed" in parse_in_engine_image(service, json.dumps(commands))
    with pytest.raises(cluster.ClusterError, match="vLLM refuses"):
        parse_in_engine_image(service, json.dumps([[*commands[0], "--no-such-argument"]]))
