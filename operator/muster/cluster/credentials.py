"""Which API server, and as whom: from a kubeconfig, or from the pod's service account.

One object serves the asyncio client, the Lease's thread and kopf, so that all three always act as the same user.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import yaml
from kubernetes.aio import config
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import incluster_config

from muster_protocol.spelling import there_are

DEFAULT_KUBECONFIG: Final = Path("~/.kube/config")

MEND: Final = "give --kubeconfig FILE, or set KUBECONFIG"

Headers = tuple[tuple[str, str], ...]
"""Of a request; one name may come several times."""

_PATHS: Final = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
"""Fields that name files."""
_NAME_MARKS: Final = "!#$&'*+-.^_`|~"
"""What may stand in a header's name beside letters and digits."""


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
        acts_as: headers by which the kubeconfig's user acts as another one. Set by `load`.
    """

    kubeconfig: Path | None = None
    context: str = ""
    source: str = ""
    namespace: str = "default"
    acts_as: Headers = ()
    configuration: Configuration = field(default_factory=Configuration)

    @property
    def server(self) -> str:
        """Like `https://10.0.0.1:6443`."""
        return str(self.configuration.host).rstrip("/")

    async def load(self) -> None:
        """Read everything anew: files may have changed, and an exec plugin is asked again. Raises CredentialsError."""
        fresh = Configuration()
        path = self._kubeconfig()
        acts_as: Headers = ()
        try:
            if path is None:
                incluster_config.load_incluster_config(client_configuration=fresh)
                self.source = "the pod's service account"
            else:
                chosen = choice(path, self.context)
                acts_as = tuple(_impersonation(chosen.user))
                await config.load_kube_config_from_dict(chosen.document(), client_configuration=fresh)
                self.namespace = chosen.context.get("namespace", "default")
                self.source = f"kubeconfig {path}"
                if "exec" in chosen.user and not (fresh.api_key or fresh.cert_file):
                    raise ValueError(_silent(chosen.user["exec"]))
                _check_text("its token", fresh.api_key.get("BearerToken", ""))
        except (config.ConfigException, OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
            where = f"kubeconfig {path}" if path else "the pod's service account"
            raise CredentialsError(f"{where} cannot be used: {error}; {MEND}") from error
        self.configuration, self.acts_as = fresh, acts_as

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

    def headers(self) -> Headers:
        """Who asks, and as whom."""
        authorization = self._authorization()
        return (("Authorization", authorization), *self.acts_as) if authorization else self.acts_as

    def _authorization(self) -> str:
        """ "" where no token is used. A service account's token file is read again every minute."""
        if self.configuration.refresh_api_key_hook is not None:
            self.configuration.refresh_api_key_hook(self.configuration)
        token = self.configuration.api_key.get("BearerToken")
        return _scheme(token) if token else ""

    def connection(self) -> dict[str, Any]:
        """The same credentials as keyword arguments of `kopf.ConnectionInfo`, which has none for `acts_as`."""
        settings = self.configuration
        scheme, _, token = self._authorization().partition(" ")
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


@dataclass(frozen=True)
class Choice:
    """What counts in one or more kubeconfigs: a context, its cluster, and its user; {} for nobody."""

    name: str
    context: Mapping[str, Any]
    cluster: Mapping[str, Any]
    user: Mapping[str, Any]

    def document(self) -> dict[str, Any]:
        """A kubeconfig of this alone. In those with files the client library names a part by all that stands in it, and
        would tell of tokens and keys when it lacks something."""
        context = {**self.context, "cluster": self.name, "user": self.name}
        parts = {"contexts": ("context", context), "clusters": ("cluster", self.cluster), "users": ("user", self.user)}
        named = {kind: [{"name": self.name, key: dict(part)}] for kind, (key, part) in parts.items()}
        return {**named, "current-context": self.name}


@dataclass(frozen=True)
class _File:
    """What one file says, and the folder that it counts paths from."""

    folder: Path
    says: Mapping[str, Any]


def choice(path: Path, context: str) -> Choice:
    """As kubectl chooses: where nobody names a context, the first file's `current-context` counts.

    Raises ValueError for what the client library could only say of that it fails on it: a file that is no kubeconfig, a
    context that there is not, or what a context names and there is not.
    """
    parts = (Path(one).expanduser() for one in str(path).split(os.pathsep) if one)
    files = [_read(part) for part in parts if part.exists()]
    current = next((file.says["current-context"] for file in files if file.says.get("current-context")), "")
    contexts = _named(files, "context")
    name = context or current
    if not name:
        raise ValueError(f"it names no current-context; give --context, {there_are('', contexts)}")
    if name not in contexts:
        raise ValueError(f"there is no context {name!r}; {there_are(name, contexts)}")
    return _named_by(name, contexts[name], files)


def _named_by(name: str, context: Mapping[str, Any], files: Sequence[_File]) -> Choice:
    """Raises ValueError where what the context names is not there, or nothing could be asked of it."""
    if not isinstance(context.get("namespace", ""), str):
        raise ValueError(f"the namespace of its context {name!r} is no text; write it in quotes")
    named: dict[str, dict[str, Any]] = {}
    for kind in ("cluster", "user"):
        known, wanted = _named(files, kind), str(context.get(kind) or "")
        if wanted not in known and (wanted or kind == "cluster"):
            raise ValueError(
                f"its context {name!r} names {kind} {wanted!r}, which is not there; {there_are(wanted, known)}"
            )
        named[kind] = known.get(wanted, {})
    server, proxy = (str(named["cluster"].get(key) or "") for key in ("server", "proxy-url"))
    if not server.startswith(("https://", "http://")):
        raise ValueError(
            f"the cluster of its context {name!r} has no URL as its server, like https://HOST:6443: {server!r}"
        )
    if proxy and not proxy.startswith(("https://", "http://")):
        raise ValueError(
            f"the cluster of its context {name!r} has the proxy-url {proxy!r}, and Muster goes through proxies by "
            "http:// and https:// alone; `kubectl proxy` goes through others, and then http://127.0.0.1:8001 is the "
            "server, without proxy-url"
        )
    if server.startswith("https://") and not context.get("user"):
        raise ValueError(f"its context {name!r} names no user, whom {server} would ask for")
    return Choice(name, context, named["cluster"], named["user"])


def _impersonation(user: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The headers by which a user acts as another, as kubectl sends them. Raises ValueError."""
    name, groups, extra = (user.get(key) for key in ("as", "as-groups", "as-user-extra"))
    given = [("User", name), ("Uid", user.get("as-uid")), *(("Group", group) for group in _texts("as-groups", groups))]
    if not isinstance(extra or {}, Mapping):
        raise ValueError("as-user-extra of its user is no mapping of keys to lists of texts")
    for key, values in (extra or {}).items():
        given += [(f"Extra-{quote(str(key), safe=_NAME_MARKS)}", one) for one in _texts("as-user-extra", values)]
    found = [(f"Impersonate-{kind}", value) for kind, value in given if value not in (None, "")]
    if found and not name:
        raise ValueError("its user acts as another, but `as` does not say as whom; name one, or take the others away")
    for header, value in found:
        _check_text(header, value)
        yield header, value


def _texts(field: str, values: Any) -> Sequence[str]:
    if not isinstance(values or [], list):
        raise ValueError(f"{field} of its user is no list of texts")
    return values or []


def _check_text(what: str, value: Any) -> None:
    """Raises ValueError for what can't stand in a header."""
    if not isinstance(value, str) or any(ord(mark) < 32 or ord(mark) == 127 for mark in value.strip()):
        raise ValueError(f"{what} is no text of one line")


def _read(path: Path) -> _File:
    """Raises ValueError."""
    try:
        document = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise ValueError(f"{where} is no YAML: {getattr(error, 'problem', None) or error}") from None
    if not isinstance(document, dict):
        raise ValueError(f"{path} is no kubeconfig, which begins with `apiVersion: v1` and `kind: Config`")
    return _File(path.absolute().parent, document)


def _named(files: Sequence[_File], kind: str) -> dict[str, dict[str, Any]]:
    """Contexts, clusters or users by their names; the first that has a name counts. Raises ValueError."""
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        for one in file.says.get(f"{kind}s") or ():
            if not isinstance(one, dict) or "name" not in one or not isinstance(one.get(kind) or {}, dict):
                raise ValueError(f"an entry of its {kind}s is not of the form `- name: NAME` with `{kind}: {{...}}`")
            found.setdefault(one["name"], _filled(one.get(kind) or {}, file.folder))
    return found


def _filled(fields: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Without fields that are empty or null, which kubectl takes for absent, and with whole paths."""
    filled = {key: value for key, value in fields.items() if value not in (None, "")}
    return filled | {key: str(folder / str(filled[key])) for key in _PATHS if key in filled}


def _silent(plugin: Mapping[str, Any]) -> str:
    """Of a credential plugin that gave nothing: the client library logs why, and goes on as nobody."""
    command = " ".join((plugin["command"], *(plugin.get("args") or ())))
    hint = f" ({plugin['installHint'].strip()})" if plugin.get("installHint") else ""
    if plugin.get("provideClusterInfo"):
        hint += "; it wants to be told of the cluster (provideClusterInfo), which it is by kubectl and not by Muster"
    return f"its credential plugin `{command}` gives no credentials: see what it wrote, and sign in anew{hint}"


def _scheme(token: str) -> str:
    """`bearer X`, as the service account's loader has it, with the scheme as RFC 6750 writes it."""
    scheme, _, rest = token.strip().partition(" ")
    return f"{scheme.capitalize()} {rest.strip()}" if rest else f"Bearer {scheme}"
