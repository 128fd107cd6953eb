# The server and its command line. docs/how-to/run-in-containers.md says how to use it, docs/decisions/0020 why it is so.
#
#   docker build -t adaptersoup:0.9.0 .
#
# torch comes from the index that pip is told of. On Linux x86-64 PyPI's build carries CUDA (gigabytes); to get the CPU
# build, name an index that has it:  --build-arg PIP_EXTRA_INDEX_URL=...
#
# More extras of pyproject.toml, with commas between:  --build-arg EXTRAS=ray

ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

# --- build: dependencies first, so that a change of our code installs none of them again -------------
FROM ${PYTHON_IMAGE} AS build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
ARG EXTRAS=
COPY constraints.txt pyproject.toml ./
RUN python -m venv --without-pip /opt/soup \
 && python -m pip --python /opt/soup/bin/python install -c constraints.txt torch==2.13.0 \
 && rm -r /opt/soup/lib/python3.*/site-packages/torch/include /opt/soup/lib/python3.*/site-packages/torch/test
RUN python -c "import os, tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; e = p['optional-dependencies']; print(*p['dependencies'], *e['train'], *e['plots'], *(r for r in e['server'] if not r.startswith(p['name'])), *e['oidc'], *e['otel'], *(r for name in filter(None, os.environ['EXTRAS'].split(',')) for r in e[name]), sep='\n')" > requirements.txt \
 && python -m pip --python /opt/soup/bin/python install -c constraints.txt -r requirements.txt \
 && python -m pip install -c constraints.txt setuptools
COPY README.md LICENSE ./
COPY adaptersoup adaptersoup
COPY plots plots
COPY registry registry
COPY training training
COPY service service
COPY migrations migrations
RUN python -m pip wheel --no-deps --no-build-isolation -w /wheels . \
 && python -m pip --python /opt/soup/bin/python install --no-deps --no-index /wheels/*.whl

# --- what runs: Python, the environment, and a user who owns nothing but the data --------------------
FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="AdapterSoup" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 soup \
 && useradd --no-log-init --uid 10001 --gid soup --home-dir /var/lib/soup --no-create-home --shell /usr/sbin/nologin soup \
 && install -d -o soup -g soup -m 0700 /var/lib/soup
COPY --from=build /opt/soup /opt/soup
# HF_HOME: where base models of a hub are downloaded to
ENV PATH=/opt/soup/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/var/lib/soup/cache/huggingface \
    MPLCONFIGDIR=/tmp/matplotlib \
    SOUP_DATA=/var/lib/soup \
    SOUP_HOST=0.0.0.0 \
    SOUP_PORT=8000
USER 10001:10001
WORKDIR /var/lib/soup
VOLUME ["/var/lib/soup"]
EXPOSE 8000
# base models are downloaded before the first answer: the start period is for them
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s --retries=3 \
  CMD ["python", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ['SOUP_PORT']), timeout=4); c.request('GET', '/healthz'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["soup"]
CMD ["serve"]
