"""The operator beside a thousand services: a real control plane, nodes and pods that are objects only (kwok), and a
small server that answers at every pod's address. `python -m bench.scale` is the command.
"""
