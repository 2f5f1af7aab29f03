"""Kubeconfigs are read as kubectl reads them: which context counts, and as whom its user acts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.cli.settings import Settings
from muster.cluster.credentials import Credentials, CredentialsError
from muster.controllers.process import connect

pytestmark = pytest.mark.unit

Object = dict[str, Any]
TOKEN: Object = {"token": "first"}


def written(path: Path, user: Object | None = TOKEN, **cluster: Any) -> Path:
    """A kubeconfig whose parts all have the file's name; `user` is None for a context without one."""
    name = path.name
    context = {"cluster": name, "namespace": name} | ({"user": name} if user is not None else {})
    document = {
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}.example"} | cluster}],
        "users": [{"name": name, "user": user or {}}],
        "contexts": [{"name": name, "context": context}],
        "current-context": name,
    }
    path.write_text(yaml.safe_dump(document))
    return path


async def loaded(path: Path, context: str = "") -> Credentials:
    credentials = Credentials(path, context)
    await credentials.load()
    return credentials


async def test_of_several_files_the_first_ones_current_context_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [written(tmp_path / name) for name in ("a", "b")]
    (tmp_path / "none").write_text("users: []\n")
    for order in (files, files[::-1], [tmp_path / "none", *files]):
        monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, order)))
        first = next(path.name for path in order if path.name != "none")
        for chosen, context in ((first, ""), ("a", "a"), ("b", "b")):
            credentials = Credentials(context=context)
            await credentials.load()
            assert (credentials.server, credentials.namespace) == (f"https://{chosen}.example", chosen)


async def test_a_user_acts_as_another_with_the_headers_that_kubectl_sends(tmp_path: Path) -> None:
    acting = {"as": "jane", "as-uid": "7", "as-groups": ["a", "b,c"], "as-user-extra": {"x.io/Y%": ["1", "2"]}}
    credentials = await loaded(written(tmp_path / "a", TOKEN | acting))
    acted = (
        ("Impersonate-User", "jane"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b,c"),
        ("Impersonate-Extra-x.io%2FY%25", "1"),
        ("Impersonate-Extra-x.io%2FY%25", "2"),
    )
    assert credentials.headers() == (("Authorization", "Bearer first"), *acted)
    assert credentials.connection()["token"] == "first"
    written(tmp_path / "a")
    await credentials.load()
    assert credentials.headers() == (("Authorization", "Bearer first"),)


async def test_an_operator_acts_as_nobody_else(tmp_path: Path) -> None:
    path = written(tmp_path / "a", TOKEN | {"as": "jane"})
    with pytest.raises(CredentialsError, match=r"a has its user act as another \(`as`\), which kopf cannot: give"):
        await connect(Settings(kubeconfig=str(path)))


@pytest.mark.parametrize(
    ("user", "cluster", "said"),
    [
        (TOKEN | {"as-groups": ["a"]}, {}, "acts as another, but `as` does not say as whom"),
        (TOKEN | {"as": "a", "as-groups": "b"}, {}, "as-groups of its user is no list"),
        (TOKEN | {"as": "a", "as-user-extra": ["b"]}, {}, "as-user-extra of its user is no mapping"),
        (TOKEN | {"as": "a", "as-user-extra": {"b": "c"}}, {}, "as-user-extra of its user is no list"),
        (TOKEN | {"as": 7}, {}, "Impersonate-User is no text of one line"),
        ({"token": "wrapped at\nthe margin"}, {}, "its token is no text of one line"),
        (None, {}, "its context 'a' names no user, whom https://a.example would ask for"),
        (TOKEN, {"proxy-url": "socks5://127.0.0.1:1080"}, "has the proxy-url 'socks5://127.0.0.1:1080', and Muster"),
        (
            {
                "exec": {
                    "apiVersion": "client.authentication.k8s.io/v1",
                    "command": "false",
                    "provideClusterInfo": True,
                }
            },
            {},
            "it wants to be told of the cluster",
        ),
    ],
)
async def test_what_cannot_be_used_is_said(
    user: Object | None, cluster: dict[str, str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(CredentialsError) as raised:
        await loaded(written(tmp_path / "a", user, **cluster))
    assert said in str(raised.value)


async def test_a_namespace_that_yaml_reads_as_a_number_is_said(tmp_path: Path) -> None:
    path = written(tmp_path / "a")
    path.write_text(path.read_text().replace("namespace: a", "namespace: 2024"))
    with pytest.raises(CredentialsError, match="the namespace of its context 'a' is no text; write it in quotes"):
        await loaded(path)


async def test_what_kubectl_proxy_serves_needs_no_user(tmp_path: Path) -> None:
    credentials = await loaded(written(tmp_path / "a", None, server="http://127.0.0.1:8001"))
    assert (credentials.server, credentials.headers()) == ("http://127.0.0.1:8001", ())


async def test_fields_that_are_null_or_empty_count_as_absent(tmp_path: Path) -> None:
    authority = tmp_path / "authority.pem"
    authority.write_text("its certificate")
    cluster: Object = {"certificate-authority": "authority.pem", "insecure-skip-tls-verify": None, "proxy-url": None}
    user: Object = dict.fromkeys(("client-certificate", "exec", "auth-provider", "username", "password"))
    for empty in (None, ""):
        data: Object = {"certificate-authority-data": empty, "tls-server-name": empty}
        keys = {"client-certificate-data": empty, "client-key-data": empty, "tokenFile": empty}
        credentials = await loaded(written(tmp_path / "a", user | keys | TOKEN, **cluster, **data))
        assert credentials.headers() == (("Authorization", "Bearer first"),)
        settings = credentials.configuration
        assert (settings.ssl_ca_cert, settings.verify_ssl) == (str(authority), True)
        (tmp_path / "token").write_text("of a file")
        credentials = await loaded(written(tmp_path / "a", {"token": empty, "tokenFile": "token"}))
        assert credentials.headers() == (("Authorization", "Bearer of a file"),)


async def test_each_path_counts_from_the_file_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        for file in ("authority", "certificate", "key"):
            (tmp_path / name / file).write_text(name)
    user = {"client-certificate": "certificate", "client-key": "key"}
    parts = {
        "here": {"clusters": [{"name": "c", "cluster": {"server": "https://c", "certificate-authority": "authority"}}]},
        "there": {
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        },
    }
    for name, part in parts.items():
        (tmp_path / name / "config").write_text(yaml.safe_dump(part))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(f"{name}/config" for name in parts))
    credentials = Credentials()
    await credentials.load()
    settings = credentials.configuration
    assert settings.ssl_ca_cert == str(tmp_path / "here/authority")
    assert (settings.cert_file, settings.key_file) == (str(tmp_path / "there/certificate"), str(tmp_path / "there/key"))


async def test_nothing_that_is_lacking_has_tokens_told(tmp_path: Path) -> None:
    config = {"id-token": "a.e30.b", "refresh-token": "secret"}
    for provider in ({"name": "oidc", "config": config | {"id-token": None}}, {"name": "oidc", "config": {}}):
        with pytest.raises(CredentialsError) as raised:
            await loaded(written(tmp_path / "a", {"auth-provider": provider, "client-key-data": "secret"}))
        assert "secret" not in str(raised.value)
