"""NIXL's progress thread gets our delay, although NIXL's own API asks for another."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from phasewise_runtime.engine import nixl_plugin
from phasewise_runtime.engine.nixl_plugin import PROGRESS_DELAY_MICROSECONDS, register, slow_down


class AgentConfig:
    def __init__(self) -> None:
        self._delay = 0

    @property
    def pthrDelay(self) -> int:  # noqa: N802
        return self._delay

    @pthrDelay.setter
    def pthrDelay(self, value: int) -> None:  # noqa: N802
        self._delay = value


def test_zero_becomes_our_delay_and_a_longer_one_stays() -> None:
    bindings = SimpleNamespace(nixlAgentConfig=AgentConfig)
    slow_down(bindings)
    slow_down(bindings)
    config = bindings.nixlAgentConfig()
    config.pthrDelay = 0
    assert config.pthrDelay == PROGRESS_DELAY_MICROSECONDS
    config.pthrDelay = 9000
    assert config.pthrDelay == 9000
    assert isinstance(config, AgentConfig)


NIXL = ("nixl_cu13._api", "nixl_cu12._api", "nixl._api")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_RCACHE_MAX_UNRELEASED", "1024")  # so that what register() sets does not outlive the test
    for name in NIXL:
        monkeypatch.setitem(sys.modules, name, None)  # an import of it fails


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("installed", NIXL)
def test_the_installed_nixl_is_slowed_down(monkeypatch: pytest.MonkeyPatch, installed: str) -> None:
    api = SimpleNamespace(nixlBind=SimpleNamespace(nixlAgentConfig=AgentConfig))
    monkeypatch.setitem(sys.modules, installed.partition(".")[0], ModuleType("package"))
    monkeypatch.setitem(sys.modules, installed, api)
    register()
    assert api.nixlBind.nixlAgentConfig.phasewise_delay == PROGRESS_DELAY_MICROSECONDS


@pytest.mark.usefixtures("environment")
def test_in_an_image_without_nixl_nothing_is_patched_or_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    patched: list[object] = []
    monkeypatch.setattr(nixl_plugin, "slow_down", patched.append)
    before = set(sys.modules)
    register()
    assert patched == []
    assert set(sys.modules) == before
