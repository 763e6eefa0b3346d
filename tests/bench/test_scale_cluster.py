"""The control plane of the scale tests is that of e2e but for some steps: `up` calls them in the same way."""

from __future__ import annotations

import inspect

from bench.scale.control_plane import ScaleCluster
from e2e.cluster.local import LocalCluster


def test_steps_that_differ_are_called_as_those_of_the_cluster() -> None:
    base, own = vars(LocalCluster), vars(ScaleCluster)
    shared = [name for name in own if inspect.isfunction(own[name]) and inspect.isfunction(base.get(name))]
    assert "_wait_until_usable" in shared
    for name in shared:
        parameters = [list(inspect.signature(of[name]).parameters) for of in (base, own)]
        assert parameters[0] == parameters[1], name
