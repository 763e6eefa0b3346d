"""One pass over one service: observe (I/O) -> plan (pure) -> apply (I/O) -> report (pure). See controller.py."""
