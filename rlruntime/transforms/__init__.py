"""Transforms between environments and policy, vectorised over copies and steps.

May import environments' spaces, losses, metrics and the spec; never policies, collectors or trainers.
"""
