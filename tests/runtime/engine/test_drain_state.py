"""The drain state that an engine's metrics show; unknown is not zero."""

import pytest

from phasewise_runtime.engine.drain_state import DrainState, parse_drain_state

LABELS = '{engine="0",model_name="tiny"}'
IDLE = f"""# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{LABELS} 0.0
vllm:num_requests_waiting{LABELS} 0.0
vllm:num_requests_waiting_by_reason{{engine="0",reason="capacity"}} 7.0
vllm:kv_cache_usage_perc{LABELS} 0.0
"""


@pytest.mark.parametrize(
    ("exposition", "state", "idle"),
    [
        (IDLE, DrainState(0, 0, 0), True),
        (IDLE.replace(f"running{LABELS} 0.0", f"running{LABELS} 2.0"), DrainState(2, 0, 0), False),
        (IDLE.replace(f"waiting{LABELS} 0.0", f"waiting{LABELS} 1.0"), DrainState(0, 1, 0), False),
        (IDLE.replace(f"perc{LABELS} 0.0", f"perc{LABELS} 7.8e-3"), DrainState(0, 0, 0.0078), False),
        (IDLE + 'vllm:num_requests_running{engine="1",model_name="a } b"} 3 1700000000\n', DrainState(3, 0, 0), False),
    ],
)
def test_the_drain_state_is_read_from_the_exposition(exposition: str, state: DrainState, idle: bool) -> None:
    assert parse_drain_state(exposition) == state
    assert state.idle is idle


@pytest.mark.parametrize(
    "exposition", ["", "not metrics", IDLE.replace("vllm:kv_cache_usage_perc{", "x{"), IDLE.replace("} 0.0", "} many")]
)
def test_an_incomplete_exposition_is_unknown(exposition: str) -> None:
    assert parse_drain_state(exposition) is None
