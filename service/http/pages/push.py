"""The page that pushes a folder: its script uploads the files in parts that go on where they ended, then pushes them.

The API takes no cookie, so that it is asked through routes of the page's own, each of which takes the token of its
forms: in the header `soup-form`, where what is sent is no form. They answer programs.
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
    SentDirectory,
)
from registry.names import Digest
from service.http import problems
from service.http.app_parts import AppServices
from service.http.pages import addresses
from service.http.pages.fields import given
from service.http.pages.forms import ENCODED, Form, takes_form, takes_token
from service.http.pages.page import PageRoute, shown
from service.http.requests.body_limits import BodyLimit
from service.http.routes.adapters import push_adapter
from service.http.routes.blobs import head_blob
from service.http.routes.uploads import ContentRange, add_part, finish_upload, list_uploads, open_upload
from service.http.schemas.adapters import Adapter
from service.http.schemas.uploads import NewUpload, Upload
from service.http.schemas.wire import Wire
from service.http.security.auth import Writer
from service.settings import MIB

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
PART_BYTES = 4 * MIB
"""Of one request of the script."""
TEXTS = (CONFIG_FILE, SOUP_FILE, CARD_FILE)
"""Files that travel in the form; their fields are called as they are."""
BLOBS = (WEIGHTS_FILE, SAMPLES_FILE, EMBEDDINGS_FILE)
"""Files that are uploaded before; their fields hold digests."""
LONGEST_TEXT = 256 * 1024
"""Characters of each of TEXTS."""
FOLDER = BodyLimit(lambda _: ENCODED * LONGEST_TEXT)


class PushForm(Wire):
    """What the page begins with, and what its script goes by."""

    object: Literal["push_form"] = "push_form"
    namespaces: list[str] | None
    """Into which the key may push; null for all."""
    base_models: list[str]
    texts: tuple[str, ...] = TEXTS
    blobs: tuple[str, ...] = BLOBS
    part_bytes: int
    longest_text: int = LONGEST_TEXT
    most_bytes: int


class Held(Wire):
    """What the server has of a file: all of it, or an upload of its beginning that can be gone on with."""

    there: bool
    upload: Upload | None


@pages.get(addresses.PUSH + addresses.TWIN)
def push_form(services: AppServices, principal: Writer) -> PushForm:
    """What the page shows."""
    namespaces = None if principal.namespaces is None else list(principal.namespaces)
    return PushForm(
        namespaces=namespaces,
        base_models=sorted(services.bases),
        part_bytes=PART_BYTES,
        most_bytes=services.settings.max_blob_bytes,
    )


@pages.get(addresses.PUSH)
def push_page(request: Request, services: AppServices, principal: Writer) -> Response:
    """The page."""
    return shown(request, "push.html", found=push_form(services, principal))


@pages.get(addresses.PUSH_UPLOADS)
def held(request: Request, services: AppServices, principal: Writer, digest: Annotated[Digest, Query()]) -> Held:
    """What the server has of a file that this key is about to send."""
    try:
        head_blob(request, digest, services, principal)
    except (NotFound, Internal):  # a damaged one is sent again, which repairs it
        found = list_uploads(request, services, principal, digest=digest).data
        return Held(there=False, upload=max(found, key=lambda one: one.offset, default=None))
    return Held(there=True, upload=None)


@pages.post(addresses.PUSH_UPLOADS)
@takes_token
def begin(request: Request, body: NewUpload, services: AppServices, principal: Writer) -> Response:
    """Open an upload in parts."""
    return open_upload(request, services, principal, body)


@pages.patch(addresses.PUSH_UPLOAD)
@takes_token
async def add(
    request: Request, id: str, services: AppServices, principal: Writer, content_range: ContentRange = None
) -> Response:
    """Add a part."""
    return await add_part(request, id, services, principal, content_range)


@pages.put(addresses.PUSH_UPLOAD)
@takes_token
async def finish(request: Request, id: str, services: AppServices, principal: Writer, digest: str) -> Response:
    """Finish an upload: it is the blob of this digest then."""
    return await finish_upload(request, id, services, principal, digest)


@pages.post(addresses.PUSH_MANIFEST)
@takes_form(FOLDER)
def push(request: Request, response: Response, form: Form, services: AppServices, principal: Writer) -> Adapter:
    """Push the folder whose large files were uploaded: 201, or 200 where it is known already."""
    try:
        sent = SentDirectory(
            texts={name: form[name] for name in TEXTS if name in form},
            blobs={name: form[name] for name in BLOBS if name in form},
            name=form.get("name", "").strip(),
            domain=given(form.get("domain")),
            base_model=given(form.get("base_model")),
            owner=given(form.get("owner")),
            tags=tuple(form.get("tags", "").replace(",", " ").split()),
        )
    except ValidationError as error:
        raise problems.from_validation(error.errors()) from None
    long = next((name for name, text in sent.texts.items() if len(text) > LONGEST_TEXT), None)
    if long is not None:
        raise InvalidManifest(
            f"{long} has {len(sent.texts[long])} characters and this page takes {LONGEST_TEXT}: use `soup push`."
        )
    return push_adapter(request, response, sent.manifest(), services, principal)
