"""OCI registry: pushing and pulling bundles by the OCI distribution specification 1.1.

Every blob is bounded by the size that its descriptor claims and checked against its digest as it comes.
Plain HTTP is for loopback alone; credentials are those that ``docker login`` left in the docker config file.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode, urljoin, urlsplit

import msgspec

from kaas.cache.oci_records import MANIFEST_TYPE, MAX_MANIFEST_BYTES, refused, sha256
from kaas.proto.errors import InvalidRequest, RegistryFailed

if TYPE_CHECKING:
    import httpx

TIMEOUT_S = 30.0
"""Of a connect and of any pause within a transfer, not of the whole."""

MAX_TOKEN_BYTES = 1 << 20
MAX_CONFIG_BYTES = 4 << 20
MAX_REDIRECTS = 3

_REFERENCE = re.compile(
    r"(?:oci://)?(?P<host>\[[0-9a-fA-F:]+\](?::\d{1,5})?|[A-Za-z0-9.-]+(?::\d{1,5})?)/"
    r"(?P<repository>[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127})|@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_CHALLENGE = re.compile(r'([a-z]+)="([^"]*)"')


class Reference(NamedTuple):
    """Where a bundle lies: ``host[:port]/repository``, and a tag or a digest."""

    host: str
    repository: str
    name: str

    def __str__(self) -> str:
        return f"{self.host}/{self.repository}{'@' if ':' in self.name else ':'}{self.name}"


def parse_reference(text: str) -> Reference:
    """``[oci://]HOST[:PORT]/REPOSITORY[:TAG|@sha256:DIGEST]``; the tag is ``latest`` if none is given.

    Raises :class:`InvalidRequest`.
    """
    match = _REFERENCE.fullmatch(text)
    if match is None:
        raise InvalidRequest(
            f"{text[:200]!r} is no place in a registry",
            field="reference",
            legal="HOST[:PORT]/REPOSITORY[:TAG] or ...@sha256:DIGEST, in lower case",
        )
    return Reference(match["host"], match["repository"], match["digest"] or match["tag"] or "latest")


class Registry:
    """One repository of a registry. Use it as a context; it keeps connections open."""

    def __init__(self, reference: Reference, *, docker_config: Path | None = None) -> None:
        self._reference = reference
        scheme = "http" if _is_loopback(reference.host) else "https"
        self._base = f"{scheme}://{reference.host}/v2/{reference.repository}/"
        self._credentials = _credentials(reference.host, docker_config or _docker_config())
        self._authorization = ""
        self._client = _new_client()

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *exception: object) -> None:
        self._client.close()

    def push_blob(self, content: bytes) -> bool:
        """Upload a blob unless the repository has it; whether it had to be."""
        digest = f"sha256:{sha256(content)}"
        if self._ask("HEAD", f"blobs/{digest}", expected=(200, 404)).status_code == 200:
            return False
        began = self._ask("POST", "blobs/uploads/", expected=(202,))
        place = urljoin(str(began.request.url), began.headers.get("location", ""))
        self._require_own(place)
        place += ("&" if urlsplit(place).query else "?") + urlencode({"digest": digest})
        headers = {"content-type": "application/octet-stream"}
        self._ask("PUT", place, expected=(201,), content=content, headers=headers)
        return True

    def push_manifest(self, content: bytes) -> str:
        """Put a manifest under the reference's tag; its digest."""
        self._ask(
            "PUT",
            f"manifests/{self._reference.name}",
            expected=(201,),
            content=content,
            headers={"content-type": MANIFEST_TYPE},
        )
        return f"sha256:{sha256(content)}"

    def pull_manifest(self) -> bytes:
        """The manifest under the reference's tag or digest. Raises :class:`BundleRefused` for another's."""
        name = self._reference.name
        content = self._fetch(f"manifests/{name}", MAX_MANIFEST_BYTES, {"accept": MANIFEST_TYPE})
        if ":" in name and name != f"sha256:{sha256(content)}":
            raise refused("digest", "the registry's manifest is not the one with that digest", "manifest")
        return content

    def pull_blob(self, digest: str, size: int, entry: str) -> bytes:
        """A blob of exactly these bytes. Raises :class:`BundleRefused` (``size``, ``digest``)."""
        content = self._fetch(f"blobs/sha256:{digest}", size, {})
        if len(content) != size:
            raise refused("truncated", f"{entry} has {len(content)} bytes, not {size}", entry)
        if sha256(content) != digest:
            raise refused("digest", f"the bytes of {entry} are not those of its digest", entry)
        return content

    def _fetch(self, path: str, limit: int, headers: dict[str, str]) -> bytes:
        import httpx

        url, authorized = urljoin(self._base, path), True
        for _ in range(MAX_REDIRECTS + 1):
            with self._send(url, headers, authorized) as response:
                if response.is_redirect:
                    url = urljoin(url, response.headers["location"])
                    authorized = urlsplit(url).netloc == self._reference.host
                    self._require_secure(url)
                    continue
                if response.status_code != 200:
                    raise self._failed(response.status_code, response.request.method, path)
                content = bytearray()
                try:
                    # Undecoded: a bomb of a content encoding is bytes that do not have the digest.
                    for chunk in response.iter_raw(64 << 10):
                        content += chunk
                        if len(content) > limit:
                            raise refused("too_large", f"the registry sends more than {limit} bytes", path)
                except httpx.HTTPError as error:
                    raise self._unreachable(error) from None
                return bytes(content)
        raise RegistryFailed(
            f"{self._reference.host} redirects for ever", registry=self._reference.host, path=path
        )

    def _send(self, url: str, headers: dict[str, str], authorized: bool) -> _Streamed:
        response = self._stream(url, headers, authorized)
        if response.status_code == 401 and authorized and self._log_in(response):
            response.close()
            response = self._stream(url, headers, authorized)
        return _Streamed(response)

    def _stream(self, url: str, headers: dict[str, str], authorized: bool) -> httpx.Response:
        import httpx

        sent = {**headers, "accept-encoding": "identity"}
        if authorized and self._authorization:
            sent["authorization"] = self._authorization
        try:
            return self._client.send(self._client.build_request("GET", url, headers=sent), stream=True)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None

    def _ask(
        self,
        method: str,
        path: str,
        *,
        expected: tuple[int, ...],
        content: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        import httpx

        url = urljoin(self._base, path)
        for attempt in (1, 2):
            sent = dict(headers or {})
            if self._authorization:
                sent["authorization"] = self._authorization
            try:
                response = self._client.request(method, url, content=content, headers=sent)
            except httpx.HTTPError as error:
                raise self._unreachable(error) from None
            if response.status_code == 401 and attempt == 1 and self._log_in(response, push=True):
                continue
            break
        if response.status_code not in expected:
            raise self._failed(response.status_code, method, path, response.text[:300])
        return response

    def _log_in(self, response: httpx.Response, *, push: bool = False) -> bool:
        """Answer a challenge; whether there is something new to try."""
        challenge = response.headers.get("www-authenticate", "")
        kind = challenge.partition(" ")[0].casefold()
        before = self._authorization
        if kind == "basic" and self._credentials:
            encoded = base64.b64encode(":".join(self._credentials).encode()).decode()
            self._authorization = f"Basic {encoded}"
        elif kind == "bearer":
            self._authorization = f"Bearer {self._token(dict(_CHALLENGE.findall(challenge)), push)}"
        return self._authorization != before

    def _token(self, challenge: dict[str, str], push: bool) -> str:
        import httpx

        realm = challenge.get("realm", "")
        self._require_secure(realm)
        actions = "pull,push" if push else "pull"
        query = {"scope": f"repository:{self._reference.repository}:{actions}"}
        if "service" in challenge:
            query["service"] = challenge["service"]
        try:
            response = self._client.get(
                realm,
                params=query,
                auth=httpx.BasicAuth(*self._credentials) if self._credentials else None,
            )
            if response.status_code != 200 or len(response.content) > MAX_TOKEN_BYTES:
                raise self._failed(response.status_code, "GET", "token")
            answer = msgspec.json.decode(response.content, type=dict[str, Any])
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            answer = {}
        token = answer.get("token") or answer.get("access_token")
        if not isinstance(token, str) or not token.isprintable():
            raise RegistryFailed(
                f"{self._reference.host} gives no token", registry=self._reference.host, status=401
            )
        return token

    def _require_secure(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(parts.netloc)):
            return
        raise RegistryFailed(
            f"{self._reference.host} sends us to {url[:200]!r}, which is not https",
            registry=self._reference.host,
        )

    def _require_own(self, url: str) -> None:
        """Uploads carry our credentials: they go to the registry itself."""
        self._require_secure(url)
        if urlsplit(url).netloc != self._reference.host:
            raise RegistryFailed(
                f"{self._reference.host} wants the upload sent to {url[:200]!r}",
                registry=self._reference.host,
            )

    def _failed(self, status: int, method: str, path: str, text: str = "") -> RegistryFailed:
        hint = None
        if status in (401, 403):
            hint = f"docker login {self._reference.host}, or name its config with DOCKER_CONFIG"
        elif status == 404:
            hint = f"there is no {self._reference}"
        return RegistryFailed(
            f"{self._reference.host} answers {status} to {method} {path[:120]}"
            + (f": {text.strip()}" if text.strip() else ""),
            hint=hint,
            registry=self._reference.host,
            status=status,
        )

    def _unreachable(self, error: Exception) -> RegistryFailed:
        return RegistryFailed(
            f"{self._reference.host} cannot be reached: {error or type(error).__name__}",
            registry=self._reference.host,
        )


class _Streamed:
    """A response that is closed at the end of a block."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response

    def __enter__(self) -> httpx.Response:
        return self._response

    def __exit__(self, *exception: object) -> None:
        self._response.close()


def _new_client() -> httpx.Client:
    from importlib.util import find_spec

    if find_spec("httpx") is None:
        raise InvalidRequest(
            "a registry needs the package httpx, which is not installed",
            hint="pip install 'ascend-kaas[bundles]'",
            field="reference",
        )
    import httpx

    return httpx.Client(timeout=TIMEOUT_S, follow_redirects=False, headers={"user-agent": "kaas"})


def _is_loopback(netloc: str) -> bool:
    host = urlsplit(f"//{netloc}").hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _docker_config() -> Path:
    folder = os.environ.get("DOCKER_CONFIG")
    return (Path(folder) if folder else Path.home() / ".docker") / "config.json"


def _credentials(host: str, config: Path) -> tuple[str, str] | None:
    """User and password of ``auths``; a file that cannot be read has none."""
    try:
        with config.open("rb") as file:
            record = msgspec.json.decode(file.read(MAX_CONFIG_BYTES), type=dict[str, Any])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    auths = record.get("auths")
    for name in _names(host):
        entry = auths.get(name) if isinstance(auths, dict) else None
        if isinstance(entry, dict) and isinstance(entry.get("auth"), str):
            try:
                user, _, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
            except (binascii.Error, UnicodeDecodeError):
                return None
            return user, password.rstrip("\0")
    return None


def _names(host: str) -> Iterator[str]:
    yield host
    yield f"https://{host}"
    yield f"https://{host}/v1/"
