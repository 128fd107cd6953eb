"""LoRAs of a real server in a folder for an engine beside it: by digest, whole, compared with what was meant."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from adaptersoup.client.client import SoupClient
from adaptersoup.client.lora_cache import LoraCache
from registry.errors import DigestMismatch, Incompatible, SoupError, Unavailable
from tests.repository import REPOSITORY
from tests.service.lora_pushes import lora_weights, push_lora
from tests.service.servers import BASE_ID, Live

WEIGHTS = "adapter_model.safetensors"


@pytest.fixture(scope="module")
def law(live: Live) -> dict[str, str]:
    """acme/law in two versions; their digests, oldest first, under their refs."""
    rows = [push_lora(live.world, "acme/law", seed=seed) for seed in (1, 2)]
    live.world.push("acme/plain", seed=3)
    return {row["ref"]: row["digest"] for row in rows}


@pytest.fixture
def cache(live: Live, law: dict[str, str], tmp_path: Path) -> Iterator[LoraCache]:
    with SoupClient(live.url, live.world.admin) as client:
        yield LoraCache(client, tmp_path / "cache", base_model=BASE_ID)


def test_a_name_a_version_and_a_digest(live: Live, cache: LoraCache, law: dict[str, str], tmp_path: Path) -> None:
    for ref, digest, seed in (
        ("acme/law", law["acme/law@2"], 2),
        ("acme/law@1", law["acme/law@1"], 1),
        (law["acme/law@1"], law["acme/law@1"], 1),
    ):
        place = cache.directory(ref)
        assert place == tmp_path / "cache" / digest.removeprefix("sha256:")
        assert (place / WEIGHTS).read_bytes() == lora_weights(live.world, seed=seed)
        assert json.loads((place / "adapter_config.json").read_text())["peft_type"] == "LORA"
    assert sorted(one.name for one in (tmp_path / "cache").iterdir()) == sorted(d[7:] for d in law.values())


def test_what_is_there_is_not_fetched_again_and_what_is_damaged_is(
    live: Live, cache: LoraCache, law: dict[str, str]
) -> None:
    place = cache.directory("acme/law@1")
    assert place is not None
    before = (place / WEIGHTS).stat()
    assert cache.directory("acme/law@1") == place
    assert (place / WEIGHTS).stat().st_ino == before.st_ino
    (place / WEIGHTS).write_bytes((place / WEIGHTS).read_bytes()[:-1] + b"\x01")
    assert cache.directory("acme/law@1") == place
    assert (place / WEIGHTS).read_bytes() == lora_weights(live.world, seed=1)
    (place / "adapter_config.json").unlink()
    assert cache.directory("acme/law@1") == place
    assert (place / "adapter_config.json").is_file()


def test_threads_that_ask_at_once_find_it_whole(live: Live, cache: LoraCache) -> None:
    with ThreadPoolExecutor(6) as pool:
        places = list(pool.map(cache.directory, ["acme/law@1", "acme/law@2"] * 3))
    assert len(set(places)) == 2
    for place, seed in zip(places[:2], (1, 2), strict=True):
        assert place is not None
        assert (place / WEIGHTS).read_bytes() == lora_weights(live.world, seed=seed)


@pytest.mark.parametrize(
    "ref", ["acme/gone", "acme/law@9", "sha256:" + "0" * 64, "gpt-4o", "base/tiny", "../../etc/passwd", "a/b/c", ""]
)
def test_what_the_server_does_not_have_is_left_to_others(cache: LoraCache, tmp_path: Path, ref: str) -> None:
    assert cache.directory(ref) is None
    assert not (tmp_path / "cache").exists()


def test_another_kind_and_another_base_are_refused(live: Live, cache: LoraCache, tmp_path: Path) -> None:
    with pytest.raises(Incompatible, match=r"acme/plain@1 is of the kind 'bottleneck'; this engine loads LoRAs that"):
        cache.directory("acme/plain")
    with SoupClient(live.url, live.world.admin) as client:
        other = LoraCache(client, tmp_path / "cache", base_model="large")
        with pytest.raises(Incompatible, match="adapter of base model 'tiny', and this engine serves 'large'"):
            other.directory("acme/law")
    assert not (tmp_path / "cache").exists()


def test_other_bytes_than_were_meant_leave_nothing(
    live: Live, law: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SoupClient(live.url, live.world.admin) as client:
        cache = LoraCache(client, tmp_path / "cache", base_model=BASE_ID)
        listed = [{**file, "digest": "sha256:" + "1" * 64} for file in client.files("acme/law@1")]
        monkeypatch.setattr(client, "files", lambda ref: listed)
        with pytest.raises(DigestMismatch):
            cache.directory("acme/law@1")
        monkeypatch.setattr(client, "files", lambda ref: [])
        with pytest.raises(Unavailable, match=r"offers no adapter_config.json"):
            cache.directory("acme/law@1")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_server_that_does_not_answer_is_no_missing_adapter(tmp_path: Path) -> None:
    with SoupClient("http://127.0.0.1:9", "sk-soup-x", pause=lambda _: None) as client, pytest.raises(SoupError):
        LoraCache(client, tmp_path, base_model=BASE_ID).directory("acme/law")


def test_the_plugin_is_where_vllm_looks() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    module, _, function = project["entry-points"]["vllm.general_plugins"]["adaptersoup"].partition(":")
    source = REPOSITORY.joinpath(*module.split(".")).with_suffix(".py").read_text()
    assert f"def {function}() -> None:" in source
