"""The estimate of what others' groups do for a node, compared with lone controls."""
