"""For tests that measure CPU time: a heap without what other tests have left in the process."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Generator


@contextlib.contextmanager
def without_other_tests_objects() -> Generator[None]:
    """A garbage collection walks the objects made inside only: a search of hypothesis leaves millions."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
