"""End-to-end tools: the local cluster, and what the demo and the end-to-end tests build on."""
