"""Commands about jobs on a cluster: `rljob top`, `logs`, `suspend` and `resume`, which are `kubectl rlj` as well.

Inside: where the API server is and who we are (`connection`), requests and watches (`api`, `watching`, `finding`),
jobs and pods as these commands read them (`jobs`, `pods`), the table of jobs (`table`, `frame`, `screen`), logs
(`log_lines`, `log_streams`, `log_reader`), and the commands themselves (`top`, `logs`, `suspension`). They ask the API
server alone, with the rights of whoever calls them.

May import the extra `rljob[cluster]`: kubernetes.aio (for its configuration alone: its models cost a millisecond per
object), aiohttp and rich. The modules of the commands and `options` import them in their handlers, so that
`rljob --help` needs none of it. Never the operator.
"""
