"""Sizes of the pools: scrape (I/O) -> signals (pure) -> policy (pure), driven by loop.py (I/O).

Nothing here writes to the cluster: the reconciler reads `Loop.recommendation` and applies it.
"""
