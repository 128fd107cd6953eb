"""How the shipped adapters were made: `python -m demo.recipe --corpora DIR` makes them and their text again.

Eight domains whose text may be passed on, and a control on textbook prose that is none of them, each an adapter of
Bapna and Firat (2019) from one initialisation, trained by `soup train sweep`. Text that is shipped is cut to short
passages, so that a slow machine embeds and scores it in a minute.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from demo.job import NOVEL_SAMPLE, TRAINING_SAMPLE
from demo.passages import shorten
from demo.prepare import CONTROL, DOMAINS, MODELS
from demo.progress import Talk
from demo.server import SOUP, DemoFailed
from demo.smollm2 import BASE_ID, NAME, prepare
from registry.adapters.weights import load_tensors, save_tensors
from registry.formats import AdapterContents, read_directory, write_directory
from registry.spec import Card
from training.data import read_texts

LICENSES: Mapping[str, str] = {
    "biomed_papers": "CC BY: open-access articles of BMC and PLoS",
    "classic_novels": "public domain in the USA; Standard Ebooks' production CC0",
    "dc_law": "public domain: law of the District of Columbia",
    "king_james_bible": "public domain in the USA",
    "nih_health_qa": "CC BY 4.0: MedQuAD, from web sites of the NIH",
    "python_peps": "public domain or CC0, as each PEP states",
    "rust_rfcs": "Apache-2.0 or MIT, the Rust project's contributors",
    "state_of_the_union": "public domain, works of the US government",
    CONTROL: "CC BY 4.0: OpenStax, Introduction to Philosophy and Introduction to Political Science",
}
NOVEL: Mapping[str, str] = {
    "book_of_mormon": "public domain",
    "fairy_tales": "public domain; collected in FairytaleQA (Apache-2.0)",
    "swift_evolution": "Apache-2.0, the Swift project's authors",
}
TRAIN_CHARACTERS, VALID_CHARACTERS = 900_000, 20_000
TEST_PASSAGES = 40
SHORT, MEDIUM = 300, 400
"""Characters of a shipped passage: a training domain's sample, and a novel domain's."""
RECIPE = {
    "--structure": "bapna_firat", "--bottleneck": "8", "--init-seed": "1234", "--seed": "0", "--lr": "2e-3",
    "--steps": "50", "--batch": "4", "--block": "256", "--warmup": "0.06", "--dtype": "bfloat16",
    "--evaluations": "2", "--sample": "200",
}  # fmt: skip


def drawn(texts: Sequence[str], characters: int) -> list[str]:
    """Passages in a drawn order, until they hold so many characters."""
    found: list[str] = []
    held = 0
    for text in random.Random(0).sample(list(texts), len(texts)):
        if held >= characters:
            break
        found.append(text)
        held += len(text)
    return found


def write_texts(corpora: Path, folder: Path) -> None:
    """The texts the adapters are trained on, as `soup train sweep` reads them: one folder a domain."""
    for domain in LICENSES:
        if domain == CONTROL:
            source = corpora / "novel" / "openstax_textbooks"
            test = read_texts(source / "test.jsonl.gz")
            train, valid = [*read_texts(source / "valid.jsonl.gz"), *test[40:]], test[:40]
        else:
            train, valid = (read_texts(corpora / "train" / domain / f"{part}.jsonl.gz") for part in ("train", "valid"))
        _write(folder / domain / "train.jsonl", drawn(train, TRAIN_CHARACTERS))
        _write(folder / domain / "valid.jsonl", drawn(valid, VALID_CHARACTERS))


def write_novel(corpora: Path, folder: Path) -> None:
    """The novel domains' text: what soups are cooked from, and what they are scored on."""
    for domain in NOVEL:
        for part, count in (("valid", NOVEL_SAMPLE), ("test", TEST_PASSAGES)):
            texts = random.Random(0).sample(read_texts(corpora / "novel" / domain / f"{part}.jsonl.gz"), count)
            _write(folder / domain / f"{part}.jsonl", [shorten(text, MEDIUM) for text in texts])


def _write(path: Path, texts: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    path.write_text(lines, encoding="utf-8")


def ship(trained: Path, domain: str, target: Path) -> None:
    """One trained adapter as it is shipped: bf16, with a sample of short passages; the control's has none."""
    (source,) = trained.glob(f"{domain}-lr*-seed*")
    found = read_directory(source)
    tensors = load_tensors(found.weights.read_bytes())
    assert found.sample is not None
    texts = None if domain == CONTROL else [shorten(text, SHORT) for text in read_texts(found.sample)[:TRAINING_SAMPLE]]
    write_directory(
        target / domain,
        AdapterContents(
            config=found.config,
            domain=domain,
            weights=save_tensors({name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}),
            base_model=BASE_ID,
            base_fingerprint=found.base_fingerprint,
            provenance=found.provenance,
            texts=texts,
            card=Card(
                description=f"Trained on {NAME} by `python -m demo.recipe`; weights rounded to bf16.",
                license=LICENSES[domain],
            ),
        ),
        replace=True,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m demo.recipe`: train the shipped adapters again (half an hour) and write them with their text."""
    parser = argparse.ArgumentParser(prog="python -m demo.recipe", description=main.__doc__)
    parser.add_argument("--corpora", type=Path, required=True, help="folder with train/<domain> and novel/<domain>")
    parser.add_argument("--work", type=Path, default=Path(".demo/recipe"), help="texts and trainings; resumable")
    parser.add_argument("--out", type=Path, default=DOMAINS)
    options = parser.parse_args(arguments)
    try:
        base = prepare(MODELS, Talk(1))
    except DemoFailed as problem:
        parser.exit(1, f"error: {problem}\n")
    write_texts(options.corpora, options.work / "texts")
    domains = [str(options.work / "texts" / domain) for domain in LICENSES]
    flags = [part for pair in RECIPE.items() for part in pair]
    command = [
        *SOUP, "train", "sweep", *domains, "--base-folder", str(base), *flags, "--out", str(options.work / "adapters"),
    ]  # fmt: skip
    subprocess.run(command, check=True)
    for part in ("adapters", "novel"):
        shutil.rmtree(options.out / part, ignore_errors=True)
    for domain in LICENSES:
        ship(options.work / "adapters", domain, options.out / "adapters")
    write_novel(options.corpora, options.out / "novel")


if __name__ == "__main__":
    main()
