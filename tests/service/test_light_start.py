"""The start of a server without what it never uses: in processes of their own, since an import cannot be unlearnt."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from registry.base_model import load_base
from registry.likelihood import score_windows
from registry.spec import BaseEntry
from service.light_start import LIGHTLY

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def run(program: str, *arguments: object) -> str:
    """What a Python program prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *map(str, arguments)],
        cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


SCORE = """
import sys
from service.light_start import light_start
with light_start(): pass
from pathlib import Path
from registry.base_model import load_base
from registry.likelihood import score_windows
from registry.spec import BaseEntry
import service.http.app
base = load_base(BaseEntry(id="tiny", source=sys.argv[1]))
scores = score_windows(base.model, [[0, 5, 7], [0, 9]], max_tokens=9, pad_id=0)
print(base.shape.model_dump_json(), [score.hex() for score in scores])
heavy = {"torch._dynamo.convert_frame", "torch.distributed.tensor", "scipy.optimize", "sklearn"}
print(sorted(heavy & set(sys.modules)))
"""


def test_a_light_start_leaves_out_what_is_not_used_and_computes_the_same(tiny_base_dir):
    """A server that takes twice the seconds to answer shows in nothing else."""
    light, loaded = run(SCORE, tiny_base_dir).splitlines()
    assert loaded == "[]"
    plain = load_base(BaseEntry(id="tiny", source=str(tiny_base_dir)))  # this process imports as ever
    scores = score_windows(plain.model, [[0, 5, 7], [0, 9]], max_tokens=9, pad_id=0)
    assert light == f"{plain.shape.model_dump_json()} {[score.hex() for score in scores]}"


TRAINING = """
import json, sys
{start}
from pathlib import Path
from registry.base_model import load_base
from registry.spec import BaseEntry
from training.request import TrainingRun
from training.spec import TrainingSpec
from training.train import train
base, folder = load_base(BaseEntry(id="tiny", source=sys.argv[1])), Path(sys.argv[2])
texts = folder / "texts.jsonl"
texts.write_text("".join(json.dumps({{"text": f"The court held {{n}} times."}}) + chr(10) for n in range(80)))
spec = TrainingSpec.model_validate({{"recipe": {{"steps": 2, "batch": 2, "block": 16}}}})
run = TrainingRun(spec=spec, train=texts, out=folder / "out", domain="law", base_id="tiny")
print(train(run, base).record["valid_perplexity"].hex())
heavy = {{"torch._dynamo.convert_frame", "torch.distributed.tensor", "scipy.optimize", "sklearn"}}
print(sorted(heavy & set(sys.modules)))
"""


def test_a_training_after_a_light_start_needs_no_compiler_and_computes_the_same(tiny_base_dir, tmp_path):
    """Its optimiser, too: what it says to the compiler at each step loads none."""
    folders = [tmp_path / name for name in ("light", "plain")]
    for folder in folders:
        folder.mkdir()
    start = "from service.light_start import light_start\nwith light_start(): pass"
    light, loaded = run(TRAINING.format(start=start), tiny_base_dir, folders[0]).splitlines()
    assert loaded == "[]"
    assert run(TRAINING.format(start=""), tiny_base_dir, folders[1]).splitlines()[0] == light


@pytest.mark.parametrize(
    ("program", "works"),
    [("service.jobs.train_process", "training.worker"), ("service.jobs.gradient_process", "training.gradient_worker")],
)
def test_processes_that_compute_for_a_server_start_lightly(program, works):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", LIGHTLY, program],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert works in done.stderr
    assert "torch._dynamo.convert_frame" not in done.stderr


def test_what_was_left_out_is_there_for_whoever_asks():
    program = """
import gc, sys, threading
from service.light_start import import_models, put_off_compiler
import_models()
import torch
assert "torch._dynamo.convert_frame" not in sys.modules
weight = torch.nn.Parameter(torch.ones(3))
optimiser = torch.optim.AdamW([weight])
weight.sum().backward()
optimiser.step()
found = []
threads = [threading.Thread(target=lambda: found.append(torch._dynamo.config)) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(found) == 4 and len(set(map(id, found))) == 1
assert float(torch.compile(lambda x: x + 1, backend="eager")(torch.ones(()))) == 2.0
import torch._dynamo
assert torch._dynamo.disable.__module__.startswith("torch.")
assert not hasattr(torch._dynamo, "no_such_thing")
put_off_compiler()
assert torch._dynamo.config is found[0]
assert torch.distributed.is_available()
from torch.distributed.tensor import DTensor
from scipy.optimize import linear_sum_assignment
from transformers.utils import is_scipy_available
assert is_scipy_available()
print("done")
"""
    assert run(program) == "done\n"


def test_sentence_bert_embeds_after_a_light_start():
    program = """
from service.light_start import light_start
with light_start(): pass
import warnings
warnings.simplefilter("ignore")
from registry.encoders import SentenceBertEncoder
print(SentenceBertEncoder().encode(["The court held."]).vectors.shape)
"""
    assert run(program) == "(1, 384)\n"


def test_what_is_built_after_a_light_start_is_freed():
    """A base model that was frozen out of the garbage collector's sight would stay for ever."""
    program = """
import gc, weakref
from service.light_start import light_start
with light_start(): pass
assert gc.isenabled() and gc.get_freeze_count() > 0
class Cycle: pass
one = Cycle(); one.itself = one
gone = weakref.ref(one)
del one
gc.collect()
assert gone() is None
print("done")
"""
    assert run(program) == "done\n"


def test_the_process_that_fits_selectors_starts_without_torch(tmp_path):
    """Every server has one: torch and transformers are two thirds of what its start takes."""
    program = """
import sys
from service.jobs.fit_process import begin
begin({"database": f"sqlite:///{sys.argv[1]}/soup.db", "blobs": {"folder": f"{sys.argv[1]}/blobs"}})
print(sorted({"torch", "transformers", "sklearn", "scipy"} & set(sys.modules)))
"""
    assert run(program, tmp_path) == "[]\n"
