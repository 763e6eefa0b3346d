"""The condition KVTransferReady: what the routers' tries say of KV transfer, and when that is worth a write. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import datetime, timezone
from typing import Any, Final

from phasewise_operator.api.status import ConditionStatus
from phasewise_operator.kinds import Manifest
from phasewise_operator.observed import Observed
from phasewise_operator.reconcile import runbooks
from phasewise_operator.reconcile.conditions import KV_TRANSFER_READY, ConditionUpdate, Reason
from phasewise_operator.scaling.signals.kv_evidence import FailedPath, KvEvidence
from phasewise_runtime import contract

PARAMS_MISSING: Final = "kv_params_missing"
CAUSES: Final[Mapping[str, str]] = {
    PARAMS_MISSING: "prefill answers without KV parameters",
    "prompt_mismatch": "prefill and decode count different prompt tokens",
    "kv_not_loaded": "decode cannot load the KV",
    "recomputed": "decode computes the prompt again instead of fetching its KV",
    "wrong_answer": "decode answers differently with the KV than without",
    "transfer_timeout": "decode does not get the KV in time",
    "prefill_timeout": "prefill does not answer in time",
    "prefill_failed": "prefill answers with an error",
}
"""The routers' words for why a path fails, as people read them."""
RECOMPUTES: Final = (
    "decode computes the prompts itself: requests succeed, and TTFT is that of a service without prefill"
)
PATHS_NAMED: Final = 3
AGE_SECONDS: Final = 60.0
"""The time of the last proof moves with each request. Alone it is written again when it has moved by so much."""
KNOWN: Final = (
    Reason.TRANSFERRED,
    Reason.KV_PATH_FAILED,
    Reason.KV_TRANSFER_FAILED,
    Reason.KV_PARAMETERS_MISSING,
)
_TIME: Final = re.compile(r"; last proved (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)")


def kv_condition(observed: Observed, evidence: KvEvidence, before: Mapping[str, Any]) -> ConditionUpdate:
    """`before`: the status as it is stored. Only pods that stay count: a path ends with its pods.

    | what the routers saw                                | status  | reason                                     |
    |-----------------------------------------------------|---------|--------------------------------------------|
    | KV flows wherever it was tried                      | True    | Transferred                                |
    | it fails between some pods, and flows between others| False   | KVPathFailed; the service stays Ready      |
    | it flows between none                               | False   | KVParametersMissing where that is why, else|
    |                                                     |         | KVTransferFailed                           |
    | nothing was tried                                   | Unknown | KVUnproved                                 |
    """
    live = {p.name: p.role for p in observed.pods if p.role in contract.ENGINE_ROLES and not p.deleting}
    tried = {name: pod for name, pod in evidence.pods.items() if name in live}
    paths = [path for path in evidence.failed if path.prefill in live and path.decode in live]
    named = {name for path in paths for name in (path.prefill, path.decode)}
    alone = [name for name, pod in sorted(tried.items()) if not pod.flows and name not in named]
    flowing = [name for name, pod in tried.items() if pod.flows]
    proof = _last_proved(evidence, flowing)
    if paths or alone:
        works = _works_in_every_role({live[n] for n in tried}, {live[n] for n in flowing})
        return _failing(paths, alone, evidence, works, proof)
    if flowing:
        text = _flows(evidence, flowing) + proof
        return ConditionUpdate(KV_TRANSFER_READY, ConditionStatus.TRUE, Reason.TRANSFERRED, text)
    routers = evidence.routers
    if (routers.of == 0 or routers.read < routers.of) and (known := _known(before)):
        return known  # an operator that has just begun has not read all routers yet
    text = "no KV has been handed over yet: the routers try each new pair of pods before it takes traffic"
    return ConditionUpdate(KV_TRANSFER_READY, ConditionStatus.UNKNOWN, Reason.KV_UNPROVED, text)


def _works_in_every_role(tried: Collection[str], flowing: Collection[str]) -> bool:
    return bool(flowing) and set(tried) == set(flowing)


def _failing(
    paths: list[FailedPath], alone: list[str], evidence: KvEvidence, works: bool, proof: str
) -> ConditionUpdate:
    failures = [f"from {p.prefill} to {p.decode}: {CAUSES.get(p.reason, p.reason.replace('_', ' '))}" for p in paths]
    failures += [f"between {name} and any other pod" for name in alone]
    more = f", and {len(failures) - PATHS_NAMED} more" if len(failures) > PATHS_NAMED else ""
    extent = f"on {len(paths)} of {evidence.paths} paths, " if paths and evidence.paths else ""
    text = f"KV does not flow {extent}{', '.join(failures[:PATHS_NAMED])}{more}"
    if works:
        text = f"{text}; requests are routed round that, so that KV is passed to decode all the same"
        return ConditionUpdate(KV_TRANSFER_READY, ConditionStatus.FALSE, Reason.KV_PATH_FAILED, text + proof)
    missing = all(path.reason == PARAMS_MISSING for path in paths) if paths else not evidence.proving
    reason = Reason.KV_PARAMETERS_MISSING if missing else Reason.KV_TRANSFER_FAILED
    return ConditionUpdate(KV_TRANSFER_READY, ConditionStatus.FALSE, reason, f"{text}; {RECOMPUTES}{proof}")


def _flows(evidence: KvEvidence, flowing: list[str]) -> str:
    if not evidence.paths:
        return "the last KV transfer of every pod that had one worked"
    untried = evidence.paths - evidence.proved_paths
    text = f"KV flows on {evidence.proved_paths} of {evidence.paths} paths"
    text += f", and {untried} were not used yet" if untried else ""
    moved = [size for name in flowing if (size := evidence.pods[name].canary_bytes) is not None]
    if not moved:
        return text
    return f"{text}; the canary moved {min(moved)} bytes from prefill to decode, and its answer equals decode alone"


def _last_proved(evidence: KvEvidence, pods: list[str]) -> str:
    times = [at for name in pods if (at := evidence.pods[name].proved_at) is not None]
    if not times:
        return ""
    return f"; last proved {datetime.fromtimestamp(max(times), timezone.utc).strftime('%Y-%m-%dT%H:%M:%SZ')}"


def _known(before: Mapping[str, Any]) -> ConditionUpdate | None:
    """What routers have said earlier."""
    found = (c for c in before.get("conditions", []) if c["type"] == KV_TRANSFER_READY and c["reason"] in KNOWN)
    known = next(found, None)
    if known is None:
        return None
    status, reason = ConditionStatus(known["status"]), known["reason"]
    message = known["message"].removesuffix(runbooks.pointer(reason))
    return ConditionUpdate(KV_TRANSFER_READY, status, reason, message, provisional=True)


# --- what is worth a write ------------------------------------------------------------------------------------------


def without_time(message: str) -> str:
    return _TIME.sub("", message)


def is_older(before: Manifest, after: Manifest) -> bool:
    """Whether the time of the last proof in the status `before` is out of date."""
    old, new = _proved_at(before), _proved_at(after)
    return old is not None and new is not None and (new - old).total_seconds() >= AGE_SECONDS


def _proved_at(status: Manifest) -> datetime | None:
    messages = (c["message"] for c in status.get("conditions", []) if c["type"] == KV_TRANSFER_READY)
    found = _TIME.search(next(messages, ""))
    return datetime.fromisoformat(found[1]) if found else None
