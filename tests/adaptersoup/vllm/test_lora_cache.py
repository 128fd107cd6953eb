"""Adapters of a real server in a folder for an engine beside it: by digest, whole, compared with what was meant."""

from __future__ import annotations

import base64
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx2
import pytest

from adaptersoup.client.answers import Json
from adaptersoup.client.client import SoupClient
from adaptersoup.vllm import lora_cache
from adaptersoup.vllm.lora_cache import LoraCache
from adaptersoup.vllm.lora_files import ARCHITECTURES, lora_files
from registry.adapters import STRUCTURES
from registry.adapters.lora_ranks import uniform
from registry.adapters.weights import load_tensors, save_tensors
from registry.errors import DigestMismatch, Incompatible, SoupError, Unavailable
from registry.names import sha256_digest
from registry.spec import (
    AdapterConfig,
    BankConfig,
    BaseEntry,
    FusionConfig,
    HeadConfig,
    LoraConfig,
    PrefixConfig,
    UnionConfig,
)
from tests.registry.pruned_adapters import sparse
from tests.registry.random_adapters import drawn
from tests.repository import REPOSITORY
from tests.service.lora_pushes import CONFIG as LORA_CONFIG
from tests.service.lora_pushes import UNIFORM, lora_weights, push_lora
from tests.service.scripted_server import Server, ok
from tests.service.servers import BASE_ID, CONFIG, Live, adapter_weights, open_live, open_world, write_bases

WEIGHTS = "adapter_model.safetensors"
LORA = LoraConfig.model_validate(LORA_CONFIG)
OTHERS: dict[str, AdapterConfig] = {
    "prefix": PrefixConfig(length=3),
    "head": HeadConfig(task="classification", labels=("no", "yes")),
    "union": UnionConfig(members=(PrefixConfig(length=3), CONFIG)),
    "fusion": FusionConfig(member=CONFIG, members=2),
    "adamix": BankConfig(expert=CONFIG, experts=2),
}
"""Configurations by method, for all methods that vLLM does not load."""


@pytest.fixture(scope="module")
def law(live: Live) -> dict[str, str]:
    """acme/law in two versions; their digests, oldest first, under their refs."""
    rows = [push_lora(live.world, "acme/law", seed=seed, config=UNIFORM) for seed in (1, 2)]
    live.world.push("acme/plain", seed=3)
    return {row["ref"]: row["digest"] for row in rows}


@pytest.fixture(scope="module")
def llama(base_entry: Callable[[str], BaseEntry], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with the bottleneck acme/plain of a tiny Llama."""
    folder = tmp_path_factory.mktemp("llama")
    bases = write_bases(folder / "bases.toml", {BASE_ID: Path(base_entry("llama").source)})
    for world in open_world(folder / "data", bases):
        world.push("acme/plain", seed=3)
        yield from open_live(world)


def bottleneck_cache(client: SoupClient, folder: Path) -> LoraCache:
    return LoraCache(client, folder, base_model=BASE_ID, kinds=("bapna_firat_relu", "pfeiffer_relu"))


@pytest.fixture
def cache(live: Live, law: dict[str, str], tmp_path: Path) -> Iterator[LoraCache]:
    with SoupClient(live.url, live.world.admin) as client:
        yield LoraCache(client, tmp_path / "cache", base_model=BASE_ID)


def directory(cache: LoraCache, ref: str) -> Path | None:
    """The directory that vLLM loads for a ref."""
    lora = cache.lora(ref)
    return None if lora is None else lora.directory


def test_a_name_a_version_and_a_digest(live: Live, cache: LoraCache, law: dict[str, str], tmp_path: Path) -> None:
    for ref, digest, seed in (
        ("acme/law", law["acme/law@2"], 2),
        ("acme/law@1", law["acme/law@1"], 1),
        (law["acme/law@1"], law["acme/law@1"], 1),
    ):
        assert cache.digest(ref) == digest
        place = directory(cache, ref)
        assert place == tmp_path / "cache" / digest.removeprefix("sha256:")
        assert (place / WEIGHTS).read_bytes() == lora_weights(live.world, seed=seed, config=UNIFORM)
        assert json.loads((place / "adapter_config.json").read_text())["peft_type"] == "LORA"
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == sorted(d[7:] for d in law.values())


@pytest.mark.parametrize("digest", ["sha256:../notes", "sha256:{folder}/notes", "../notes", ""])
def test_a_digest_of_the_server_that_is_a_path_deletes_nothing(tmp_path: Path, digest: str) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    fingerprint, data = f"sha256:{1:064x}", b"{}"
    row = {"ref": "team/law@1", "digest": digest.format(folder=tmp_path), "base_model": BASE_ID, "config": LORA_CONFIG}
    server = Server().on("GET /v1/adapters/team/law", ok({**row, "base_fingerprint": fingerprint}))
    server.on(f"GET /v1/models/{BASE_ID}", ok({"fingerprint": fingerprint}))
    names = ("adapter_config.json", WEIGHTS)
    files = [{"name": name, "digest": sha256_digest(data)} for name in names]
    server.on("GET /v1/adapters/team/law@1/files", ok({"data": files}))
    for name in names:
        server.on(f"GET /v1/adapters/team/law@1/files/{name}", httpx2.Response(200, content=data))
    cache = LoraCache(server.client(), tmp_path / "cache", base_model=BASE_ID)
    for read in (cache.lora, cache.digest):
        with pytest.raises(Unavailable, match="invalid digest"):
            read("team/law")
    assert (tmp_path / "notes" / "mine.txt").read_text() == "mine"


def test_what_is_there_is_not_fetched_again_and_what_is_damaged_is(
    live: Live, cache: LoraCache, law: dict[str, str]
) -> None:
    place = directory(cache, "acme/law@1")
    old_stat = (place / WEIGHTS).stat()
    assert directory(cache, "acme/law@1") == place
    assert (place / WEIGHTS).stat().st_ino == old_stat.st_ino
    (place / WEIGHTS).write_bytes((place / WEIGHTS).read_bytes()[:-1] + b"\x01")
    assert directory(cache, "acme/law@1") == place
    assert (place / WEIGHTS).read_bytes() == lora_weights(live.world, seed=1, config=UNIFORM)
    (place / "adapter_config.json").unlink()
    assert directory(cache, "acme/law@1") == place
    assert (place / "adapter_config.json").is_file()


def test_a_directory_that_another_engine_has_placed_meanwhile_stays(
    live: Live, cache: LoraCache, law: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    download = SoupClient.download
    weights = tmp_path / "cache" / law["acme/law@1"].removeprefix("sha256:") / WEIGHTS
    inodes: list[int] = []
    with SoupClient(live.url, live.world.admin) as client:
        second_cache = LoraCache(client, tmp_path / "cache", base_model=BASE_ID)

        def overtaken(self: SoupClient, ref: str, *arguments: Any, **options: Any) -> Any:
            if self is not client and not inodes:
                second_cache.lora(ref)
                inodes.append(weights.stat().st_ino)
            return download(self, ref, *arguments, **options)

        monkeypatch.setattr(SoupClient, "download", overtaken)
        cache.lora("acme/law@1")
    assert [weights.stat().st_ino] == inodes


def test_threads_that_ask_at_once_find_it_whole(live: Live, cache: LoraCache) -> None:
    with ThreadPoolExecutor(6) as pool:
        places = list(pool.map(partial(directory, cache), ["acme/law@1", "acme/law@2"] * 3))
    assert len(set(places)) == 2
    for place, seed in zip(places[:2], (1, 2), strict=True):
        assert (place / WEIGHTS).read_bytes() == lora_weights(live.world, seed=seed, config=UNIFORM)


@pytest.mark.parametrize(
    "ref", ["acme/gone", "acme/law@9", "sha256:" + "0" * 64, "gpt-4o", "base/tiny", "../../etc/passwd", "a/b/c", ""]
)
def test_what_the_server_does_not_have_is_left_to_others(cache: LoraCache, tmp_path: Path, ref: str) -> None:
    assert (cache.lora(ref), cache.digest(ref)) == (None, None)
    assert not (tmp_path / "cache").exists()


def test_another_kind_and_another_base_are_refused(live: Live, cache: LoraCache, tmp_path: Path) -> None:
    with pytest.raises(Incompatible, match="'pfeiffer_relu'; this engine serves none: start it with SOUP_VLLM_BO"):
        cache.lora("acme/plain")
    with SoupClient(live.url, live.world.admin) as client:
        large_cache = LoraCache(client, tmp_path / "cache", base_model="large")
        with pytest.raises(Incompatible, match="adapter of base model 'tiny', and this engine serves 'large'"):
            large_cache.lora("acme/law")
    assert not (tmp_path / "cache").exists()


def test_an_adapter_of_another_state_of_the_base_model_is_refused(
    cache: LoraCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced = {"id": BASE_ID, "fingerprint": "sha256:" + "2" * 64}
    monkeypatch.setattr(SoupClient, "base_model", lambda *_: replaced)
    with pytest.raises(Incompatible, match=r"acme/law@2 was made for another state .* and not sha256:222222222222\)"):
        cache.lora("acme/law")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("method", sorted(STRUCTURES.keys() - {"bottleneck", "lora"}))
def test_every_method_but_bottlenecks_and_loras_is_refused(
    live: Live, cache: LoraCache, tmp_path: Path, method: str
) -> None:
    config = OTHERS[method]
    weights = save_tensors(drawn(config, live.world.runtime.bases[BASE_ID].shape))
    files = {WEIGHTS: {"base64": base64.b64encode(weights).decode()}}
    live.world.push(f"acme/{method}", config=config.model_dump(mode="json"), files=files)
    with pytest.raises(Incompatible, match=f"'{method}'; this engine loads bottlenecks, and LoRAs that are not pruned"):
        cache.lora(f"acme/{method}")
    assert not (tmp_path / "cache").exists()


def test_a_pruned_lora_is_refused(live: Live, cache: LoraCache) -> None:
    config, tensors = sparse(LORA, 1, tensors=drawn(LORA, live.world.runtime.bases[BASE_ID].shape))
    files = {WEIGHTS: {"base64": base64.b64encode(save_tensors(tensors)).decode()}}
    live.world.push("acme/sparse", config=config.model_dump(mode="json"), files=files)
    with pytest.raises(Incompatible, match="'pruned lora'; this engine loads bottlenecks"):
        cache.lora("acme/sparse")


def test_other_bytes_than_were_meant_leave_nothing(
    cache: LoraCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = SoupClient.files
    changed = {"digest": "sha256:" + "1" * 64}
    monkeypatch.setattr(SoupClient, "files", lambda *of: [file | changed for file in files(*of)])
    with pytest.raises(DigestMismatch):
        cache.lora("acme/law@1")
    monkeypatch.setattr(SoupClient, "files", lambda *_: [])
    with pytest.raises(Unavailable, match=r"offers no adapter_config.json"):
        cache.lora("acme/law@1")
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_adapter_that_is_purged_while_it_is_read_is_missing(
    live: Live, cache: LoraCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push_lora(live.world, "acme/going", seed=5)
    live_files = SoupClient.files

    def purging(client: SoupClient, ref: str) -> list[Json]:
        live.world.client.delete("/v1/adapters/acme/going@1")
        assert client.purge("acme/going@1")["adapter"]["ref"] == ref
        return live_files(client, ref)

    monkeypatch.setattr(SoupClient, "files", purging)
    assert cache.lora("acme/going") is None
    assert not (tmp_path / "cache").exists()


def test_a_server_that_does_not_answer_is_no_missing_adapter(tmp_path: Path) -> None:
    with SoupClient("http://127.0.0.1:9", "sk-soup-x", pause=lambda _: None) as client, pytest.raises(SoupError):
        LoraCache(client, tmp_path, base_model=BASE_ID).lora("acme/law")


@pytest.mark.slow
def test_a_bottleneck_is_written_as_a_lora_beside_its_own_files(llama: Live, tmp_path: Path) -> None:
    with SoupClient(llama.url, llama.world.admin) as client:
        cache = bottleneck_cache(client, tmp_path)
        place = directory(cache, "acme/plain")
        assert place == tmp_path / f"{str(cache.digest('acme/plain'))[7:]}-lora"
        config = json.loads((place / "adapter_config.json").read_text())
        assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 5, 5)
        weights = lora_files(CONFIG, adapter_weights(llama.world.runtime, seed=3), "llama")[WEIGHTS]
        assert (place / WEIGHTS).read_bytes() == weights
        written = (place / WEIGHTS).stat().st_ino
        assert directory(cache, "acme/plain") == place
        assert (place / WEIGHTS).stat().st_ino == written
        for opened_cache in (cache, bottleneck_cache(client, tmp_path)):
            (place / WEIGHTS).write_bytes(weights[:-1] + b"\x01")
            assert directory(opened_cache, "acme/plain") == place
            assert (place / WEIGHTS).read_bytes() == weights


def test_a_lora_of_several_ranks_is_written_with_one_rank_and_one_scale(
    live: Live, cache: LoraCache, tmp_path: Path
) -> None:
    """vLLM reads the rank and alpha of all modules from `r` and `lora_alpha`, and ignores the patterns silently."""
    push_lora(live.world, "acme/mixed", seed=4)
    place = directory(cache, "acme/mixed")
    assert place == tmp_path / "cache" / f"{str(cache.digest('acme/mixed'))[7:]}-lora"
    config = json.loads((place / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["rank_pattern"], config["alpha_pattern"]) == (3, 3, {}, {})
    _, expected = uniform(LORA, load_tensors(lora_weights(live.world, seed=4)))
    assert (place / WEIGHTS).read_bytes() == save_tensors(expected)


@pytest.mark.slow
def test_the_lora_of_a_bottleneck_is_computed_once(
    llama: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = Mock(wraps=lora_files)
    monkeypatch.setattr(lora_cache, "lora_files", computed)
    with SoupClient(llama.url, llama.world.admin) as client:
        cache = bottleneck_cache(client, tmp_path)
        assert directory(cache, "acme/plain") == directory(cache, "acme/plain@1") is not None
    assert [call.args[2] for call in computed.call_args_list] == ["llama"]


def test_every_family_has_a_model_with_layers() -> None:
    source = (REPOSITORY / "adaptersoup" / "vllm" / "models.py").read_text()
    assert re.findall(r"^class (\w+)WithBottlenecks", source, re.MULTILINE) == list(ARCHITECTURES.values())


@pytest.mark.parametrize("group", ["vllm.general_plugins", "vllm.endpoint_plugins"])
def test_the_plugin_is_where_vllm_looks(group: str) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"][group]["adaptersoup"].partition(":")
    source = REPOSITORY.joinpath(*module.split(".")).with_suffix(".py").read_text()
    assert re.search(rf"^(def|class) {name}\b", source, re.MULTILINE)
