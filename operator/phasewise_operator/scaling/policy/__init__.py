"""The decision: signals in, a size and its reason for each pool out. All pure; see decide.py."""
