"""Which API server, and as whom: from a kubeconfig, or from the pod's service account.

One object serves the asyncio client, the Lease's thread and kopf, so that all three always act as the same user.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml
from kubernetes.aio import config
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import incluster_config

from muster_protocol.spelling import there_are

DEFAULT_KUBECONFIG: Final = Path("~/.kube/config")

MEND: Final = "give --kubeconfig FILE, or set KUBECONFIG"


class CredentialsError(Exception):
    """There is no usable way to reach an API server. The message says what was tried and how to mend it."""


@dataclass
class Credentials:
    """
    Attributes:
        kubeconfig: file, or None for KUBECONFIG, the pod's service account or ~/.kube/config, the first that there is.
        context: of the kubeconfig; "" for its current one.
        source: where they came from, for people. Set by `load`.
        namespace: the one that the kubeconfig's context names, else `default`. Set by `load`.
    """

    kubeconfig: Path | None = None
    context: str = ""
    source: str = ""
    namespace: str = "default"
    configuration: Configuration = field(default_factory=Configuration)

    @property
    def server(self) -> str:
        """Like `https://10.0.0.1:6443`."""
        return str(self.configuration.host).rstrip("/")

    async def load(self) -> None:
        """Read everything anew: files may have changed, and an exec plugin is asked again. Raises CredentialsError."""
        fresh = Configuration()
        path = self._kubeconfig()
        try:
            if path is None:
                incluster_config.load_incluster_config(client_configuration=fresh)
                self.source = "the pod's service account"
            else:
                user = _user(path, self.context)
                loader = await config.load_kube_config(
                    config_file=str(path),
                    context=self.context or None,
                    client_configuration=fresh,
                    persist_config=False,
                )
                self.namespace = loader.current_context["context"].get("namespace") or "default"
                self.source = f"kubeconfig {path}"
                if "exec" in user and not (fresh.api_key or fresh.cert_file):
                    raise ValueError(_silent(user["exec"]))
        except (config.ConfigException, OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
            where = f"kubeconfig {path}" if path else "the pod's service account"
            raise CredentialsError(f"{where} cannot be used: {error}; {MEND}") from error
        self.configuration = fresh

    def _kubeconfig(self) -> Path | None:
        """None for the service account."""
        if self.kubeconfig is not None:
            if not self.kubeconfig.exists():
                raise CredentialsError(f"there is no kubeconfig {self.kubeconfig}; {MEND}")
            return self.kubeconfig
        variable = os.environ.get("KUBECONFIG", "")
        if variable:
            found = [Path(part).expanduser() for part in variable.split(os.pathsep) if part]
            if not any(path.exists() for path in found):
                raise CredentialsError(f"KUBECONFIG names {variable}, which does not exist; {MEND}")
            return Path(variable)
        if (
            os.environ.get(incluster_config.SERVICE_HOST_ENV_NAME)
            and Path(incluster_config.SERVICE_TOKEN_FILENAME).exists()
        ):
            return None
        if DEFAULT_KUBECONFIG.expanduser().exists():
            return DEFAULT_KUBECONFIG.expanduser()
        raise CredentialsError(f"no cluster to talk to: there is neither KUBECONFIG nor {DEFAULT_KUBECONFIG}; {MEND}")

    def headers(self) -> dict[str, str]:
        """`Authorization`, if a token is used. A service account's token file is read again every minute."""
        if self.configuration.refresh_api_key_hook is not None:
            self.configuration.refresh_api_key_hook(self.configuration)
        token = self.configuration.api_key.get("BearerToken")
        return {"Authorization": _scheme(token)} if token else {}

    def connection(self) -> dict[str, Any]:
        """The same credentials as keyword arguments of `kopf.ConnectionInfo`."""
        settings = self.configuration
        scheme, _, token = self.headers().get("Authorization", "").partition(" ")
        return {
            "server": self.server,
            "ca_path": settings.ssl_ca_cert,
            "insecure": not settings.verify_ssl,
            "scheme": scheme or None,
            "token": token or None,
            "certificate_path": settings.cert_file,
            "private_key_path": settings.key_file,
            "proxy_url": settings.proxy,
        }


def _user(path: Path, context: str) -> dict[str, Any]:
    """The user of the context. Raises ValueError for what the client library could only say of that it fails on it: a
    file that is no kubeconfig, a context that there is not, or what a context names and there is not."""
    parts = (Path(one).expanduser() for one in str(path).split(os.pathsep) if one)
    documents = [_document(part) for part in parts if part.exists()]
    current = next((document["current-context"] for document in documents if document.get("current-context")), "")
    contexts = _named(documents, "context")
    name = context or current
    if not name:
        raise ValueError(f"it names no current-context; give --context, {there_are('', contexts)}")
    if name not in contexts:
        raise ValueError(f"there is no context {name!r}; {there_are(name, contexts)}")
    return _user_of(name, contexts[name], documents)


def _user_of(name: str, context: Mapping[str, Any], documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The user that a context names, {} where it names none. Raises ValueError where what it names is not there."""
    named: dict[str, dict[str, Any]] = {}
    for kind in ("cluster", "user"):
        known, wanted = _named(documents, kind), str(context.get(kind) or "")
        if wanted not in known and (wanted or kind == "cluster"):
            raise ValueError(
                f"its context {name!r} names {kind} {wanted!r}, which is not there; {there_are(wanted, known)}"
            )
        named[kind] = known.get(wanted, {})
    server = str(named["cluster"].get("server") or "")
    if not server.startswith(("https://", "http://")):
        raise ValueError(
            f"the cluster of its context {name!r} has no URL as its server, like https://HOST:6443: {server!r}"
        )
    return named["user"]


def _document(path: Path) -> dict[str, Any]:
    """What one file says. Raises ValueError."""
    try:
        document = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise ValueError(f"{where} is no YAML: {getattr(error, 'problem', None) or error}") from None
    if not isinstance(document, dict):
        raise ValueError(f"{path} is no kubeconfig, which begins with `apiVersion: v1` and `kind: Config`")
    return document


def _named(documents: Sequence[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    """Contexts, clusters or users by their names; the first that has a name counts. Raises ValueError."""
    found: dict[str, dict[str, Any]] = {}
    for one in (one for document in documents for one in document.get(f"{kind}s") or ()):
        if not isinstance(one, dict) or "name" not in one or not isinstance(one.get(kind) or {}, dict):
            raise ValueError(f"an entry of its {kind}s is not of the form `- name: NAME` with `{kind}: {{...}}`")
        found.setdefault(one["name"], one.get(kind) or {})
    return found


def _silent(plugin: Mapping[str, Any]) -> str:
    """Of a credential plugin that gave nothing: the client library logs why, and goes on as nobody."""
    command = " ".join((plugin["command"], *(plugin.get("args") or ())))
    hint = f" ({plugin['installHint'].strip()})" if plugin.get("installHint") else ""
    return f"its credential plugin `{command}` gives no credentials: see what it wrote, and sign in anew{hint}"


def _scheme(token: str) -> str:
    """`bearer X`, as the service account's loader has it, with the scheme as RFC 6750 writes it."""
    scheme, _, rest = token.strip().partition(" ")
    return f"{scheme.capitalize()} {rest.strip()}" if rest else f"Bearer {scheme}"
