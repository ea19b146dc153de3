"""Collectors: they step environments with a policy and fill rollouts.

May import policies, transforms, environments, losses, metrics and the spec; never trainers or the command line.
"""
