# Everything is installed into .venv from pyproject.toml, pinned by constraints.txt.
# pip alone (not uv or poetry) is used: it is the one installer that finds a CPU build of torch on every machine
# we run on (docs/decisions/0002-dependencies.md).
PYTHON ?= python3
VENV := .venv
PIP_FLAGS ?=
PIP := $(VENV)/bin/python -m pip install --disable-pip-version-check -q $(PIP_FLAGS) -c constraints.txt
RUN := $(VENV)/bin/python
# Three files of tests at once also on two cores: a fifth of the time, a test waits for a process that it has started.
AT_ONCE := -n 3 --dist loadfile --no-loadscope-reorder
# Where it is set, each of the hundreds of processes that tests start compiles all of our modules anew.
unexport PYTHONDONTWRITEBYTECODE
FLOORS := adaptersoup:95 plots:95 registry:98.6 service:96.4 training:96.5

.DEFAULT_GOAL := help
.PHONY: help setup browser test test-long test-databases test-interop coverage quick soak check format serve demo main-job bench bench-engine bench-peers bench-vllm bench-registry bench-training bench-cooks bench-trust reproduce-papers reproduce-adaptersoup screenshots docs openapi clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# Where .venv is a link, it is another checkout's, and so is the editable install in it: nothing is installed there from
# here. What is run from this folder is this folder's code all the same.
LINK := $(shell readlink $(VENV))
ifneq ($(LINK),)
$(VENV)/.runtime $(VENV)/.dev $(VENV)/.demo:
	@echo "$(VENV) is a link to $(LINK), into which nothing is installed from here: do it there, or remove the link"; exit 1
else
$(VENV)/.runtime: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing the pinned dependencies into $(VENV): 1.5 GB and a few minutes with the CPU build of torch, more with CUDA (docs/how-to/run-a-server.md)"
	$(PIP) torch==2.13.0
	$(PIP) -e '.[server]'
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	@echo "installing what the tests and checks need"
	$(PIP) --no-compile -e '.[dev,demo]'  # Python compiles what the tests import of it
	@touch $@

$(VENV)/.demo: $(VENV)/.runtime
	@echo "installing what unpacks the demo's model"
	$(PIP) -e '.[demo]'
	@touch $@
endif

setup: $(VENV)/.runtime  ## create .venv with pinned dependencies

browser:  ## install Debian's chromium, which looks at the pages in the tests, where there is none and apt-get can
	@command -v chromium >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends chromium; } \
	  || echo "chromium cannot be installed here: the tests that need it are skipped, and fail where CI is set"

test: $(VENV)/.dev  ## run the tests, three files at a time, without those of test-long
	OMP_NUM_THREADS=1 $(RUN) -m pytest $(AT_ONCE) -m 'not long'

test-long: $(VENV)/.dev  ## the tests that take minutes: Ray clusters, killed servers, real proxies, notebooks, benchmarks
	OMP_NUM_THREADS=1 $(RUN) -m pytest $(AT_ONCE) -m long

test-databases: $(VENV)/.dev  ## the tests of databases on PostgreSQL, with those that make test runs on SQLite alone
	EVERY_DATABASE=1 OMP_NUM_THREADS=1 $(RUN) -m pytest $(AT_ONCE) -k postgresql tests/adaptersoup tests/registry tests/service

test-interop: $(VENV)/.dev  ## the tests with other people's clients (Hugging Face's, PEFT, OpenAI's, LangChain, LiteLLM), and which versions those are (a minute)
	@$(VENV)/bin/python -m pip list --disable-pip-version-check 2>/dev/null | grep -iE '^(huggingface.hub|peft|transformers|safetensors|torch|openai|langchain.openai|litellm) '
	OMP_NUM_THREADS=1 $(RUN) -m pytest -m interop tests/service

coverage: $(VENV)/.dev  ## every test again, counting the lines they run, which takes half as long again; FLOORS is the least
	OMP_NUM_THREADS=1 $(RUN) -m pytest $(AT_ONCE) --cov --cov-report=term:skip-covered
	@for floor in $(FLOORS); do \
	  package=$${floor%%:*}; least=$${floor##*:}; \
	  $(RUN) -m coverage report --include="$$package/*" --format=total --precision=1 --fail-under=$$least >/dev/null \
	    || { echo "The tests run less than $$least % of the lines of $$package, their floor (FLOORS in the Makefile)."; exit 1; }; \
	done

quick: $(VENV)/.dev  ## the tests that start no server, PostgreSQL or process (a few minutes on two cores)
	OMP_NUM_THREADS=1 $(RUN) -m pytest $(AT_ONCE) -m 'not slow and not long'

soak: $(VENV)/.dev  ## 20,000 requests over 500 adapters, each of which says who it is (some minutes)
	SOAK=20000 OMP_NUM_THREADS=1 $(RUN) -m pytest tests/service/engine/test_canaries.py

check: $(VENV)/.dev  ## format, lint, types, layers, generated clients
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(RUN) -m pytest -q tests/project/test_public_surface.py -k generated_clients

format: $(VENV)/.dev  ## format the code
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

serve: $(VENV)/.runtime  ## start the server on loopback (SOUP_BASES names the allowlist of base models)
	$(VENV)/bin/soup serve

demo: $(VENV)/.demo  ## the main job on SmolLM2-135M (93 MB once); DATA= BASE= ADAPTERS= for your own, DATABASE= for PostgreSQL
	@$(RUN) -m demo $(if $(DATA),--data '$(DATA)') $(if $(BASE),--base '$(BASE)') \
	  $(if $(ADAPTERS),--adapters '$(ADAPTERS)') $(if $(DATABASE),--database-url '$(DATABASE)') $(if $(OUT),--out '$(OUT)')

main-job: $(VENV)/.demo  ## 21 + 10 domains of ../shared on ../shared/base-lm; resumable
	$(RUN) -m demo --data ../shared/corpora --base ../shared/base-lm --adapters ../shared/adapters/main \
	  --out benchmarks/results/main_job.json

bench: $(VENV)/.dev  ## the quick forms of the benchmarks, beside their peers
	$(RUN) -m benchmarks.cold_start --out benchmarks/results/cold_start.json
	$(RUN) -m benchmarks.acceptance --out benchmarks/results/acceptance.json
	$(RUN) -m benchmarks.selection --out benchmarks/results/selection.json
	$(RUN) -m benchmarks.decoding --out benchmarks/results/decoding_gpt2.json
	$(RUN) -m benchmarks.scoring --out benchmarks/results/scoring_gpt2.json
	$(RUN) -m benchmarks.working_set --out benchmarks/results/working_set_gpt2.json
	$(RUN) -m benchmarks.over_http --out benchmarks/results/over_http_gpt2.json

SMOLLM2 := .demo/models/SmolLM2-135M-Instruct

$(SMOLLM2):
	@echo "there is no $(SMOLLM2): run make demo, which leaves it"; exit 1

bench-engine: $(VENV)/.dev $(SMOLLM2)  ## the engine on SmolLM2 in fp32 and bf16, beside every peer of make bench-peers
	for dtype in float32 bfloat16; do for subject in decoding scoring working_set over_http; do \
	  $(RUN) -m benchmarks.$$subject --base-folder $(SMOLLM2) --dtype $$dtype \
	    --out benchmarks/results/$${subject}_smollm2_$$dtype.json || exit 1; done; done
	$(RUN) -m benchmarks.decoding --dtype bfloat16 --out benchmarks/results/decoding_gpt2_bfloat16.json
	$(RUN) -m benchmarks.mixtures --base-folder $(SMOLLM2) --out benchmarks/results/mixtures.json

bench-vllm: $(VENV)/.dev $(SMOLLM2) .venv-peers/vllm/.installed  ## bottlenecks and moving aliases in vLLM for CPUs
	$(RUN) -m benchmarks.vllm --base-folder $(SMOLLM2) --out benchmarks/results/vllm.json

# Each peer in an environment of its own. The files list all that it needs, so nothing is resolved: vLLM would bring
# torchvision, torchaudio and torchcodec, whose CUDA builds do not go with torch's for CPUs. llama.cpp's server is built
# from the sources that llama-cpp-python ships, with the machine's CMake and C++ compiler.
PEERS := .venv-peers
PEER_PIP = $(PEERS)/$(1)/bin/python -m pip $(2) --disable-pip-version-check -q --no-deps -r benchmarks/peers/$(1).txt
LLAMA := $(PEERS)/llama_cpp

bench-peers: $(PEERS)/vllm/.installed $(PEERS)/adapters/.installed $(LLAMA)/.installed  ## what the engine is held against: 5 GB, and half an hour of compiling

$(PEERS)/%/.installed: benchmarks/peers/%.txt
	$(PYTHON) -m venv $(PEERS)/$*
	$(call PEER_PIP,$*,install)
	@touch $@

$(LLAMA)/.installed: benchmarks/peers/llama_cpp.txt
	$(PYTHON) -m venv $(LLAMA)
	rm -rf $(LLAMA)/sources && mkdir $(LLAMA)/sources
	$(call PEER_PIP,llama_cpp,download) --no-binary llama-cpp-python -d $(LLAMA)/sources
	tar -xzf $(LLAMA)/sources/*.tar.gz --strip-components 1 -C $(LLAMA)/sources
	cmake -S $(LLAMA)/sources/vendor/llama.cpp -B $(LLAMA)/build -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
	  -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_OPENSSL=OFF
	cmake --build $(LLAMA)/build --target llama-server --parallel 2
	cp $(LLAMA)/build/bin/llama-server $(LLAMA)/bin/
	@touch $@

bench-training: $(VENV)/.dev  ## the speed of training beside full fine-tuning and PEFT, on ../shared/base-lm
	$(RUN) -m benchmarks.training --out benchmarks/results/training.json

bench-cooks: $(VENV)/.dev $(SMOLLM2)  ## what streams notice of cooks, on two bases
	$(RUN) -m benchmarks.beside_cooks --data ../shared/corpora --base ../shared/base-lm --adapters ../shared/adapters/main \
	  --home .reproduce/beside-main --out benchmarks/results/beside_cooks.json
	$(RUN) -m benchmarks.beside_cooks --data ../shared/corpora --base $(SMOLLM2) --adapters ../shared/adapters/smollm2 \
	  --largest 60 --home .reproduce/beside-smollm2 --out benchmarks/results/beside_cooks_smollm2.json

bench-registry: $(VENV)/.dev  ## lists of 100,000 adapters on both databases, fits over 10,000, pushes, refits (a quarter of an hour)
	$(RUN) -m benchmarks.registry --out benchmarks/results/registry.json

bench-trust: $(VENV)/.dev  ## kills, faults, floods, lost updates and hostile headers, counted (an hour)
	$(RUN) -m benchmarks.trust --out benchmarks/results/trust.json

reproduce-papers: $(VENV)/.dev $(if $(findstring --quick,$(ARGS)),,$(SMOLLM2)) $(PEERS)/adapters/.installed  ## the claims of the adapter papers on MiniLM (hours; resumable; ARGS="--paper houlsby --minutes 60")
	OMP_NUM_THREADS=1 $(RUN) -m benchmarks.papers $(ARGS)

LORAS ?= demo/domains/adapters
GEMMA ?= .demo/models/gemma-3-270m
GEMMA_LORAS ?= .reproduce/gemma
SOUPS := $(RUN) -m benchmarks.adaptersoup --data ../shared/corpora
reproduce-adaptersoup: $(VENV)/.dev $(SMOLLM2)  ## soups beside what people do instead, on four banks (a day; resumable; LORAS= GEMMA= GEMMA_LORAS=)
	$(SOUPS) base_lm --base ../shared/base-lm --adapters ../shared/adapters/main --peft-rates 0.001 0.003 0.01 \
	  --full-rates 0.0001 0.0003 0.001 --out benchmarks/results/adaptersoup_base_lm.json
	$(SOUPS) smollm2 --base $(SMOLLM2) --adapters ../shared/adapters/smollm2 --out benchmarks/results/adaptersoup_smollm2.json
	$(SOUPS) smollm2_lora --base $(SMOLLM2) --adapters $(LORAS) --out benchmarks/results/adaptersoup_smollm2_lora.json
	$(RUN) -m benchmarks.questions --data ../shared/corpora --base $(SMOLLM2) \
	  --control demo/domains/adapters/control_textbooks --out benchmarks/results/questions.json
	$(SOUPS) gemma_lora --base $(GEMMA) --adapters $(GEMMA_LORAS) --sizes 15 60 --out benchmarks/results/adaptersoup_gemma_lora.json

screenshots: $(VENV)/.dev  ## take the pictures of the pages that are in the documentation (needs chromium; some minutes)
	SCREENSHOTS=docs/how-to/pictures OMP_NUM_THREADS=1 $(RUN) -m pytest tests/service/http/pages/test_screenshots.py

docs: $(VENV)/.dev  ## write the documentation with a search into site/
	$(RUN) -m docs.site

openapi: $(VENV)/.dev  ## regenerate the synchronous clients, docs/reference/openapi.json and the API reference
	$(RUN) -m docs.sync_clients
	$(RUN) -m docs.generate

clean:  ## remove the virtual environment, the demo's files and those of experiments
	rm -rf $(VENV) $(PEERS) .demo .reproduce
