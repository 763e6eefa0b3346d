"""The runtime: the launcher in each engine pod, and the router. Knows nothing of the operator."""
