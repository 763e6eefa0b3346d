"""The vLLM command of every shape of engine pod, and the arguments that a user cannot take over."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.runtime.engine.golden import GOLDEN, POD, command

from phasewise_runtime.engine.arguments import OWNED, check_user_arguments, to_argv
from phasewise_runtime.engine.command import batched_tokens, engine_command, shutdown_timeout, termination_grace_seconds
from phasewise_runtime.engine.config import ArgValue, ConfigError
from phasewise_runtime.model_uri import model_location

DISAGGREGATED = [name for name, config in GOLDEN.items() if config.disaggregated]
CPU = [name for name, config in GOLDEN.items() if config.device == "cpu"]
GPU = [name for name in GOLDEN if name not in CPU]
TINY = GOLDEN["cpu prefill"]


def arguments(name: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in command(GOLDEN[name]).argv[3:])
    return {flag: value for flag, _, value in pairs}


TRANSFER = (
    '{"kv_buffer_device":"cpu","kv_connector":"NixlConnector",'
    '"kv_connector_extra_config":{"kv_lease_duration":30},"kv_role":"kv_producer"}'
)


def test_the_complete_command_of_a_cpu_prefill_pod() -> None:
    made = command(TINY)
    assert made.argv == (
        "python3",
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--disable-access-log-for-endpoints=/health,/metrics",
        "--distributed-executor-backend=uni",
        "--dtype=float32",
        "--enforce-eager",
        "--host=0.0.0.0",
        "--kv-cache-memory-bytes=67108864",
        f"--kv-transfer-config={TRANSFER}",
        "--max-model-len=2048",
        "--model=/opt/models/tiny",
        "--pipeline-parallel-size=1",
        "--port=8000",
        "--served-model-name=tiny",
        "--shutdown-timeout=630",
        "--tensor-parallel-size=1",
    )
    assert made.environment == {
        "HOME": "/scratch",
        "TMPDIR": "/scratch/temporary",
        "XDG_CACHE_HOME": "/scratch/cache",
        "VLLM_CACHE_ROOT": "/scratch/cache/vllm",
        "HF_HOME": "/scratch/huggingface",
        "HF_HUB_OFFLINE": "1",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "75",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "10.0.0.7",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": "5600",
        "VLLM_TARGET_DEVICE": "cpu",
    }
    assert made.defaults == {
        "VLLM_NO_USAGE_STATS": "1",
        "USER": "phasewise",
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "2",
        "UCX_TLS": "tcp,sm,self",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }


@pytest.mark.parametrize("name", DISAGGREGATED)
def test_every_disaggregated_engine_has_its_side_of_the_transfer(name: str) -> None:
    config = GOLDEN[name]
    transfer = json.loads(arguments(name)["--kv-transfer-config"])
    assert transfer["kv_connector"] == "NixlConnector"
    assert transfer["kv_role"] == {"prefill": "kv_producer", "decode": "kv_consumer"}[config.role]
    assert transfer.get("kv_buffer_device") == ("cpu" if config.device == "cpu" else None)
    assert command(config).environment["VLLM_NIXL_SIDE_CHANNEL_HOST"] == POD.ip


@pytest.mark.parametrize("name", [name for name in GOLDEN if name not in DISAGGREGATED])
def test_an_engine_that_does_both_phases_transfers_nothing(name: str) -> None:
    assert "--kv-transfer-config" not in arguments(name)
    assert "VLLM_NIXL_SIDE_CHANNEL_HOST" not in command(GOLDEN[name]).environment


@pytest.mark.parametrize("name", GOLDEN)
def test_parallelism_is_the_pods(name: str) -> None:
    found = arguments(name)
    config = GOLDEN[name]
    assert int(found["--tensor-parallel-size"]) == config.tensor
    assert int(found["--pipeline-parallel-size"]) == config.pipeline


@pytest.mark.parametrize("name", GPU)
def test_a_gpu_pod_has_nothing_of_the_cpus(name: str) -> None:
    made = command(GOLDEN[name])
    assert made.python_path is None
    assert made.defaults == {"VLLM_NO_USAGE_STATS": "1", "USER": "phasewise"}
    assert not {"--enforce-eager", "--kv-cache-memory-bytes"} & arguments(name).keys()


def test_several_workers_on_cpu_are_several_processes() -> None:
    assert arguments("cpu tensor 2")["--distributed-executor-backend"] == "mp"
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in command(GOLDEN["cpu tensor 2"]).defaults


def test_a_repository_is_fetched_into_the_models_volume_at_its_revision() -> None:
    found = arguments("gpu decode")
    assert (found["--model"], found["--revision"]) == ("meta-llama/Llama-3.1-8B-Instruct", "main")
    environment = command(GOLDEN["gpu decode"]).environment
    assert environment["HF_HOME"] == "/models/huggingface"
    assert "HF_HUB_OFFLINE" not in environment


def test_values_become_flags() -> None:
    argv = command(GOLDEN["gpu decode"]).argv
    assert "--enable-prompt-tokens-details" in argv
    assert "--no-enable-prefix-caching" in argv
    assert "--gpu-memory-utilization=0.9" in argv
    place = argv.index("--lora-modules")
    assert argv[place + 1 : place + 3] == ("a=/models/a", "b=/models/b")


def test_the_user_may_replace_a_default() -> None:
    config = replace(GOLDEN["cpu both in one"], args={"max_num_batched_tokens": 333, "enforce-eager": False})
    argv = command(config).argv
    assert "--max-num-batched-tokens=333" in argv
    assert "--no-enforce-eager" in argv


@pytest.mark.parametrize(
    ("itl_ms", "device", "tokens"),
    [
        (1, "gpu", 512),
        (40, "gpu", 1280),
        (100, "gpu", 3072),
        (5000, "gpu", 16384),
        (50, "cpu", 256),
        (900, "cpu", 2048),
    ],
)
def test_the_chunk_of_prefill_fits_into_the_itl_target(itl_ms: float, device: str, tokens: int) -> None:
    assert batched_tokens(itl_ms, device) == tokens


def test_only_an_engine_that_does_both_phases_gets_a_chunk_size() -> None:
    assert arguments("gpu both in one")["--max-num-batched-tokens"] == "1280"
    decode = replace(GOLDEN["gpu decode"], itl_target_ms=40)
    assert not any("max-num-batched-tokens" in part for part in command(decode).argv)


def test_the_engine_may_finish_the_longest_generation_and_then_its_lease() -> None:
    assert shutdown_timeout(replace(TINY, max_generation_seconds=100.5, kv_lease_seconds=20)) == 121


def test_the_pod_is_given_more_time_than_its_parts_take() -> None:
    config = replace(TINY, max_generation_seconds=100, kv_lease_seconds=20, settle_seconds=3)
    assert termination_grace_seconds(config) > 100 + 20 + 3


@pytest.mark.parametrize("name", [*OWNED, "data-parallel-size", "ssl-keyfile"])
@pytest.mark.parametrize(
    "write",
    [
        lambda name: name,
        lambda name: name.replace("-", "_"),
        lambda name: f"no-{name}",
        lambda name: f"{name}.kv_role",
        lambda name: name[: len(name) - 1],
    ],
    ids=["plain", "underscores", "negated", "key of it", "its beginning"],
)
def test_an_argument_that_phasewise_owns_is_refused_in_every_spelling(name: str, write: object) -> None:
    assert callable(write)
    with pytest.raises(ConfigError, match="engine argument"):
        command(replace(TINY, args={str(write(name)): "x"}))


@pytest.mark.parametrize(
    ("args", "instead"),
    [
        ({"kv-transfer-config": "{}"}, "add or leave out spec.prefill"),
        ({"tensor-parallel-size": 2}, "parallelism.tensor"),
        ({"model": "x"}, "spec.model.uri"),
        ({"served-model-name": "x"}, "spec.model.name"),
        ({"shutdown-timeout": 1}, "spec.maxGeneration"),
        ({"hf-token": "x"}, "spec.model.secretRef"),
        ({"data-parallel-size": 2}, "replicas of spec.prefill"),
        ({"--dtype": "auto"}, "without dashes"),
        ({"dtype=auto": True}, "without dashes"),
        ({"lora-modules": ["a=b", "--kv-transfer-config={}"]}, "must not start with a dash"),
        ({"max-model-len": 1, "max_model_len": 2}, "twice"),
    ],
)
def test_a_refusal_says_what_to_do_instead(args: Mapping[str, ArgValue], instead: str) -> None:
    with pytest.raises(ConfigError, match=instead):
        command(replace(TINY, args=args))


def test_the_containers_environment_overrides_defaults_but_not_required_variables() -> None:
    made = engine_command(TINY, model_location(TINY.model_uri), POD)
    merged = made.over({"OMP_NUM_THREADS": "8", "HOME": "/root", "PYTHONPATH": "/site", "KEPT": "1"})
    assert (merged["OMP_NUM_THREADS"], merged["HOME"], merged["KEPT"]) == ("8", "/scratch", "1")
    assert merged["PYTHONPATH"] == f"{POD.plugin_path}:/site"


def test_numbers_in_a_list_and_nested_settings_are_written_as_vllm_reads_them() -> None:
    args = check_user_arguments({"cudagraph-capture-sizes": [1, 2.5, "x"], "speculative-config": {"b": [1], "a": None}})
    assert to_argv(args) == [
        *("--cudagraph-capture-sizes", "1", "2.5", "x"),
        '--speculative-config={"a": null, "b": [1]}',
    ]


def test_a_character_that_ends_an_argument_is_refused_before_an_engine_is_started() -> None:
    for value in ("a\0b", ["a\0b"]):
        with pytest.raises(ConfigError, match="'chat-template': no command line can have a NUL character"):
            check_user_arguments({"chat-template": value})
