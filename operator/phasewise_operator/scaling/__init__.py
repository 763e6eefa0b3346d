"""The two scaling loops: scrape (I/O) -> signals (pure) -> policy (pure), driven by loop.py.

The decision is carried out by the reconciler, which asks `loop` what each pool should have: nothing here writes.
"""
