"""Which line of an engine's output names the cause of its failure."""

from __future__ import annotations

import pytest

from phasewise_runtime.engine.failure_cause import failure_cause, names_a_cause, refused_arguments

UNKNOWN_ARGUMENT = """\
INFO 11-22 15:40:01 [importing.py:44] Triton is not installed
usage: api_server.py [-h] [--headless] [--api-server-count API_SERVER_COUNT]
                     [--config CONFIG] [--grpc]
api_server.py: error: unrecognized arguments: --foo""".splitlines()
REFUSED_VALUE = """\
(APIServer pid=7) INFO 11-22 15:40:01 [utils.py:233] non-default args: {'max_model_len': 999999}
(APIServer pid=7) Traceback (most recent call last):
(APIServer pid=7)   File "<frozen runpy>", line 198, in _run_module_as_main
(APIServer pid=7) pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
(APIServer pid=7)   Value error, User-specified max_model_len (999999) is greater than the derived one. \
[type=value_error, input_value=ArgsKwargs((), {'model': ...}), input_type=ArgsKwargs]
(APIServer pid=7)     For further information visit https://errors.pydantic.dev/2.12/v/value_error""".splitlines()
HUB_IS_AWAY = [
    *REFUSED_VALUE[:-2],
    "(APIServer pid=7)   Value error, Invalid repository ID or local directory specified: 'org/llama'.",
]
DIED_WHILE_SERVING = """\
(APIServer pid=7) INFO:     10.0.0.1:4 - "POST /v1/chat/completions HTTP/1.1" 200 OK
(EngineCore pid=21) ERROR 11-22 15:48:05 [core.py:1104] EngineCore encountered a fatal error.
(EngineCore pid=21) ERROR 11-22 15:48:05 [core.py:1104] Traceback (most recent call last):
(EngineCore pid=21) ERROR 11-22 15:48:05 [core.py:1104]     gen.set_offset(gen.get_offset() - 4)
(EngineCore pid=21) ERROR 11-22 15:48:05 [core.py:1104] RuntimeError: CPU Generator does not use offset
(EngineCore pid=21) Process EngineCore:
(EngineCore pid=21) Traceback (most recent call last):
(EngineCore pid=21) RuntimeError: CPU Generator does not use offset
(APIServer pid=7) ERROR 11-22 15:48:05 [async_llm.py:704] AsyncLLM output_handler failed.
(APIServer pid=7) ERROR 11-22 15:48:05 [async_llm.py:704] vllm.v1.engine.exceptions.EngineDeadError: EngineCore \
encountered an issue. See stack trace (above) for the root cause.
(APIServer pid=7) ValueError: the response has begun
(APIServer pid=7) INFO:     Shutting down""".splitlines()
DIED_AT_START = """\
(EngineCore pid=21) ERROR 11-22 15:48:05 [core.py:950] ValueError: No available memory for the cache blocks.
(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
(APIServer pid=7) INFO bye""".splitlines()


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        pytest.param(UNKNOWN_ARGUMENT, "unrecognized arguments: --foo", id="argparse"),
        pytest.param(
            REFUSED_VALUE,
            "ValidationError: 1 validation error for ModelConfig "
            "Value error, User-specified max_model_len (999999) is greater than the derived one.",
            id="pydantic",
        ),
        pytest.param(DIED_WHILE_SERVING, "RuntimeError: CPU Generator does not use offset", id="while serving"),
        pytest.param(DIED_AT_START, "ValueError: No available memory for the cache blocks.", id="at its start"),
        pytest.param(
            DIED_AT_START[1:],
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
            id="only a line that refers to another",
        ),
        pytest.param(
            [*DIED_AT_START, "(EngineCore pid=21) asyncio.exceptions.CancelledError"],
            "ValueError: No available memory for the cache blocks.",
            id="what was cancelled failed for another cause",
        ),
        pytest.param(["torch.OutOfMemoryError: 2 GiB", "bye"], "torch.OutOfMemoryError: 2 GiB", id="a module"),
        pytest.param(["WARNING 11-22 15:48:05 [x.py:1] OSError: retried", "INFO x"], "", id="a warning is no cause"),
        pytest.param(["Killed"], "", id="nothing"),
    ],
)
def test_the_line_that_names_the_cause(lines: list[str], cause: str) -> None:
    assert failure_cause(lines) == cause


@pytest.mark.parametrize(
    ("lines", "refused"),
    [
        pytest.param(UNKNOWN_ARGUMENT, True, id="argparse"),
        pytest.param(REFUSED_VALUE, True, id="pydantic"),
        pytest.param(HUB_IS_AWAY, False, id="a model hub that does not answer"),
        pytest.param(DIED_AT_START, False, id="too little memory, which another pod may free"),
    ],
)
def test_arguments_are_refused_where_the_engine_would_refuse_them_again(lines: list[str], refused: bool) -> None:
    assert bool(refused_arguments(lines)) is refused


def test_a_line_that_refers_to_another_names_no_cause() -> None:
    assert [line for line in DIED_WHILE_SERVING if names_a_cause(line)] == [
        DIED_WHILE_SERVING[4],
        DIED_WHILE_SERVING[7],
        DIED_WHILE_SERVING[10],
    ]
