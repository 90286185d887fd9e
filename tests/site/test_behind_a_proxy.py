"""The class site behind Debian's nginx, with deploy/nginx.conf, by the public name and over TLS."""

import http.client
import json
import re
import shutil
import socket
import ssl
import subprocess
from contextlib import contextmanager

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from benchmarks.browser import free_port
from lib import ROOT
from lib.site.access import Keys, kept_secret
from lib.site.gate import MAX_BODY_BYTES
from tests.browser import serving
from tests.site.test_server import wait_until_open

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/sbin")
pytestmark = [
    pytest.mark.release,
    pytest.mark.skipif(NGINX is None, reason="no nginx found: install it (on Debian: apt install nginx)"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl found: install it"),
]
NAME = "class.example.org"
MAIN = """
daemon off; master_process off; pid nginx.pid; error_log error.log;
events {}
http {
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
    include class.conf;
}
"""


class Proxied:
    def __init__(self, folder, plain_port: int, port: int, keys: Keys) -> None:
        self.plain_port, self.port, self.keys = plain_port, port, keys
        self.origin = f"https://{NAME}:{port}"
        self._context = ssl.create_default_context(cafile=str(folder / "cert.pem"))

    def socket(self) -> ssl.SSLSocket:
        return self._context.wrap_socket(socket.create_connection(("127.0.0.1", self.port)), server_hostname=NAME)

    def ask(self, path, method="GET", body=None, **headers):
        connection = http.client.HTTPConnection(NAME, self.port, timeout=60)
        connection.sock = self.socket()
        given = {"Host": f"{NAME}:{self.port}", "Accept": "text/html"} | headers
        connection.request(method, path, body, given)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, answer.headers, text

    def opens(self, path, origin, cookie) -> int:
        try:
            with connect(
                f"wss://{NAME}:{self.port}{path}",
                sock=socket.create_connection(("127.0.0.1", self.port)),
                ssl=self._context,
                origin=origin,
                additional_headers={"Cookie": cookie},
                open_timeout=60,
                max_size=None,
                proxy=None,
            ) as opened:
                opened.recv(60)
                return 101
        except InvalidStatus as refused:
            return refused.response.status_code


@contextmanager
def nginx(folder, behind: int, plain_port: int, port: int):
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={NAME}"]
        + ["-addext", f"subjectAltName=DNS:{NAME}", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        check=True,
        capture_output=True,
    )
    written = (ROOT / "deploy/nginx.conf").read_text()
    for ours, here in (
        ("listen 80;", f"listen 127.0.0.1:{plain_port};"),
        ("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
        (f"/etc/letsencrypt/live/{NAME}/fullchain.pem", str(folder / "cert.pem")),
        (f"/etc/letsencrypt/live/{NAME}/privkey.pem", str(folder / "key.pem")),
        ("http://127.0.0.1:2718", f"http://127.0.0.1:{behind}"),
    ):
        assert written.count(ours) == 1, ours
        written = written.replace(ours, here)
    (folder / "class.conf").write_text(written)
    (folder / "nginx.conf").write_text(MAIN)
    assert NGINX is not None
    process = subprocess.Popen([NGINX, "-p", folder, "-c", "nginx.conf", "-e", "error.log"])
    try:
        wait_until_open(f"http://127.0.0.1:{port}")
        yield
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="module")
def proxied(tmp_path_factory):
    cache, folder = tmp_path_factory.mktemp("cache"), tmp_path_factory.mktemp("nginx")
    plain_port, port = free_port(), free_port()
    with serving(cache, options=("--public-host", f"{NAME}:{port}", "--class-link")) as served:
        with nginx(folder, int(served.base.rpartition(":")[2]), plain_port, port):
            yield Proxied(folder, plain_port, port, Keys(kept_secret(cache / "class-secret"), class_link=True))


def entered(proxied) -> str:
    status, headers, _ = proxied.ask(f"/?class={proxied.keys.token('pupil')}")
    assert (status, headers["Location"]) == (303, "/")
    assert "; Secure" in headers["Set-Cookie"]
    return headers["Set-Cookie"].split(";")[0]


def test_the_class_link_works_through_the_proxy(proxied):
    assert proxied.ask("/claims/")[0] == 303, "to the login page"
    cookie = entered(proxied)
    status, headers, page = proxied.ask("/claims/", Cookie=cookie)
    assert status == 200
    assert "Strict-Transport-Security" in headers
    assert len(headers.get_all("Content-Security-Policy")) == 1
    assert 'src="/assets/' in page
    assert proxied.opens("/claims/ws?session_id=s_proxied", proxied.origin, cookie) == 101


@pytest.mark.parametrize("origin", ["https://evil.example", "http://127.0.0.1", "null"])
def test_requests_of_other_sites_are_refused(proxied, origin):
    cookie = entered(proxied)
    assert proxied.opens("/claims/ws?session_id=s_forged", origin, cookie) == 403
    assert proxied.ask("/claims/", Cookie=cookie, Origin=origin)[0] == 403


def test_another_host_name_is_refused(proxied):
    status, _, text = proxied.ask("/", Host="evil.example")
    assert status == 403
    assert f"Expected 127.0.0.1, {NAME}, localhost or a numeric address, got evil.example" in text


def test_plain_http_is_redirected_to_tls(proxied):
    connection = http.client.HTTPConnection("127.0.0.1", proxied.plain_port, timeout=60)
    connection.request("GET", "/claims/?a=b", headers={"Host": NAME})
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Location"]) == (301, f"https://{NAME}/claims/?a=b")
    connection.close()


@pytest.mark.parametrize("n_bytes", [MAX_BODY_BYTES - 1, MAX_BODY_BYTES + 1, 140 << 20])
def test_the_largest_file_passes_and_a_larger_one_is_refused(proxied, n_bytes):
    """In base64, as pages send files; between the two limits the server answers, above them nginx does."""
    cookie = entered(proxied)
    token = re.search(r'"serverToken": "([^"]*)"', proxied.ask("/claims/", Cookie=cookie)[2])
    assert token is not None
    said = {"Cookie": cookie, "Marimo-Server-Token": token[1], "Marimo-Session-Id": "s_nobody"}
    begins = b'{"objectIds": ["x"], "values": ["'
    body = begins + b"A" * (n_bytes - len(begins) - 3) + b'"]}'
    status, _, text = proxied.ask("/claims/api/kernel/set_ui_element_value", "POST", body, **said)
    if n_bytes < MAX_BODY_BYTES:
        assert (status, "Invalid session" in text) == (500, True), "marimo has read it"
    else:
        assert status == 413
        assert json.loads(text)["detail"].startswith("Expected files of at most 96 MiB together, got ")


def test_the_health_check_shows_only_its_four_figures(proxied):
    status, _, text = proxied.ask("/healthz")
    assert status == 200
    assert set(json.loads(text)) == {"ok", "viewers", "queue", "uptime_s"}
