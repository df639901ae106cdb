"""Requests to the model of a Ray dashboard: method, path and body in, status and document out.

Both faces of the model use this module: ``sweep.serveclient`` in process, ``fakes.serve_http`` over HTTP.
"""

from typing import Any

from octavo_testing.operator.sweep.jobs import Job, Jobs
from octavo_testing.operator.sweep.ray import Ray, ServeError

RAY_VERSION = "2.60.0"
Answer = tuple[int, Any]
"""Status, and a document or a text."""


def handle(ray: Ray, method: str, path: str, body: Any, *, token: str | None, version: str = RAY_VERSION) -> Answer:
    """Answer a request with ``token``. The status is 0 if the model gives no answer."""
    if ray.token is not None and ray.token != token:
        return 401, "Unauthorized: Missing authentication token"
    try:
        match method, path:
            case "GET", "/api/version":
                return 200, {"version": "4", "ray_version": version, "ray_commit": "", "session": ""}
            case "GET", "/api/serve/applications/":
                ray.advance()
                return 200, ray.get()
            case "PUT", "/api/serve/applications/":
                counts = [one.get("num_replicas", 1) for item in body["applications"] for one in item["deployments"]]
                if any(count < 0 for count in counts):
                    return 400, "1 validation error for ServeDeploySchema"
                ray.put(body)
                return 200, ""
            case _ if path.startswith("/api/jobs/"):
                return _jobs(ray.jobs, method, path.removeprefix("/api/jobs/"), body)
            case "DELETE", _:
                raise AssertionError("DELETE would shut Serve down for everyone")
    except ServeError as error:
        return error.code, str(error)
    return 404, "404: Not Found"


def _jobs(jobs: Jobs, method: str, path: str, body: Any) -> Answer:
    name, _, verb = path.partition("/")
    if method == "POST" and not path:
        # For a used id Ray's agent answers 400, which the head turns into an error of its own.
        taken = jobs.submit(body["submission_id"], body["entrypoint"])
        return (200, {"submission_id": body["submission_id"]}) if taken else (500, "")
    if method == "GET" and not path:
        return 200, [*(_shown(name, jobs.find(name)) for name in list(jobs.known)), {"type": "DRIVER"}]
    job = jobs.find(name)
    if job is None:
        return 404, f"Job {name} does not exist"
    match method, verb:
        case "GET", "":
            return 200, _shown(name, job)
        case "POST", "stop":
            return 200, {"stopped": jobs.stop(name)}
        case "DELETE", "":
            return (200, {"deleted": True}) if jobs.delete(name) else (500, "Traceback")
    return 405, ""


def _shown(name: str, job: Job | None) -> dict[str, Any]:
    assert job is not None
    shown = {"status": job.status, "driver_exit_code": job.exit_code, "message": job.message}
    return {"type": "SUBMISSION", "submission_id": name, **shown}
