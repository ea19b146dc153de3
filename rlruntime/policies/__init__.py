"""Policies: networks, action distributions, critics, gradients, and a trained policy's life without its trainer.

May import transforms, environments' spaces, losses and the spec; never collectors, trainers or the command line.
Acting needs nothing above this package: `artifact.py` reads a run folder with no trainer in sight.
"""
