"""The router's settings: flags, validated once, with errors that say what to write."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phasewise_runtime.contract import ENV_NAMESPACE, ROUTER_ADMIN_PORT, ROUTER_PORT

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class Settings:
    service: str
    namespace: str
    model_name: str
    host: str = "0.0.0.0"
    port: int = ROUTER_PORT
    admin_port: int = ROUTER_ADMIN_PORT
    max_generation_seconds: float = 600.0
    max_concurrency: int = 512
    queue_size: int = 1024
    hold_seconds: float = 30.0
    settle_seconds: float = 5.0
    connect_seconds: float = 2.0
    prefill_seconds: float = 300.0
    first_token_seconds: float = 300.0
    gap_seconds: float = 120.0
    ttft_target_seconds: float = 0.0
    itl_target_seconds: float = 0.0
    upload_seconds: float = 60.0
    max_body_bytes: int = 4 * 1024 * 1024
    """Parsing one takes up to a second of CPU time (small nested lists), in which no stream gets a token."""
    held_body_bytes: int = 32 * 1024 * 1024
    """Parsed, a body takes up to 24 times its bytes: this many fit in 1 GiB."""
    api_keys_dir: Path | None = None
    static_pods: Path | None = None
    log_level: str = "info"


def parse(argv: Sequence[str] | None = None) -> Settings:
    """Read the flags; exits with status 2 and a message where one is wrong."""
    parser = _parser()
    args = parser.parse_args(argv)
    namespace = args.namespace or os.environ.get(ENV_NAMESPACE) or _namespace_file()
    if not namespace and args.static_pods is None:
        parser.error(f"the namespace is not known: give --namespace, or set {ENV_NAMESPACE}")
    if args.port == args.admin_port and args.port:
        parser.error(f"--port and --admin-port are both {args.port}: give them different numbers")
    if args.held_body_bytes < args.max_body_bytes:
        parser.error(f"--held-body-bytes is less than one body: give {args.max_body_bytes} or more")
    values: dict[str, Any] = vars(args) | {"namespace": namespace or "default"}
    return Settings(**values)


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser("phasewise-router", description="Routes OpenAI requests to prefill and decode pods.")
    d = Settings("", "", "")
    p.add_argument("--service", required=True, type=_text, help="name of the InferenceService")
    p.add_argument("--namespace", default="", help=f"default: {ENV_NAMESPACE}, or the service account's")
    p.add_argument("--model-name", required=True, type=_text, help="model name that clients use")
    p.add_argument("--host", default=d.host, help="address to listen on")
    p.add_argument("--port", type=_port, default=d.port, help="OpenAI API")
    p.add_argument("--admin-port", type=_port, default=d.admin_port, help="probes and metrics")
    seconds = {
        "max-generation-seconds": (d.max_generation_seconds, "longest time a request may take once it is admitted"),
        "hold-seconds": (d.hold_seconds, "longest wait for an engine pod or a free place"),
        "settle-seconds": (d.settle_seconds, "after TERM: go on accepting while endpoints are updated"),
        "connect-seconds": (d.connect_seconds, "longest time to connect to an engine"),
        "prefill-seconds": (d.prefill_seconds, "longest prefill request"),
        "first-token-seconds": (d.first_token_seconds, "longest wait for a decode request's first token"),
        "upload-seconds": (d.upload_seconds, "longest time a request body may take to arrive"),
        "gap-seconds": (d.gap_seconds, "longest silence of an engine between tokens"),
        "ttft-target-seconds": (d.ttft_target_seconds, "target for the time to first token; 0: none"),
        "itl-target-seconds": (d.itl_target_seconds, "target for a request's mean gap between tokens; 0: none"),
    }
    for name, (default, text) in seconds.items():
        p.add_argument(f"--{name}", type=_seconds, default=default, help=f"{text} (default {default:g})")
    p.add_argument("--max-concurrency", type=_at_least(1), default=d.max_concurrency, help="requests served at once")
    p.add_argument("--queue-size", type=_at_least(0), default=d.queue_size, help="requests that may wait")
    p.add_argument("--max-body-bytes", type=_at_least(1), default=d.max_body_bytes, help="largest request body")
    p.add_argument("--held-body-bytes", type=_at_least(1), default=d.held_body_bytes, help="all request bodies at once")
    p.add_argument("--api-keys-dir", type=_directory, help="folder of files, each holding one API key")
    p.add_argument("--static-pods", type=_file, help="JSON file of engine pods, instead of the API server")
    p.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default=d.log_level)
    return p


def _text(value: str) -> str:
    if not value.strip():
        raise argparse.ArgumentTypeError("is empty: give a name")
    return value


def _port(value: str) -> int:
    if not value.isdigit() or not 0 <= int(value) < 65536:
        raise argparse.ArgumentTypeError(f"'{value}' is no port: give a number from 0 to 65535")
    return int(value)


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e7:
        raise argparse.ArgumentTypeError(f"'{value}' is no duration: give seconds, such as 30 or 0.5")
    return seconds


def _at_least(low: int) -> Callable[[str], int]:
    def check(value: str) -> int:
        if not value.isdigit() or int(value) < low:
            raise argparse.ArgumentTypeError(f"'{value}' is out of range: give a whole number, {low} or more")
        return int(value)

    return check


def _directory(value: str) -> Path:
    path = Path(value)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"'{value}' is no folder: mount the secret with the keys there")
    return path


def _file(value: str) -> Path:
    path = Path(value)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"'{value}' is no file: write the list of pods there")
    return path


def _namespace_file() -> str:
    try:
        return NAMESPACE_FILE.read_text().strip()
    except OSError:
        return ""
