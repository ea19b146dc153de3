"""Where the operator meets the world: kopf, its connection, the probes, and the process as a whole.

Inside: `login`, the session that kopf makes its requests on, and what is heard on it; `watching`, kopf's settings and
the handlers of its events, which fill the cache and nothing else; `probes`, the web server of `/healthz`, `/readyz` and
`/metrics`; `assembly`, which puts all parts together; `operator`, the process that starts and ends them.

The only place that imports kopf. No handler of it but `on.event`: any other would write annotations or a finalizer.

May import: everything below it in the operator, kopf and aiohttp.
"""
