"""A manifest that is nested without end, on a real API server."""

from __future__ import annotations

import json

import pytest
from operator_place import JOBS, Own, Place, job_document

LEVELS = 5000


def create_deep(place: Place) -> None:
    """Create a job whose template is far deeper than any reader of JSON in Python goes."""
    template = {"spec": {"deep": "HERE"}}
    document = job_document("deep", roles=[{"name": "trainer", "type": "Trainer", "template": template}])
    deep = '{"a":' * LEVELS + "1" + "}" * LEVELS
    text = json.dumps({**document, "metadata": {"name": "deep", "namespace": place.namespace}}).replace('"HERE"', deep)
    place.cluster.kubectl("create", "--raw", JOBS.format(place.namespace), "-f", "-", stdin=text)


@pytest.mark.parametrize("moment", ["before it starts", "while it runs"])
def test_a_job_that_is_nested_without_end_fails_and_the_operator_goes_on(own: Own, moment: str) -> None:
    if moment == "before it starts":
        create_deep(own)
    with own.operator() as operator:
        if moment == "while it runs":
            create_deep(own)
        own.create("ppo")
        own.wait_pods("ppo-trainer-0-0")
        operator.kill()
        operator.start()
        operator.wait_ready()
        own.create("second")
        own.wait_pods("ppo-trainer-0-0", "second-trainer-0-0")
        assert "Traceback" not in operator.log
