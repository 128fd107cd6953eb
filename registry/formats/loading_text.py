"""Instructions in a README to load an adapter: with PEFT where PEFT knows its kind, else with this package.

Called for the files of a version. The texts are run by tests; nothing that people wrote is in them but names. A name of
this registry is never in a place where a client would look it up on a hub, because anyone may own that name there. So
folders begin with `./`, and base models of a hub have a pinned revision.
"""

from __future__ import annotations

from registry.formats.card import LoadingText
from registry.formats.peft.writing import is_peft_config
from registry.spec import AdapterConfig, BaseShape

PEFT = "peft"
ADAPTERSOUP = "adaptersoup"
_WITH_PEFT = """With PEFT, over its base model, from a folder of these files{beside}:

```python
from peft import PeftModel
from transformers import {auto}

base = {auto}.from_pretrained({base})
model = PeftModel.from_pretrained(base, "./{folder}")
```
"""
_WITH_ADAPTERSOUP = """PEFT does not know this kind of adapter ({method}). With AdapterSoup, over its base model, from a
folder of these files{beside}:

```python
from pathlib import Path

from registry.adapters import attached, from_tensors
from registry.adapters.weights import load_tensors
from registry.base_model import load_base
from registry.formats import read_directory
from registry.spec import BaseEntry

folder = read_directory(Path("{folder}"))
base = load_base(BaseEntry(id="base", source={source}))
adapter = from_tensors(folder.config, base.shape, load_tensors(folder.weights.read_bytes()))
with attached(base.model, adapter):
    logits = base.model(**base.tokenizer("Once upon a time", return_tensors="pt")).logits
```
"""


def library_of(config: AdapterConfig) -> str:
    """The library that loads adapters of a configuration."""
    return PEFT if is_peft_config(config) else ADAPTERSOUP


def loading_text_of(
    config: AdapterConfig, *, name: str, base: str, revision: str | None = None, shape: BaseShape | None = None
) -> LoadingText:
    """Instructions to load an adapter called `name` over the base model that hubs call `base`.

    `revision` is the base model's on its hub; without one `base` is a folder.
    """
    beside = f", beside one of `{base}`" if revision is None else ""
    if not is_peft_config(config):
        source = f'str(Path("{base}").resolve())' if revision is None else f'"{base}", revision="{revision}"'
        text = _WITH_ADAPTERSOUP.format(method=config.method, beside=beside, source=source, folder=name)
        return LoadingText(library=ADAPTERSOUP, text=text)
    auto = "AutoModel" if shape is not None and shape.kind == "encoder" else "AutoModelForCausalLM"
    arguments = f'"./{base}"' if revision is None else f'"{base}", revision="{revision}"'
    return LoadingText(library=PEFT, text=_WITH_PEFT.format(auto=auto, beside=beside, base=arguments, folder=name))
