"""The drain state that an engine's metrics show; unknown is not zero."""

import pytest

from phasewise_runtime.engine.drain_state import DrainState, IdleProbe, parse_drain_state

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


NONE, BUSY = DrainState(0, 0, 0), DrainState(1, 0, 0.25)


@pytest.mark.parametrize(
    ("scrapes", "found"),
    [
        ([NONE, NONE], [None, True]),
        ([NONE, BUSY, NONE, NONE], [None, None, None, True]),
        ([NONE, None, NONE, NONE], [None, None, None, True]),
        ([None, None, None], [None, None, None]),
    ],
    ids=["two in a row", "busy between", "unknown between", "never read"],
)
def test_an_engine_is_idle_when_two_scrapes_in_a_row_show_it(
    scrapes: list[DrainState | None], found: list[bool | None]
) -> None:
    probe = IdleProbe(iter(scrapes).__next__)
    assert [probe() for _ in scrapes] == found


def test_unfinished_work_is_written_with_its_units() -> None:
    assert str(BUSY) == "running 1, waiting 0, KV cache 25.00% in use"
