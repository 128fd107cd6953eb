"""Settings come from the environment, are described, and never break on what an operator types."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError
from pydantic_settings import BaseSettings

from adaptersoup.cli.setting_flags import settings_of
from adaptersoup.vllm.settings import VllmSettings
from registry.errors import InvalidParameter
from service.settings import ClientSettings, Settings
from tests.repository import REPOSITORY


@pytest.fixture(autouse=True)
def _no_settings_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("SOUP_"):
            monkeypatch.delenv(name)


def test_every_field_is_described_and_has_a_default() -> None:
    for model in (Settings, ClientSettings):
        for name, field in model.model_fields.items():
            assert field.description.rstrip()[-1] in ".;", name
            assert not field.is_required(), name


def test_the_environment_is_read_with_the_prefix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOUP_DATA", str(tmp_path))
    monkeypatch.setenv("SOUP_PORT", "9000")
    monkeypatch.setenv("PORT", "1")
    monkeypatch.setenv("SOUP_ALLOWED_HOSTS", "A.example, [::1],")
    settings = Settings()
    assert (settings.port, settings.allowed_hosts) == (9000, ("a.example", "::1"))
    assert settings.admin_key_path == tmp_path / "admin.key"
    assert settings.database == f"sqlite:///{tmp_path.as_posix()}/soup.db"


@pytest.mark.parametrize("seconds", ["inf", "nan", "1e12"])
def test_a_time_that_no_clock_reaches_is_refused(seconds: str) -> None:
    models = (Settings, ClientSettings)
    times = [
        (model, name) for model in models for name, field in model.model_fields.items() if field.annotation is float
    ]
    assert {(Settings, "keep_training_seconds"), (ClientSettings, "timeout")} <= set(times)
    for model, name in times:
        with pytest.raises(ValidationError, match=name):
            model(**{name: seconds})


def test_a_number_that_breaks_what_uses_it_is_refused() -> None:
    sizes = [name for name in Settings.model_fields if "_bytes" in name]
    wrong = {"threads": 1025, "blobs_presigned_seconds": 0.5, **dict.fromkeys(sizes, 10**15 + 1)}
    assert {"max_blob_bytes", "memory_bytes", "max_json_bytes_held"} <= wrong.keys()
    for name, value in wrong.items():
        with pytest.raises(ValidationError, match=f"validation error for Settings\n{name}\n"):
            Settings(**{name: value})


def test_an_empty_variable_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOUP_BASES", "")
    monkeypatch.setenv("SOUP_BOOTSTRAP_KEY", "")
    settings = Settings()
    assert (settings.bases, settings.bootstrap_key) == (None, None)


@pytest.mark.parametrize(
    "url",
    [
        "s3://id:hunter2@bucket/x",
        "s3://bucket?secret=hunter2",
        "s3://bucket/x#hunter2",
        "https://hunter2.example/b",
        "s3://hunter2:9000/b",
        "s3://",
        "hunter2",
        "file://hunter2/x",
        "s3://bucket//hunter2",
        "s3://bucket/../hunter2@",
    ],
)
def test_a_bucket_is_named_without_credentials_and_a_wrong_one_is_not_repeated(url: str) -> None:
    with pytest.raises(InvalidParameter, match="without credentials, port or query") as caught:
        settings_of(Settings, blobs_url=url)
    assert "hunter2" not in caught.value.message


def test_blobs_are_in_a_folder_or_in_a_bucket(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="set SOUP_BLOBS or SOUP_BLOBS_URL, not both"):
        Settings(blobs=tmp_path, blobs_url="s3://bucket")
    assert Settings(data=tmp_path).blob_place.url is None
    place = Settings(data=tmp_path / "data", cache_dir=tmp_path / "cache", blobs_url="gs://bucket/a/b").blob_place
    assert (place.folder, place.cache) == (tmp_path / "data" / "unfinished", tmp_path / "cache" / "blobs")


def test_the_clients_key_comes_from_the_setting_then_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "admin.key").write_text("sk-soup-from-file\n")
    assert ClientSettings(data=tmp_path, key="sk-soup-set").secret() == "sk-soup-set"  # type: ignore[arg-type]
    assert ClientSettings(data=tmp_path, url="http://[::1]:1").secret() == "sk-soup-from-file"
    for url in ("https://example.com", "http://localhost.example.com", "http://127.0.0.1@example.com", "http://[", ""):
        assert ClientSettings(data=tmp_path, url=url).secret() is None
    assert ClientSettings(data=tmp_path).secret() == "sk-soup-from-file"
    assert ClientSettings(data=tmp_path / "nowhere").secret() is None
    (tmp_path / "admin.key").write_bytes(b"\xff\xfe")
    assert ClientSettings(data=tmp_path).secret() is None


# --- the reference page ---------------------------------------------------------------------------


def rows(model: type[BaseSettings]) -> list[str]:
    lines = []
    for name, field in model.model_fields.items():
        default = field.default
        default_text = "" if default is None else ",".join(default) if isinstance(default, tuple) else str(default)
        lines.append(f"| `SOUP_{name.upper()}` | {f'`{default_text}`' if default_text else ''} | {field.description} |")
    return lines


THREADS = """
import sys
from adaptersoup.cli.verbs.serve import run
from service.settings import calm_threads
assert "numpy" not in sys.modules
calm_threads()
import numpy, scipy.linalg, threadpoolctl
print({one["num_threads"] for one in threadpoolctl.threadpool_info() if one["user_api"] == "blas"})
"""


@pytest.mark.slow
@pytest.mark.parametrize(("threads", "expected"), [("", "{1}"), ("2", "{2}")])
def test_numpy_computes_with_one_thread_unless_the_operator_says_otherwise(threads: str, expected: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    if threads:
        environment["OPENBLAS_NUM_THREADS"] = threads
    done = subprocess.run(
        [sys.executable, "-c", THREADS], env=environment, capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert done.stdout.strip() == expected


def test_the_reference_page_lists_every_setting_as_it_is() -> None:
    lines = (REPOSITORY / "docs" / "reference" / "settings.md").read_text().splitlines()
    expected_rows = {row for kind in (Settings, ClientSettings, VllmSettings) for row in rows(kind)}
    for row in expected_rows:
        assert row in lines, f"docs/reference/settings.md lacks this line:\n{row}"
    assert sum(line.startswith("| `SOUP_") for line in lines) == len(expected_rows)


def test_a_secret_is_not_in_what_settings_print() -> None:
    assert "sk-soup" not in repr(Settings(bootstrap_key="sk-soup-secret"))  # type: ignore[arg-type]
