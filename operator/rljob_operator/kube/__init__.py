"""The API server, as the operator sees it: reads, guarded writes, typed errors.

Inside: `errors`, what the API server refuses, as types; `resources`, which kinds the operator touches; `client`, the
protocol that the rest of the operator is written against, so that tests hand in one of their own; `connection`, where
the server is and how to prove who we are; `http`, the protocol on HTTP; `nesting`, JSON that is nested without end;
`schema`, whether the server's CRD knows all fields that this version writes.

May import: kubernetes.aio (for its configuration alone: its models cost a millisecond per object), aiohttp,
`rljob_operator.settings`, `rljob_operator.metrics`, `rljob_operator.builders.owner`, `rlruntime.spec`,
`rlruntime.errors`. Never kopf, nor anything else of the operator.
"""
