"""Bundles through OCI registries: a real one, and ones that lie."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from support.bundle_drafts import Draft
from support.real_services import needs_registry, running_registry

from kaas.cache.bundle import Bundle
from kaas.cache.signatures import SignaturePolicy
from kaas.client.bundle_transfer import pull_bundle, push_bundle
from kaas.client.oci_registry import parse_reference
from kaas.proto.errors import BundleRefused, RegistryFailed

pytest.importorskip("httpx")

ANY = SignaturePolicy()


@pytest.fixture(autouse=True)
def no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "docker"
    folder.mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    return folder


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "bundle.tar"
    path.write_bytes(Draft(tmp_path / "store").pack())
    return path


def log_in(folder: Path, host: str, password: str = "secret") -> None:
    auth = base64.b64encode(f"kaas:{password}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))


@needs_registry
def test_what_is_pulled_is_what_was_pushed_byte_for_byte_and_known_kernels_are_not_sent_again(
    bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "registry").mkdir()
    with running_registry(tmp_path / "registry") as host, Bundle.open(bundle) as opened:
        place = parse_reference(f"oci://{host}/kernels/deepseek:v1")
        pushed = push_bundle(opened, place)
        assert pushed.sent == 3
        assert push_bundle(opened, place._replace(name="v2")).sent == 0
        for name in ("v1", "v2", pushed.digest):
            listing = pull_bundle(place._replace(name=name), tmp_path / "pulled", ANY)
            assert [one.key for one in listing.layers] == [one.key for one in opened.layers]
            with Bundle.open(tmp_path / "pulled") as pulled:
                assert pulled.manifest == opened.manifest
                assert len(list(pulled.verify())) == 3
        with pytest.raises(RegistryFailed) as failure:
            pull_bundle(place._replace(name="v3"), tmp_path / "none", ANY)
        assert failure.value.details["status"] == 404
        assert not (tmp_path / "none").exists()


@needs_registry
def test_a_registry_with_passwords_takes_what_docker_login_left(
    bundle: Path, tmp_path: Path, no_credentials: Path
) -> None:
    (tmp_path / "registry").mkdir()
    with (
        running_registry(tmp_path / "registry", with_password=True) as host,
        Bundle.open(bundle) as opened,
    ):
        place = parse_reference(f"{host}/kernels:v1")
        for password in (None, "wrong"):
            if password:
                log_in(no_credentials, host, password)
            with pytest.raises(RegistryFailed) as failure:
                push_bundle(opened, place)
            assert failure.value.details["status"] == 401
            assert "docker login" in str(failure.value.hint)
        log_in(no_credentials, host)
        assert push_bundle(opened, place).sent == 3
        pull_bundle(place, tmp_path / "pulled", ANY)


Answer = tuple[int, dict[str, str], bytes]


class LyingRegistry:
    """Serves a bundle's blobs as a registry does, unless ``lie`` has another answer to a path."""

    def __init__(self, bundle: Path, lie: Callable[[str, str, dict[str, str]], Answer | None]) -> None:
        with Bundle.open(bundle) as opened:
            self.blobs = {layer.sha256: opened.read(layer) for layer in opened.layers}
            self.blobs[hashlib.sha256(opened.config).hexdigest()] = opened.config
            self.manifest = opened.manifest
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                status, sent, content = lie(registry.host, self.path, headers) or registry.honest(self.path)
                self.send_response(status)
                for name, value in sent.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_POST = do_HEAD = do_PUT = do_GET

            def log_message(self, *words: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self._server.server_address[1]}"

    def honest(self, path: str) -> Answer:
        name = path.rpartition("/")[2].removeprefix("sha256:")
        content = self.manifest if "/manifests/" in path else self.blobs.get(name)
        return (404, {}, b"") if content is None else (200, {}, content)

    def __enter__(self) -> LyingRegistry:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def on_blobs(answer: Callable[[str, str], Answer]) -> Callable[..., Answer | None]:
    return lambda host, path, headers: answer(host, path) if "/blobs/" in path else None


LIES: dict[str, tuple[Callable[..., Answer | None], type[Exception], str]] = {
    "other bytes": (on_blobs(lambda host, path: (200, {}, b"x" * 9)), BundleRefused, "config has 9 bytes"),
    "bytes without end": (
        on_blobs(lambda host, path: (200, {}, bytes(1 << 22))),
        BundleRefused,
        "sends more than",
    ),
    "an endless manifest": (
        lambda host, path, headers: (200, {}, bytes(5 << 20)),
        BundleRefused,
        "sends more than",
    ),
    "a manifest that is none": (lambda host, path, headers: (200, {}, b"{}"), BundleRefused, "manifest"),
    "a web page": (lambda host, path, headers: (200, {}, b"<html>"), BundleRefused, "manifest"),
    "redirects in a circle": (
        on_blobs(lambda host, path: (307, {"location": path}, b"")),
        RegistryFailed,
        "redirects for ever",
    ),
    "a redirect to plain http elsewhere": (
        on_blobs(lambda host, path: (307, {"location": "http://192.0.2.1/x"}, b"")),
        RegistryFailed,
        "not https",
    ),
    "a redirect to a file": (
        on_blobs(lambda host, path: (307, {"location": "file:///etc/passwd"}, b"")),
        RegistryFailed,
        "not https",
    ),
    "a token from plain http elsewhere": (
        lambda host, path, headers: (401, {"www-authenticate": 'Bearer realm="http://192.0.2.1/t"'}, b""),
        RegistryFailed,
        "not https",
    ),
    "a token that is none": (
        lambda host, path, headers: (
            (200, {}, b"[]")
            if path.startswith("/token")
            else (401, {"www-authenticate": f'Bearer realm="http://{host}/token"'}, b"")
        ),
        RegistryFailed,
        "gives no token",
    ),
    "a compressed answer": (
        on_blobs(lambda host, path: (200, {"content-encoding": "gzip"}, b"\x1f\x8b" + bytes(50))),
        BundleRefused,
        "config has",
    ),
    "nothing but 500": (lambda host, path, headers: (500, {}, b"trouble"), RegistryFailed, "answers 500"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_registry_that_lies_is_refused_and_no_file_is_written(
    lie: str, bundle: Path, tmp_path: Path
) -> None:
    answer, error, text = LIES[lie]
    with LyingRegistry(bundle, answer) as registry, pytest.raises(error, match=text):
        pull_bundle(parse_reference(f"{registry.host}/kernels:v1"), tmp_path / "pulled", ANY)
    assert not list(tmp_path.glob("*pulled*"))


def test_another_bundle_than_the_one_with_that_digest_is_refused(bundle: Path, tmp_path: Path) -> None:
    with LyingRegistry(bundle, lambda host, path, headers: None) as registry:
        place = parse_reference(f"{registry.host}/kernels@sha256:{'0' * 64}")
        with pytest.raises(BundleRefused) as refusal:
            pull_bundle(place, tmp_path / "pulled", ANY)
    assert refusal.value.details["reason"] == "digest"


def test_a_token_is_fetched_with_the_password_and_a_redirect_elsewhere_gets_neither(
    bundle: Path, tmp_path: Path, no_credentials: Path
) -> None:
    seen: list[tuple[str, str]] = []

    def serve(host: str, path: str, headers: dict[str, str]) -> Answer | None:
        authorization = headers.get("authorization", "")
        seen.append((urlsplit(path).path, authorization))
        if path.startswith("/token"):
            assert parse_qs(urlsplit(path).query)["scope"] == ["repository:kernels:pull"]
            return 200, {}, b'{"token": "T"}'
        if authorization != "Bearer T":
            return 401, {"www-authenticate": f'Bearer realm="http://{host}/token",service="s"'}, b""
        if "/blobs/" in path:  # localhost and 127.0.0.1 are different places to credentials
            return 307, {"location": f"http://localhost:{mirror.host.rpartition(':')[2]}{path}"}, b""
        return None

    def mirrored(host: str, path: str, headers: dict[str, str]) -> Answer | None:
        assert "authorization" not in headers
        return None

    with LyingRegistry(bundle, mirrored) as mirror, LyingRegistry(bundle, serve) as registry:
        log_in(no_credentials, registry.host)
        pull_bundle(parse_reference(f"{registry.host}/kernels:v1"), tmp_path / "pulled", ANY)
    assert (tmp_path / "pulled").read_bytes()
    basic = "Basic " + base64.b64encode(b"kaas:secret").decode()
    assert [one for one in seen if one[0] == "/token"] == [("/token", basic)]


def test_nobody_at_the_address_is_a_plain_error(bundle: Path, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(RegistryFailed, match="cannot be reached"):
            pull_bundle(parse_reference(f"{host}/kernels:v1"), tmp_path / "pulled", ANY)
