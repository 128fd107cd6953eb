"""Path templates of the pages, and which of them need no session.

All pages are listed here. A path that ends with `.json` has the content of its page for programs.
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
JSON = ".json"

REFILLED = frozenset({COOK})
"""Pages whose form is refilled by a script after it was sent without a session and the user has signed in."""
PUBLIC = frozenset({("GET", SIGN_IN), ("HEAD", SIGN_IN), ("POST", SIGN_IN)})
PATH_TEMPLATES = (
    *(HOME, SIGN_IN, SIGN_OUT, ASSET, MODELS, MODELS + JSON, BULK, BULK + JSON),
    *(MODEL, MODEL_CSV, MODEL_SVG, MODEL_FILE, SOUP, SOUP_CSV, SOUP_SVG),
    *(PUSH, PUSH + JSON, PUSH_UPLOADS, PUSH_UPLOAD, PUSH_MANIFEST),
    *(COOK, COOK + JSON, JOBS, JOBS + JSON, JOB, JOB_EVENTS, JOB_CANCEL, JOB_CSV, JOB_SVG),
    *(TRAININGS, TRAININGS + JSON, TRAINING, TRAINING_CSV, TRAINING_SVG),
    *(SELECTORS, SELECTORS + JSON, SELECTOR, SELECTOR_CSV),
    *(PLAYGROUND, PLAYGROUND + JSON, PLAYGROUND_EVENTS, PLAYGROUND_MIX),
    *(COMPARE, COMPARE + JSON, COMPARE_CSV, COMPARE_SVG, MAP, MAP + JSON, MAP_CSV, MAP_SVG),
    *(MATRIX, MATRIX + JSON, MATRIX_CSV),
    *(USAGE, USAGE + JSON, USAGE + CSV, USAGE_SVG, AUDIT, AUDIT + JSON, AUDIT + CSV, ENGINE, ENGINE + JSON, ENGINE_CSV),
    *(KEYS, KEYS + JSON, KEY_ROTATE, KEY_REVOKE),
)
"""`{name}` and `{id}` match suffixes too: `/models/team/law@2.json`."""
_PATTERNS = [compile_path(template)[0] for template in PATH_TEMPLATES]
_ASSETS = compile_path(ASSET)[0]


def is_page(path: str) -> bool:
    """Return True if a path belongs to the pages."""
    return any(pattern.match(path) for pattern in _PATTERNS)


def has_json_errors(path: str) -> bool:
    """Return True if a path is read by programs or by a page's script, which get errors as JSON and not as a page."""
    return path.endswith((JSON, CSV, SVG, "/events")) or path.startswith(f"{PUSH}/")


def is_public(method: str, path: str) -> bool:
    """Return True if a request needs no session."""
    return (method, path) in PUBLIC or (method in {"GET", "HEAD"} and _ASSETS.match(path) is not None)


def path_after_sign_in(target: str | None) -> str:
    """The path and query of `target` if it is a page of this server, else the home page."""
    if not target or len(target) > 2000 or not target.isascii() or not target.isprintable() or "\\" in target:
        return HOME
    try:
        url = urlsplit(target)
    except ValueError:
        return HOME
    if url.scheme or url.netloc or url.path in {SIGN_IN, SIGN_OUT} or not is_page(url.path):
        return HOME
    return url.path + (f"?{url.query}" if url.query else "")
