"""What Phasewise makes of a spec: builders return bare manifests, one pass stamps them. Pure; reconcile/apply writes.

children.py lists the children and stamps them all; engine.py and router.py build what belongs to these roles.
"""
