"""Allowlist, loading and fingerprint of base models, on tiny models and without a network."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import httpx2
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.utils import logging

from registry.base_model import load_base, load_text, read_allowlist, shape_of
from registry.base_model.fingerprint import fingerprint
from registry.errors import InvalidParameter, Unavailable
from registry.spec import BaseEntry

COMMIT = "1" * 40


@pytest.fixture
def folder(tiny_base_dir, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(tiny_base_dir, tmp_path / "base")


def entry(folder, **fields):
    return BaseEntry(id="tiny", source=str(folder), **fields)


def allowlist(tmp_path, text):
    path = tmp_path / "bases.toml"
    path.write_text(text)
    return path


# loading beside a text side that is in memory


def test_a_text_side_is_taken_as_long_as_the_files_are_those_it_was_read_from(folder):
    text = load_text(entry(folder))
    assert load_base(entry(folder), text=text).tokenizer is text.tokenizer
    tensors = load_file(folder / "model.safetensors")
    tensors["transformer.ln_f.weight"] += 1
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    changed = load_base(entry(folder), text=text)
    assert changed.tokenizer is not text.tokenizer
    assert changed.shape.fingerprint != text.shape.fingerprint


# allowlist


def test_sources_are_relative_to_the_file(folder, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    path = allowlist(
        tmp_path,
        '[bases.tiny]\nsource = "base"\n[bases.half]\nsource = "./base"\ndtype = "bfloat16"\nbos = false\n'
        f'[bases.absolute]\nsource = "{folder}"\n[bases.hub]\nsource = "openai-community/gpt2"\nrevision = "607a30d"\n',
    )
    entries = read_allowlist(path)
    assert list(entries) == ["tiny", "half", "absolute", "hub"]
    assert {entries[name].source for name in ("tiny", "half", "absolute")} == {str(folder.resolve())}
    assert (entries["half"].dtype, entries["half"].bos, entries["half"].id) == ("bfloat16", False, "half")
    assert (entries["hub"].source, entries["hub"].revision) == ("openai-community/gpt2", "607a30d")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[bases.a", "cannot be read"),
        ("", "at least one"),
        ("[base.a]\nsource='x'", r"\[bases.<id>\]"),
        ("[bases.a]\nsource='base'\n[other]", "nothing else"),
        ("[bases.a]\nsource='base'\n[bases.a]\nsource='base'", "cannot be read"),
        ("bases = 3", "at least one"),
        ("[bases]\na = 3", "a: it is not a table"),
        ("[bases.a]\nrevision='main'", "a: source: Field required"),
        ("[bases.A]\nsource='base'", "A: id"),
        ("[bases.a]\nsource='base'\ndtype='int8'", "a: dtype"),
        ("[bases.a]\nsource='base'\ntrust_remote_code=true", "a: trust_remote_code"),
        ("[bases.a]\nsource='./nowhere'", "is not a folder"),
        ("[bases.a]\nsource='/nowhere/at/all'", "is not a folder"),
        ("[bases.a]\nsource='openai-community/gpt2'", "pinned 'revision'"),
    ],
)
def test_bad_allowlists(folder, tmp_path, text, match):
    with pytest.raises(InvalidParameter, match=match):
        read_allowlist(allowlist(tmp_path, text))


def test_all_problems_of_an_allowlist_at_once(folder, tmp_path):
    with pytest.raises(InvalidParameter) as caught:
        read_allowlist(allowlist(tmp_path, "[bases.a]\nsource='./x'\n[bases.b]\nsource='base'\ndtype='x'\n[bases.c]\n"))
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["a", "b", "c"]
    with pytest.raises(InvalidParameter, match="cannot be read"):
        read_allowlist(tmp_path / "none.toml")


# loading


def test_loaded_base_is_frozen_and_described(folder):
    base = load_base(entry(folder))
    assert not base.model.training
    assert not any(p.requires_grad for p in base.model.parameters())
    assert base.model.dtype == torch.float32
    assert (base.bos_id, base.eos_id) == (0, 0)
    shape = base.shape
    assert (shape.model_type, shape.hidden_size, shape.num_layers) == ("gpt2", 32, 2)
    assert (shape.context, shape.vocab_size, shape.fingerprint) == (64, 300, fingerprint(folder))
    assert shape_of(entry(folder)) == shape


def test_a_configuration_that_changes_has_another_shape_and_a_copy_elsewhere_the_same(folder, tmp_path):
    shape = shape_of(entry(folder))
    shape.linears.clear()  # nobody else's
    copy = shape_of(entry(shutil.copytree(folder, tmp_path / "copy")))
    assert len(copy.linears) > 1
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "n_head": 4, "n_layer": 3}))
    changed = shape_of(entry(folder))
    assert (copy.kv, changed.kv) == ((2, 16), (4, 8))
    assert len(changed.linears) > len(copy.linears)
    assert changed.fingerprint != copy.fingerprint


def test_dtype_changes_the_model_and_not_the_fingerprint(folder):
    base = load_base(entry(folder, dtype="bfloat16"))
    assert base.model.dtype == torch.bfloat16
    assert base.shape.fingerprint == fingerprint(folder)


def test_no_progress_bars_and_their_setting_stays(folder, capfd):
    shown = logging.is_progress_bar_enabled()
    load_base(entry(folder))
    assert logging.is_progress_bar_enabled() == shown
    assert capfd.readouterr().err == ""


def test_tokenize_puts_bos_in_front_as_the_entry_says(folder):
    base, bare = load_base(entry(folder)), load_base(entry(folder, bos=False))
    text = "The quick brown fox: été \N{SNOWMAN}\n\n"
    ids = base.tokenize(text, bos=False)
    assert base.tokenizer.decode(ids) == text
    assert base.tokenize(text) == base.tokenize(text, bos=True) == bare.tokenize(text, bos=True) == [0, *ids]
    assert bare.tokenize(text) == ids
    assert (base.tokenize(""), bare.tokenize("")) == ([0], [])
    assert len(base.tokenize("word " * 500)) > 500  # never truncated to the context


def test_truncation_saved_in_the_tokenizer_does_not_cut_texts(folder):
    file = folder / "tokenizer.json"
    saved = json.loads(file.read_text())
    saved["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    file.write_text(json.dumps(saved))
    assert len(load_base(entry(folder)).tokenize("word " * 50)) > 50


def test_text_that_is_not_unicode_is_refused(folder):
    with pytest.raises(InvalidParameter, match="valid Unicode at character 2"):
        load_base(entry(folder)).tokenize("ab\ud800c")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_missing_files_are_named(folder, name):
    (folder / name).unlink()
    for act in (load_base, shape_of):
        with pytest.raises(Unavailable, match=name):
            act(entry(folder))


def test_pickled_weights_are_not_loaded(folder):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(Unavailable, match=r"model\.safetensors"):
        load_base(entry(folder))


def test_damaged_files(folder):
    good = (folder / "config.json").read_text()
    (folder / "config.json").write_text("{")
    with pytest.raises(Unavailable):
        load_base(entry(folder))
    (folder / "config.json").write_text(json.dumps({"model_type": "no-such-family"}))
    with pytest.raises(Unavailable):
        shape_of(entry(folder))
    (folder / "config.json").write_text(good)
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-10])
    with pytest.raises(Unavailable, match="clean safetensors"):
        load_base(entry(folder))


def test_folder_that_is_gone_and_hub_without_network(tmp_path):
    with pytest.raises(Unavailable, match="is gone"):
        load_base(entry(tmp_path / "none"))
    with pytest.raises(Unavailable, match="not in the local cache"):
        load_base(BaseEntry(id="x", source="nobody/nothing-here", revision="0" * 40))
    with pytest.raises(Unavailable, match="no revision is pinned"):
        load_base(BaseEntry(id="x", source="nobody/nothing-here"))


def test_pinned_hub_revision_is_loaded_from_the_cache(folder, tmp_path, monkeypatch):
    repository = tmp_path / "hub" / "models--someone--tiny"
    shutil.copytree(folder, repository / "snapshots" / COMMIT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    base = load_base(BaseEntry(id="tiny", source="someone/tiny", revision=COMMIT))
    assert base.shape.fingerprint == fingerprint(folder)


@pytest.fixture
def hub(folder, tmp_path, monkeypatch):
    """A hub on this machine with one repository, `someone/tiny`, at one revision: its address is the client's."""
    (folder / "onnx").mkdir()
    for name in ("onnx/model.safetensors", "consolidated.safetensors", "pytorch_model.bin", "modeling_tiny.py"):
        (folder / name).write_bytes(b"not for us")
    asked = []

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.answer(body=False)

        def do_GET(self):
            self.answer(body=True)

        def answer(self, *, body):
            path = urlsplit(self.path).path
            asked.append(path)
            file = folder / path.removeprefix(f"/someone/tiny/resolve/{COMMIT}/")
            if path == f"/api/models/someone/tiny/tree/{COMMIT}":
                files = [file for file in folder.rglob("*") if file.is_file()]
                content = json.dumps(
                    [
                        {"type": "file", "path": str(f.relative_to(folder)), "size": f.stat().st_size, "oid": "1" * 40}
                        for f in files
                    ]
                ).encode()
            elif f"/resolve/{COMMIT}/" in path and file.is_file():
                content = file.read_bytes()
            else:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, *_args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    for name, value in {
        "ENDPOINT": address,
        "HUGGINGFACE_CO_URL_TEMPLATE": address + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "HF_HUB_OFFLINE": False,
    }.items():
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
    yield asked
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_a_hub_repository_is_fetched_once_at_its_pinned_revision_and_only_what_is_needed(hub, folder):
    tiny = BaseEntry(id="tiny", source="someone/tiny", revision=COMMIT)
    assert shape_of(tiny).fingerprint == fingerprint(folder)
    asked = len(hub)
    load_base(tiny)
    assert len(hub) == asked
    got = {path.rpartition(f"/resolve/{COMMIT}/")[2] for path in hub if "/resolve/" in path}
    needed = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert got == needed


def test_a_proxy_in_the_way_of_the_hub(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise httpx2.ProxyError("403 Forbidden")

    monkeypatch.setattr("registry.base_model.loading.snapshot_download", refuse)
    with pytest.raises(Unavailable, match=r"cannot be fetched \(ProxyError\)"):
        load_base(BaseEntry(id="tiny", source="someone/tiny", revision=COMMIT))


@pytest.mark.slow
def test_a_hub_that_lacks_the_revision(hub):
    with pytest.raises(Unavailable, match="cannot be fetched"):
        load_base(BaseEntry(id="tiny", source="someone/tiny", revision="2" * 40))


# fingerprint


def change_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    config.update(changes)
    (folder / "config.json").write_text(json.dumps(config, indent=7))


def test_fingerprint_ignores_where_and_by_what_it_was_saved(folder):
    before = fingerprint(folder)
    change_config(folder, transformers_version="9.9", _name_or_path="/elsewhere")
    weights = load_file(folder / "model.safetensors")
    save_file(dict(reversed(weights.items())), folder / "model.safetensors", metadata={"format": "pt", "by": "us"})
    assert fingerprint(folder) == before


def test_fingerprint_of_a_sharded_model_is_the_same(folder):
    before = fingerprint(folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, some in parts.items():
        save_file({name: weights[name] for name in some}, folder / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: file for file, some in parts.items() for name in some}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert fingerprint(folder) == before
    assert load_base(entry(folder)).shape.fingerprint == before
    (folder / "b.safetensors").unlink()
    with pytest.raises(Unavailable, match=r"b\.safetensors"):
        fingerprint(folder)


def test_fingerprint_changes_with_anything_that_matters(folder):
    seen = [fingerprint(folder)]
    weights = load_file(folder / "model.safetensors")
    name = "transformer.h.1.mlp.c_fc.bias"
    weights[name][0] += 1e-6
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    seen.append(fingerprint(folder))
    save_file({n: t.bfloat16() for n, t in weights.items()}, folder / "model.safetensors")
    seen.append(fingerprint(folder))
    change_config(folder, n_head=4)
    seen.append(fingerprint(folder))
    (folder / "tokenizer.json").write_text((folder / "tokenizer.json").read_text() + "\n")
    seen.append(fingerprint(folder))
    assert len(set(seen)) == 5


def count_computations(monkeypatch):
    module = importlib.import_module("registry.base_model.fingerprint")
    calls, compute = [], module._compute

    def counted(*args):
        calls.append(args)
        return compute(*args)

    monkeypatch.setattr(module, "_compute", counted)
    return calls


def test_cache_is_used_until_size_or_time_of_a_file_changes(folder, tmp_path, monkeypatch):
    calls, cache = count_computations(monkeypatch), tmp_path / "cache" / "deep"
    first = fingerprint(folder, cache_dir=cache)
    assert fingerprint(folder, cache_dir=cache) == first
    assert len(calls) == 1
    assert fingerprint(folder) == first  # without a cache it is computed
    assert len(calls) == 2
    os.utime(folder / "model.safetensors", ns=(1, 1))
    assert fingerprint(folder, cache_dir=cache) == first
    assert len(calls) == 3
    change_config(folder, n_head=4)
    assert fingerprint(folder, cache_dir=cache) != first
    assert len(calls) == 4
    assert not list(cache.glob("*.tmp"))


def test_shape_without_reading_the_weights_once_cached(folder, tmp_path, monkeypatch):
    shape = shape_of(entry(folder), tmp_path / "cache")
    calls = count_computations(monkeypatch)
    assert shape_of(entry(folder), tmp_path / "cache") == shape
    assert load_base(entry(folder), cache_dir=tmp_path / "cache").shape == shape
    assert calls == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"key": "other", "fingerprint": "sha256:0"}'])
def test_a_damaged_cache_is_no_cache(folder, tmp_path, content):
    first = fingerprint(folder, cache_dir=tmp_path / "cache")
    (file,) = (tmp_path / "cache").iterdir()
    file.write_bytes(content)
    assert fingerprint(folder, cache_dir=tmp_path / "cache") == first


def test_a_cache_that_cannot_be_written_costs_time_only(folder, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert fingerprint(folder, cache_dir=tmp_path / "cache") == fingerprint(folder)
