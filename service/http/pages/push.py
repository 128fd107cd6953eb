"""The page that pushes a folder: its script uploads the large files, resumably, and then pushes the folder.

The API accepts no cookies, so the script calls routes of the page, which check the token of the page's forms, in the
header `soup-form` for requests without a form. Their errors are JSON.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError

from registry.errors import Internal, InvalidManifest, NotFound
from registry.formats import (
    CARD_FILE,
    CONFIG_FILE,
    EMBEDDINGS_FILE,
    SAMPLES_FILE,
    SOUP_FILE,
    WEIGHTS_FILE,
    UploadedDirectory,
)
from registry.names import Digest
from service.http import problems
from service.http.app_services import AppServices
from service.http.pages.forms import BYTES_PER_CHARACTER, Form, takes_form, takes_token, text_or_none
from service.http.pages.page import PageRoute, render_page
from service.http.requests.body_limits import BodyLimit
from service.http.routes.adapters import push_adapter
from service.http.routes.blobs import ContentRange, add_part, finish_upload, head_blob, list_uploads, open_upload
from service.http.schemas.adapters import Adapter
from service.http.schemas.blobs import NewUpload, Upload
from service.http.schemas.wire import Wire
from service.http.security.auth import Writer
from service.settings.limits import MIB

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
PART_BYTES = 4 * MIB
"""Bytes of one request of the script."""
TEXT_FILES = (CONFIG_FILE, SOUP_FILE, CARD_FILE)
"""Files whose text is in the form, in fields with their names."""
BLOB_FILES = (WEIGHTS_FILE, SAMPLES_FILE, EMBEDDINGS_FILE)
"""Files that are uploaded before; their digests are in fields with their names."""
MAX_TEXT_LENGTH = 256 * 1024
"""Characters of each text file."""
FOLDER = BodyLimit(lambda _: BYTES_PER_CHARACTER * MAX_TEXT_LENGTH)


class PushForm(Wire):
    """The values that the page and its script need."""

    object: Literal["push_form"] = "push_form"
    namespaces: list[str] | None
    """The namespaces that the key may push to; null for all."""
    base_models: list[str]
    texts: tuple[str, ...] = TEXT_FILES
    blobs: tuple[str, ...] = BLOB_FILES
    part_bytes: int
    longest_text: int = MAX_TEXT_LENGTH
    most_bytes: int


class FileState(Wire):
    """The state of a file on the server: stored, or partly uploaded."""

    there: bool
    upload: Upload | None


@pages.get("/push.json")
def push_form(services: AppServices, principal: Writer) -> PushForm:
    """The content of the page."""
    return PushForm(
        namespaces=None if principal.namespaces is None else list(principal.namespaces),
        base_models=sorted(services.bases),
        part_bytes=PART_BYTES,
        most_bytes=services.settings.max_blob_bytes,
    )


@pages.get("/push")
def push_page(request: Request, services: AppServices, principal: Writer) -> Response:
    """The page."""
    return render_page(request, "push.html", choices=push_form(services, principal))


@pages.get("/push/uploads")
def file_state(
    request: Request, services: AppServices, principal: Writer, digest: Annotated[Digest, Query()]
) -> FileState:
    """The state of a file that the script is about to upload, with the upload to resume if there is one."""
    try:
        head_blob(request, digest, services, principal)
    except (NotFound, Internal):  # a damaged file is sent again, which repairs it
        uploads = list_uploads(services, principal, digest=digest).data
        return FileState(there=False, upload=max(uploads, key=lambda upload: upload.offset, default=None))
    return FileState(there=True, upload=None)


@pages.post("/push/uploads")
@takes_token
def begin(body: NewUpload, services: AppServices, principal: Writer) -> Response:
    """Open an upload."""
    return open_upload(services, principal, body)


@pages.patch("/push/uploads/{id}")
@takes_token
async def add(
    request: Request, id: str, services: AppServices, principal: Writer, content_range: ContentRange = None
) -> Response:
    """Add a part to an upload."""
    return await add_part(request, id, services, principal, content_range)


@pages.put("/push/uploads/{id}")
@takes_token
async def finish(request: Request, id: str, services: AppServices, principal: Writer, digest: str) -> Response:
    """Finish an upload, which is stored as the blob of this digest."""
    return await finish_upload(request, id, services, principal, digest)


@pages.post("/push/manifest")
@takes_form(FOLDER)
def push(response: Response, form: Form, services: AppServices, principal: Writer) -> Adapter:
    """Push the folder whose large files were uploaded: 201, or 200 if the adapter exists already."""
    try:
        directory = UploadedDirectory(
            texts={name: form[name] for name in TEXT_FILES if name in form},
            blobs={name: form[name] for name in BLOB_FILES if name in form},
            name=form.get("name", "").strip(),
            domain=text_or_none(form.get("domain")),
            base_model=text_or_none(form.get("base_model")),
            owner=text_or_none(form.get("owner")),
            tags=tuple(form.get("tags", "").replace(",", " ").split()),
        )
    except ValidationError as error:
        raise problems.from_validation(error.errors()) from None
    for name, text in directory.texts.items():
        if len(text) > MAX_TEXT_LENGTH:
            raise InvalidManifest(
                f"{name} has {len(text)} characters and this page takes {MAX_TEXT_LENGTH}: use `soup push`."
            )
    return push_adapter(response, directory.manifest(), services, principal)
