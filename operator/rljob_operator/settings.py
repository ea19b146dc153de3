"""How the operator behaves: what its command line chooses, and what is fixed with a reason."""

from __future__ import annotations

from dataclasses import dataclass

from rlruntime import __version__

DEFAULT_IMAGE = f"rljob-runtime:{__version__}"
DEFAULT_METRICS_PORT = 9401
DEFAULT_WORKERS = 16
DEFAULT_LEASE_S = 15


@dataclass(frozen=True)
class Options:
    """What the command line chooses."""

    namespaces: tuple[str, ...] = ()
    """Namespaces whose jobs are acted on; empty: all."""
    image: str = DEFAULT_IMAGE
    """Image of a role for which the manifest names none."""
    workers: int = DEFAULT_WORKERS
    """Jobs that are worked on at the same time."""
    metrics_host: str = "0.0.0.0"
    metrics_port: int = DEFAULT_METRICS_PORT
    """Serves `/metrics`, `/healthz` and `/readyz`. 0: a free one, which is logged."""
    lease: tuple[str, str] | None = None
    """Namespace and name of a Lease: the process acts while it holds that. None: always."""
    lease_s: int = DEFAULT_LEASE_S
    """For how long whoever holds the Lease may be silent before another one takes it."""
    dry_run: bool = False
    """Plans are logged, and nothing is written."""
    kubeconfig: str | None = None
    """None: the service account of the pod, else `KUBECONFIG`, else `~/.kube/config`."""
    context: str | None = None
    """Of the kubeconfig; None: its current one."""


@dataclass(frozen=True)
class Timing:
    """All durations, in seconds. Tests shorten some of them."""

    request_timeout_s: float = 10.0
    """Of one request to the API server."""
    pass_timeout_s: float = 30.0
    """Of one pass over a job, all its requests included."""
    start_timeout_s: float = 60.0
    """Until the API server must have answered once."""
    stop_timeout_s: float = 4.0
    """Until everything must have ended after a signal."""
    watch_silence_s: float = 150.0
    """Without an event or a bookmark, after which the process calls itself unhealthy. Bookmarks come every 60 s."""
    resync_s: float = 300.0
    """Between two comparisons of the cache with the API server; varied by a fifth."""
    list_retry_s: float = 5.0
    """Until a list that failed is tried again."""
    watch_lag_s: float = 2.0
    """How far a watch may be behind a list without having missed anything."""
    pod_events_hold_s: float = 0.05
    """What happens to the pods of a job within this time makes one pass."""
    counts_hold_s: float = 1.0
    counts_hold_max_s: float = 10.0
    """A status that differs in counts alone waits so long, so that n pods that become ready make one write: a second,
    and more where everything takes longer, since a write of the status costs the API server more than one of a pod."""
    progress_write_s: float = 15.0
    """Between two writes of a status that differs in progress or in the words of conditions alone."""
    progress_poll_s: float = 15.0
    """Between two questions to a trainer; varied by a fifth."""
    event_repeat_s: float = 600.0
    """The same event about a job isn't written again within this time."""
    event_hold_max_s: float = 20.0
    """Events are held back while jobs wait to be worked on, at most so long."""
    create_retry_min_s: float = 1.0
    create_retry_max_s: float = 60.0
    """Creations that were refused are tried again after 1, 2, 4, ... seconds."""
    error_retry_min_s: float = 0.2
    error_retry_max_s: float = 60.0
    """A pass that failed is tried again after 0.2, 0.4, ... seconds, varied by a half."""
    inspect_min_s: float = 30.0
    inspect_max_s: float = 600.0
    """The Events of a pod that is creating for long are listed again after 30, 60, ... seconds."""
    inspect_rest_max_s: float = 5.0
    """Longest rest between two such lists, of whatever pods: one that gets no answer must not hold up all others."""
    verdict_s: float = 300.0
    """For how long a dry run's verdict is taken for another job's pod that differs in names alone."""


CONNECTIONS = 16
"""Requests to the API server at a time. With more of them a small server creates pods sooner than it can have them
scheduled and run, its watches fall behind, and all of it takes longer."""
LIST_CHUNK = 500
"""Objects of one page of a list."""
CREATES_AT_ONCE = 16
"""Objects of one job that are created at a time."""
