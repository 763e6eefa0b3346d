"""The termination message: the reason first, the error lines, no secret, within the limit."""

from pathlib import Path

import pytest

from phasewise_runtime.engine.termination_message import LIMIT_BYTES, compose, redact, write


def test_the_cause_comes_first_and_then_the_reason_and_the_errors() -> None:
    lines = ["INFO starting", "ERROR out of memory", "INFO closing", "WARNING may give OSError", "ValueError: no room"]
    assert compose("the engine ended", lines).splitlines() == [
        "ValueError: no room; the engine ended",
        "ERROR out of memory",
        "ValueError: no room",
    ]


def test_without_an_error_line_the_last_lines_are_kept() -> None:
    assert compose("killed", ["one", "two"]).splitlines() == ["killed", "one", "two"]


def test_it_fits_and_keeps_reason_and_end() -> None:
    message = compose("because é", [f"ERROR {i} " + "ü" * 400 for i in range(50)])
    assert len(message.encode()) <= LIMIT_BYTES
    assert message.startswith("because é\n…\n")
    assert message.endswith("ü" * 400)
    assert "ERROR 49" in message


def test_a_reason_beyond_the_limit_is_cut() -> None:
    assert len(compose("ä" * 9000, ["ERROR last"]).encode()) <= LIMIT_BYTES


@pytest.mark.parametrize(
    "text",
    [
        "token hf_abcdefgh1234 refused",
        "Authorization: Bearer sesame-open",
        "token='sesame-open', x",
        "api_key: sesame-open",
        "my own: sesame-open",
    ],
)
def test_no_secret_is_written(text: str) -> None:
    said = redact(text, ["sesame-open"])
    assert "***" in said
    assert "sesame" not in said
    assert "abcdefgh" not in said


@pytest.mark.parametrize("before", range(470, 500, 3))
def test_a_secret_is_not_cut_before_it_is_taken_out(before: int) -> None:
    """The cause is cut to a length; what is left of a secret there would not be known as one."""
    line = "ValueError: " + "x" * (before - 13) + " sesame-and-more"
    assert "ses" not in compose("the engine ended", [line], ["sesame-and-more"])


@pytest.mark.parametrize(
    ("secret", "text", "shown"),
    [
        ("x", "the exit code of https://x", "the exit code of https://x"),
        ("code", "exit code 0, encoder; key=code", "exit *** 0, encoder; key=***"),
        ("sesame!", "opensesame! sesame!", "opensesame! ***"),
        ("sesame-open", "xsesame-openx", "x***x"),
    ],
)
def test_a_short_secret_hides_no_parts_of_words(secret: str, text: str, shown: str) -> None:
    assert redact(text, [secret, ""]) == shown


def test_a_count_of_tokens_is_no_secret() -> None:
    assert redact("max_num_batched_tokens=2048 tokens: 3") == "max_num_batched_tokens=2048 tokens: 3"


def test_a_message_that_cannot_be_written_raises_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "absent" / "log", "x")
    assert "cannot write" in capsys.readouterr().out
