"""`/v1/trainings`: train an adapter on uploaded data, as a job that pushes what comes of it."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from service.http.answers.jobs import requested_job_body
from service.http.app_services import AppServices
from service.http.requests.bodies import CheckedRoute
from service.http.schemas.jobs import Job
from service.http.security.auth import Writer
from service.jobs.training_requests import submit
from training.request import TrainingRequest

router = APIRouter(prefix="/v1/trainings", tags=["trainings"], route_class=CheckedRoute)


@router.post("", status_code=202)
def start_training(
    request: Request, response: Response, body: TrainingRequest, services: AppServices, principal: Writer
) -> Job:
    """Train an adapter and push it: 202 and the job, which is followed and cancelled as every job.

    A request like one that is queued or running gives that job. One that was cancelled, or whose server was killed,
    continues from what it saved; one that succeeded gives what it pushed.
    """
    row = submit(services, principal, body, request_id=request.state.request_id)
    services.jobs.wake()
    response.headers["location"] = f"/v1/jobs/{row.id}"
    return requested_job_body(row, principal)
