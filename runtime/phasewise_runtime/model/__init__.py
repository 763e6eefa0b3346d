"""Model weights: where a model URI leads inside an engine pod, and how the engine reaches it."""
