"""The manifest: its models, its reader, its checks, and what is generated from them.

Inside: one frozen pydantic model per part of an `RLJob`, the YAML reader with the API server's scalar rules,
overrides, and the renderers of the CRD, of JSON Schema and of the reference page. It is all that the operator may
import of the runtime.

May import: pydantic, PyYAML, `rlruntime.errors` and the standard library. Never torch, numpy, gymnasium or any other
package of the runtime: `rljob validate` works on a base install and starts at once.
"""
