"""PoolScaler of a pool: what an outside autoscaler scales in scaling.mode External. Pure."""

from __future__ import annotations

from phasewise_operator.api.pool import PoolScalerStatus
from phasewise_operator.kinds import POOL_SCALER, Manifest
from phasewise_operator.render.context import Context, selector
from phasewise_operator.render.stamp import stamp


def pool_scaler(ctx: Context, role: str) -> Manifest:
    """All but spec.replicas: that is the autoscaler's. Applied without it, it never becomes ours."""
    spec = {"serviceRef": {"name": ctx.name}, "role": role}
    return stamp(ctx, POOL_SCALER, scaler_name(ctx, role), role, {"spec": spec})


def scaler_name(ctx: Context, role: str) -> str:
    return ctx.child_name(role)


def scaler_status(ctx: Context, role: str, live: Manifest, pods: int) -> Manifest:
    """The status as it is to be applied; `pods`: how many the pool has."""
    labels = ",".join(f"{name}={value}" for name, value in selector(ctx, role).items())
    status = PoolScalerStatus(observed_generation=live["metadata"]["generation"], replicas=pods, selector=labels)
    meta = live["metadata"]
    identity = {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]}
    return {
        "apiVersion": POOL_SCALER.api_version,
        "kind": POOL_SCALER.name,
        "metadata": identity,
        "status": status.to_json(),
    }
