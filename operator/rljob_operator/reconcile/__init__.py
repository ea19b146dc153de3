"""From what happens on the API server to a plan, and from a plan to what is written.

Inside: `views`, an object trimmed to what the rules read; `cache`, what is known of all jobs and pods; `queue`, which
job is looked at when; `memory`, what is known of a job that stands in no object; `status`, the difference between two
statuses; `execute`, the writes of a plan in their order; `verdicts`, what dry runs said; `events`, `progress` and
`inspect`, which no pass waits for; `reconciler`, one pass over one job; `watches` and `resync`, whether the cache can
be trusted; `leadership`, which of several operators acts.

May import: `rljob_operator.planner`, `rljob_operator.kube`, `rljob_operator.builders`, `rljob_operator.metrics`,
`rljob_operator.settings`, `rlruntime.spec`, `rlruntime.errors`, aiohttp (in `progress` alone). Never kopf, which only
feeds the cache; never a clock but the one that is handed in.
"""
