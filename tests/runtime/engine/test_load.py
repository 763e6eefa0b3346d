"""The engine's metrics tell work in hand, and unknown is not zero."""

import pytest

from phasewise_runtime.engine.load import EngineLoad, parse_load

LABELS = '{engine="0",model_name="tiny"}'
IDLE = f"""# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{LABELS} 0.0
vllm:num_requests_waiting{LABELS} 0.0
vllm:num_requests_waiting_by_reason{{engine="0",reason="capacity"}} 7.0
vllm:kv_cache_usage_perc{LABELS} 0.0
"""


@pytest.mark.parametrize(
    ("page", "load", "idle"),
    [
        (IDLE, EngineLoad(0, 0, 0), True),
        (IDLE.replace(f"running{LABELS} 0.0", f"running{LABELS} 2.0"), EngineLoad(2, 0, 0), False),
        (IDLE.replace(f"waiting{LABELS} 0.0", f"waiting{LABELS} 1.0"), EngineLoad(0, 1, 0), False),
        (IDLE.replace(f"perc{LABELS} 0.0", f"perc{LABELS} 7.8e-3"), EngineLoad(0, 0, 0.0078), False),
        (IDLE + 'vllm:num_requests_running{engine="1",model_name="a } b"} 3 1700000000\n', EngineLoad(3, 0, 0), False),
    ],
)
def test_load_is_read_from_the_page(page: str, load: EngineLoad, idle: bool) -> None:
    assert parse_load(page) == load
    assert load.idle is idle


@pytest.mark.parametrize(
    "page", ["", "not metrics", IDLE.replace("vllm:kv_cache_usage_perc{", "x{"), IDLE.replace("} 0.0", "} many")]
)
def test_a_page_that_does_not_say_is_unknown(page: str) -> None:
    assert parse_load(page) is None
