"""NIXL's progress thread gets our delay, whatever NIXL's own API asks for."""

from types import SimpleNamespace

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


def test_an_image_without_nixl_is_left_alone() -> None:
    register()
