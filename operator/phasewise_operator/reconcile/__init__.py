"""From a service's key to its children, status and Events: worker.py takes the key, reconciler.py makes a pass."""
