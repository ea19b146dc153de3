"""Algorithms, one file each, readable from top to bottom in the order of their paper."""
