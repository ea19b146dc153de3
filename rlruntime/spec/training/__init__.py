"""`spec.training`: what to run. One frozen model per component, named like the component."""
