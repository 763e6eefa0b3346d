"""Whose fault each reason is that tells of trouble, and the page in docs/runbooks that says what to do. Pure; imports
nothing.

A new reason is a row in FAULTS and a page of its name; tests hold the reasons, the rows and the pages together.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

FOLDER: Final = "docs/runbooks"


class Fault(StrEnum):
    """Who can end what the reason tells of."""

    SPEC = "the spec"
    CLUSTER = "the cluster"
    ENGINE = "the engine"
    PHASEWISE = "Phasewise"
    NOBODY = "nobody"
    """It is as the spec asks, or passes by itself."""


FAULTS: Final[Mapping[str, Fault]] = {
    "ApplyRefused": Fault.SPEC,
    "AtMaximum": Fault.SPEC,
    "AtMinimum": Fault.SPEC,
    "ChildrenUnknown": Fault.CLUSTER,
    "ContainerFailed": Fault.ENGINE,
    "Contended": Fault.CLUSTER,
    "CreateFailed": Fault.CLUSTER,
    "DeleteRefused": Fault.CLUSTER,
    "EngineFailed": Fault.ENGINE,
    "EngineNotServing": Fault.ENGINE,
    "EnginesKept": Fault.NOBODY,
    "GpuBudget": Fault.SPEC,
    "ImageUnavailable": Fault.SPEC,
    "InternalError": Fault.PHASEWISE,
    "InvalidEngine": Fault.SPEC,
    "InvalidPod": Fault.SPEC,
    "InvalidSpec": Fault.SPEC,
    "KVParametersMissing": Fault.ENGINE,
    "KVPathFailed": Fault.ENGINE,
    "KVTransferFailed": Fault.ENGINE,
    "Manual": Fault.NOBODY,
    "ModelUnavailable": Fault.SPEC,
    "NameConflict": Fault.CLUSTER,
    "NoMaximum": Fault.NOBODY,
    "NoRouter": Fault.NOBODY,
    "NoSignal": Fault.NOBODY,
    "OutOfMemory": Fault.SPEC,
    "Paused": Fault.NOBODY,
    "PodsRefused": Fault.CLUSTER,
    "Progressing": Fault.NOBODY,
    "ReplicasStarting": Fault.NOBODY,
    "RolledBack": Fault.SPEC,
    "RollingOut": Fault.NOBODY,
    "RolloutBlocked": Fault.SPEC,
    "RolloutFailed": Fault.SPEC,
    "ScaledToZero": Fault.NOBODY,
    "SecretNotFound": Fault.CLUSTER,
    "Stale": Fault.CLUSTER,
    "Unreadable": Fault.CLUSTER,
    "Unschedulable": Fault.CLUSTER,
    "VolumeNotMounted": Fault.CLUSTER,
}


def pointer(reason: str) -> str:
    """What a message of that reason ends with; empty where there is no page."""
    fault = FAULTS.get(reason)
    if fault is None:
        return ""
    blame = "" if fault is Fault.NOBODY else f"at fault: {fault}; "
    return f" ({blame}see {FOLDER}/{reason}.md)"


def runbooks_table() -> str:
    """FAULTS as the Markdown table of docs/runbooks/README.md."""
    lines = ["| reason | at fault |", "|---|---|", *(f"| [`{r}`]({r}.md) | {f} |" for r, f in FAULTS.items())]
    return "\n".join(lines) + "\n"
