"""Where the pages are, as path templates, and what is open to whoever has not signed in.

These paths, and no others, are the pages'. One that ends with `.json` is the same page for programs.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.routing import compile_path

HOME = "/"
SIGN_IN = "/sign-in"
SIGN_OUT = "/sign-in/out"
ASSET = "/assets/{name}"
MODELS = "/models"
BULK = "/models/edit"
MODEL = "/models/{ns}/{name}"
MODEL_CSV = "/models/{ns}/{name}/{table}.csv"
MODEL_SVG = "/models/{ns}/{name}/{plot}.svg"
MODEL_FILE = "/models/{ns}/{name}/files/{file}"
SOUP = "/soups/{ns}/{name}"
SOUP_CSV = "/soups/{ns}/{name}/{table}.csv"
SOUP_SVG = "/soups/{ns}/{name}/{plot}.svg"
PUSH = "/push"
PUSH_UPLOADS = "/push/uploads"
PUSH_UPLOAD = "/push/uploads/{id}"
PUSH_MANIFEST = "/push/manifest"
COOK = "/cook"
JOBS = "/jobs"
JOB = "/jobs/{id}"
JOB_EVENTS = "/jobs/{id}/events"
JOB_CANCEL = "/jobs/{id}/cancel"
JOB_CSV = "/jobs/{id}/{table}.csv"
JOB_SVG = "/jobs/{id}/{plot}.svg"
TRAININGS = "/trainings"
TRAINING = "/trainings/{id}"
TRAINING_CSV = "/trainings/{id}/{table}.csv"
TRAINING_SVG = "/trainings/{id}/{plot}.svg"
SELECTORS = "/selectors"
SELECTOR = "/selectors/{id}"
SELECTOR_CSV = "/selectors/{id}/{table}.csv"
PLAYGROUND = "/playground"
PLAYGROUND_MIX = "/playground/mix"
PLAYGROUND_EVENTS = "/playground/events"
COMPARE = "/compare"
COMPARE_CSV = "/compare/{table}.csv"
COMPARE_SVG = "/compare/plot.svg"
MAP = "/map"
MAP_CSV = "/map/{table}.csv"
MAP_SVG = "/map/plot.svg"
MATRIX = "/matrix"
MATRIX_CSV = "/matrix/{table}.csv"
USAGE = "/usage"
USAGE_SVG = "/usage/plot.svg"
AUDIT = "/audit"
KEYS = "/keys"
KEY_ROTATE = "/keys/{id}/rotate"
KEY_REVOKE = "/keys/{id}/revoke"
ENGINE = "/engine"
ENGINE_CSV = "/engine/{table}.csv"
CSV = ".csv"
SVG = ".svg"
TWIN = ".json"

KEPT = frozenset({COOK})
"""Whose form is filled in again by a script, once whoever sent it without a session has signed in."""
OPEN = frozenset({("GET", SIGN_IN), ("HEAD", SIGN_IN), ("POST", SIGN_IN)})
TEMPLATES = (
    *(HOME, SIGN_IN, SIGN_OUT, ASSET, MODELS, MODELS + TWIN, BULK, BULK + TWIN),
    *(MODEL, MODEL_CSV, MODEL_SVG, MODEL_FILE, SOUP, SOUP_CSV, SOUP_SVG),
    *(PUSH, PUSH + TWIN, PUSH_UPLOADS, PUSH_UPLOAD, PUSH_MANIFEST),
    *(COOK, COOK + TWIN, JOBS, JOBS + TWIN, JOB, JOB_EVENTS, JOB_CANCEL, JOB_CSV, JOB_SVG),
    *(
        TRAININGS,
        TRAININGS + TWIN,
        TRAINING,
        TRAINING_CSV,
        TRAINING_SVG,
        SELECTORS,
        SELECTORS + TWIN,
        SELECTOR,
        SELECTOR_CSV,
    ),
    *(PLAYGROUND, PLAYGROUND + TWIN, PLAYGROUND_EVENTS, PLAYGROUND_MIX),
    *(COMPARE, COMPARE + TWIN, COMPARE_CSV, COMPARE_SVG, MAP, MAP + TWIN, MAP_CSV, MAP_SVG),
    *(MATRIX, MATRIX + TWIN, MATRIX_CSV),
    *(USAGE, USAGE + TWIN, USAGE + CSV, USAGE_SVG, AUDIT, AUDIT + TWIN, AUDIT + CSV, ENGINE, ENGINE + TWIN, ENGINE_CSV),
    *(KEYS, KEYS + TWIN, KEY_ROTATE, KEY_REVOKE),
)
"""`{name}` and `{id}` take endings too: `/models/team/law@2.json`."""
_PATTERNS = [compile_path(one)[0] for one in TEMPLATES]
_ASSETS = compile_path(ASSET)[0]


def is_page(path: str) -> bool:
    """Whether a path is one of the pages'."""
    return any(pattern.match(path) for pattern in _PATTERNS)


def is_for_programs(path: str) -> bool:
    """Whether what is there is read by programs, a page's script too: errors are told as the API tells them."""
    return path.endswith((TWIN, CSV, SVG, "/events")) or path.startswith(f"{PUSH}/")


def is_open(method: str, path: str) -> bool:
    """Whether that is for whoever has not signed in as well."""
    return (method, path) in OPEN or (method in {"GET", "HEAD"} and _ASSETS.match(path) is not None)


def place_of(text: str | None) -> str:
    """Where to go after signing in: a page of ours that was asked for before, else the first one."""
    if not text or len(text) > 2000 or not text.isascii() or not text.isprintable() or "\\" in text:
        return HOME
    try:
        parts = urlsplit(text)
    except ValueError:
        return HOME
    if parts.scheme or parts.netloc or parts.path in {SIGN_IN, SIGN_OUT} or not is_page(parts.path):
        return HOME
    return parts.path + (f"?{parts.query}" if parts.query else "")
