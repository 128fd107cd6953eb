"""`/v1/trainings`: train an adapter on uploaded data, in a job that pushes it."""

from __future__ import annotations

from fastapi import APIRouter, Response

from service.http.answers.jobs import requested_job_body
from service.http.app_services import AppServices
from service.http.requests.bodies import CheckedRoute
from service.http.schemas.jobs import Job
from service.http.security.auth import Writer
from service.jobs.training_requests import submit
from training.request import TrainingRequest

router = APIRouter(prefix="/v1/trainings", tags=["trainings"], route_class=CheckedRoute)


@router.post("", status_code=202)
def start_training(response: Response, body: TrainingRequest, services: AppServices, principal: Writer) -> Job:
    """Queue a job that trains an adapter and pushes it; returns 202 and the job.

    A request equal to that of a queued or running job returns that job. A training that was cancelled, or whose server
    was killed, resumes from its checkpoint. If a quota refused its push, the equal request pushes the trained adapter
    without another training. If an equal training succeeded, the job returns the adapter that it pushed.
    """
    row = submit(services, principal, body)
    services.jobs.wake()
    response.headers["location"] = f"/v1/jobs/{row.id}"
    return requested_job_body(row, principal)
