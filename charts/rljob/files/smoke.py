"""What `helm test` runs: make a small RLJob, see it succeed, and take it away again. The standard library alone."""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request

ACCOUNT = os.environ.get("ACCOUNT_FOLDER", "/var/run/secrets/kubernetes.io/serviceaccount")
NAME, NAMESPACE = os.environ["JOB_NAME"], os.environ["JOB_NAMESPACE"]
DEADLINE = time.monotonic() + float(os.environ["TIMEOUT_SECONDS"])
HOST, PORT = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
SERVER = f"https://[{HOST}]:{PORT}" if ":" in HOST else f"https://{HOST}:{PORT}"
JOBS = f"{SERVER}/apis/rljob.io/v1alpha1/namespaces/{NAMESPACE}/rljobs"
TLS = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")


def ask(method: str, url: str, body: object = None) -> dict:
    """Return the API server's answer; an empty one where there is no such object. What passes is tried again."""
    with open(f"{ACCOUNT}/token") as file:
        headers = {"Authorization": f"Bearer {file.read().strip()}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode() if body else None, headers, method=method)
    while True:
        try:
            with urllib.request.urlopen(request, timeout=10, context=TLS) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == (409 if method == "POST" else 404):  # 409: it was made, and the answer got lost
                return {}
            words = error.read().decode()
            if error.code in (401, 403, 404, 429) or error.code >= 500:  # rights that were just given take a moment
                last = f"{error.code} {words}"
            else:
                sys.exit(f"{method} {url}: {error.code} {words}")
        except OSError as error:
            last = str(error)
        if time.monotonic() > DEADLINE:
            sys.exit(f"{method} {url}: {last}")
        time.sleep(1)


def remove() -> None:
    """Delete the job, and wait until it has gone."""
    ask("DELETE", f"{JOBS}/{NAME}")
    while ask("GET", f"{JOBS}/{NAME}"):
        if time.monotonic() > DEADLINE:
            sys.exit(f"RLJob {NAMESPACE}/{NAME} can't be deleted")
        time.sleep(1)


def wait_end() -> dict:
    """Show what becomes of the job until it has ended, and return its status."""
    shown = ""
    while True:
        status = ask("GET", f"{JOBS}/{NAME}").get("status", {})
        waits = next((item for item in status.get("conditions", []) if item["type"] == "PodsReady"), {})
        words = f"{status.get('phase', 'not seen by the operator yet')} {status.get('reason', '')}".strip()
        line = f"RLJob {NAMESPACE}/{NAME}: {words}: {status.get('message') or waits.get('message', '')}".rstrip(": ")
        if line != shown:
            shown = line
            print(line, flush=True)
        if status.get("phase") in ("Succeeded", "Failed"):
            return status
        if time.monotonic() > DEADLINE:
            print(json.dumps(status, indent=2))
            sys.exit(f"RLJob {NAMESPACE}/{NAME} has not ended in {os.environ['TIMEOUT_SECONDS']} seconds")
        time.sleep(1)


remove()
metadata = {"name": NAME, "namespace": NAMESPACE}
spec = json.loads(os.environ["JOB_SPEC"])
ask("POST", JOBS, {"apiVersion": "rljob.io/v1alpha1", "kind": "RLJob", "metadata": metadata, "spec": spec})
status = wait_end()
if status["phase"] == "Failed":
    sys.exit(f"RLJob {NAMESPACE}/{NAME} has failed; it is left for you to look at")
print(f"It trained {status.get('progress', {}).get('frames')} frames.")
remove()
