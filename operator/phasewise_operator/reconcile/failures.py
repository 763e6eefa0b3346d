"""Children that could not be written or deleted: in the words of the user's spec, and when each is tried again.

What is remembered between passes only spares calls: a new operator begins without it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from phasewise_operator.kinds import DEPLOYMENT, Manifest
from phasewise_operator.kube_errors import KubeError
from phasewise_operator.observed import Failure
from phasewise_operator.reconcile.conditions import Reason
from phasewise_operator.store import Key
from phasewise_runtime import contract

WRITE_FAILED: Final = "WriteFailed"
"""It may pass: the API server is busy, or a webhook does not answer."""
NAMESPACE_ENDS: Final = "NamespaceTerminating"
FIRST_SECONDS: Final = 0.2
LONGEST_SECONDS: Final = 30.0
"""A refusal may end without a change that a watch shows: a quota is raised, a webhook comes back."""
_LONGEST_PROGRESS_SECONDS: Final = 2.0
"""For what is about to pass, such as the collection of a deleted service's children."""
_TYPED: Final = re.compile(r"^failed to create typed patch object \([^)]*\): (?:errors:\s*)?")
_GO_VALUE: Final = re.compile(r"&value\.valueUnstructured\{Value:(.*?)\}(?=$|\n)")
_TEMPLATE: Final = re.compile(r"(?<![\w.\]])\.?spec\.template\.(?=spec|metadata)")
_PULL_SECRETS: Final = re.compile(r"spec\.\w+\.template\.spec\.imagePullSecrets\b")

Ref = tuple[str, str]
"""Kind and name of a child."""


def failure(manifest: Manifest, reason: str, error: KubeError) -> Failure:
    """Of a write or a deletion that the API server answered with an error."""
    text = _in_terms_of_the_spec(manifest, error.message) if error.invalid else str(error)
    return Failure(manifest["kind"], manifest["metadata"]["name"], reason, text, error.invalid)


def _in_terms_of_the_spec(manifest: Manifest, message: str) -> str:
    """Fields of a Deployment's pod template as the user writes them, without the API server's own words around them."""
    text = _GO_VALUE.sub(r"\1", _TYPED.sub("", message))
    text = "; ".join(line.strip() for line in text.splitlines() if line.strip())
    if manifest["kind"] != DEPLOYMENT.name:
        return text
    role = manifest["metadata"].get("labels", {}).get(contract.LABEL_ROLE, "")
    return _PULL_SECRETS.sub("spec.imagePullSecrets", _TEMPLATE.sub(f"spec.{role}.template.", text))


@dataclass(frozen=True)
class _Attempts:
    intent: str
    """What was tried: another intent is tried at once."""
    failure: Failure
    count: int
    due: float


@dataclass(frozen=True)
class Retries:
    """When what failed is tried again. Passes until then, such as that after the operator's own write of the status,
    report the failure as it was: a message that differs with each try would otherwise bring about the next try."""

    clock: Callable[[], float] = time.monotonic
    attempts: dict[Key, dict[Ref, _Attempts]] = field(default_factory=dict[Key, dict[Ref, _Attempts]])

    def held_back(self, key: Key, manifest: Manifest) -> Failure | None:
        """The failure of a child that is not to be tried again yet."""
        known = self.attempts.get(key, {}).get(_ref(manifest))
        too_soon = known is not None and known.intent == _intent(manifest) and self.clock() < known.due
        return known.failure if known is not None and too_soon else None

    def failed(self, key: Key, manifest: Manifest, failed: Failure) -> Failure:
        """Remember a failure; returns it with the number of failures in a row."""
        known = self.attempts.get(key, {}).get(_ref(manifest))
        count = known.count + 1 if known is not None and known.intent == _intent(manifest) else 1
        numbered = replace(failed, count=count)
        longest = _LONGEST_PROGRESS_SECONDS if failed.reason == Reason.PROGRESSING else LONGEST_SECONDS
        pause = min(FIRST_SECONDS * 2 ** min(count - 1, 20), longest)
        attempt = _Attempts(_intent(manifest), numbered, count, self.clock() + pause)
        self.attempts.setdefault(key, {})[_ref(manifest)] = attempt
        return numbered

    def forget(self, key: Key, manifest: Manifest) -> None:
        """It is not tried any more: a try that is due would bring about pass after pass."""
        self.attempts.get(key, {}).pop(_ref(manifest), None)

    def keep(self, key: Key, failures: Iterable[Failure]) -> None:
        """Forget what does not fail any more."""
        failing = {(f.kind, f.name) for f in failures}
        kept = {ref: attempt for ref, attempt in self.attempts.pop(key, {}).items() if ref in failing}
        if kept:
            self.attempts[key] = kept

    def due_in(self, key: Key) -> float | None:
        """Seconds until the next try; None: nothing is to be tried again."""
        times = [attempt.due for attempt in self.attempts.get(key, {}).values()]
        return max(0.0, min(times) - self.clock()) if times else None


def _ref(manifest: Manifest) -> Ref:
    return (manifest["kind"], manifest["metadata"]["name"])


def _intent(manifest: Manifest) -> str:
    """Of a child that is to be written the hash of what it should be, of a live one that is to be deleted its uid."""
    meta = manifest["metadata"]
    return str(meta.get("uid") or meta.get("annotations", {}).get(contract.ANNOTATION_INTENT, ""))
