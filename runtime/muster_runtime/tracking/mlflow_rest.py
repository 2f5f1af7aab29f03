"""MLflow's tracking server, by its REST API (2.0) over the standard library.

Its own client would bring pandas and more into every training image, and may retry for minutes on its own account.
https://mlflow.org/docs/latest/rest-api.html has the calls and their limits.
"""

from __future__ import annotations

import base64
import json
import math
import os
import posixpath
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPException
from typing import Any, Final

from muster_runtime.tracking.tracker import Point, Rejected, Run, RunStatus, TrackerError

TIMEOUT_SECONDS: Final = 10.0
PARAMS_AT_ONCE: Final = 100
TAGS_AT_ONCE: Final = 100
KEY_LIMIT: Final = 250
PARAM_LIMIT: Final = 6000
TAG_LIMIT: Final = 5000
"""Characters that every store is guaranteed to keep."""
KEY_TAG: Final = "muster.job_uid"
"""By which the run of a job is found again."""
_NOT_IN_KEYS: Final = re.compile(r"[^\w\-. :/]")
_ANSWER_LIMIT: Final = 4 * 1024 * 1024

Object = dict[str, Any]


class MLflow:
    """Credentials and certificates come by the variables that MLflow's own client reads."""

    def __init__(self, uri: str, environ: Mapping[str, str] = os.environ) -> None:
        self._base = uri.rstrip("/")
        self._headers = {"Content-Type": "application/json", "User-Agent": "muster", **_authorization(environ)}
        handlers: list[urllib.request.BaseHandler] = [_Straight()]
        if self._base.startswith("https"):
            handlers.append(urllib.request.HTTPSHandler(context=_context(environ)))
        self._opener = urllib.request.build_opener(*handlers)
        self._run = ""
        self._params: dict[str, str] = {}

    def begin(self, run: Run) -> str:
        experiment, key = self._experiment(run.experiment), run.key.replace("'", "")  # it stands quoted in a filter
        found = self._find(experiment, key) if key else None
        if found is None:
            wanted = {KEY_TAG: key, **run.tags} if key else run.tags
            body = {
                "experiment_id": experiment,
                "run_name": run.name,
                "start_time": _milliseconds(run.started_at),
                "tags": _pairs(wanted, TAG_LIMIT)[:TAGS_AT_ONCE],
            }
            found = self._call("POST", "runs/create", body)["run"]
            self._run = found["info"]["run_id"]
        else:
            self._run = found["info"]["run_id"]
            self._call("POST", "runs/update", {"run_id": self._run, "status": RunStatus.RUNNING.value})
        self._params = {each["key"]: each["value"] for each in found.get("data", {}).get("params", ())}
        return f"{self._base}/#/experiments/{experiment}/runs/{self._run}"

    def params(self, values: Mapping[str, str]) -> None:
        """MLflow never changes a parameter: what is another value in a resumed run becomes a tag `param.NAME`."""
        wanted = {each["key"]: each["value"] for each in _pairs(values, PARAM_LIMIT)}
        fresh = [(name, value) for name, value in wanted.items() if name not in self._params]
        for part in _parts(fresh, PARAMS_AT_ONCE):
            self._log(params=[{"key": name, "value": value} for name, value in part])
            self._params.update(part)
        changed = {f"param.{name}": value for name, value in wanted.items() if self._params[name] != value}
        if changed:
            self.tags(changed)

    def tags(self, values: Mapping[str, str]) -> None:
        for part in _parts(_pairs(values, TAG_LIMIT), TAGS_AT_ONCE):
            self._log(tags=list(part))

    def metrics(self, points: Sequence[Point]) -> None:
        self._log(
            metrics=[
                {
                    "key": _key(point.name),
                    "value": point.value if math.isfinite(point.value) else _WORDS[str(point.value)],
                    "timestamp": _milliseconds(point.at),
                    "step": point.step,
                }
                for point in points
            ]
        )

    def end(self, status: RunStatus, at: float) -> None:
        self._call("POST", "runs/update", {"run_id": self._run, "status": status.value, "end_time": _milliseconds(at)})

    # ------------------------------------------------------------------------------------------------------------ parts

    def _experiment(self, name: str) -> str:
        """Its id; it is made where there is none."""
        for _ in range(2):
            try:
                query = urllib.parse.urlencode({"experiment_name": name})
                found = self._call("GET", f"experiments/get-by-name?{query}")["experiment"]
            except _Answered as answered:
                if answered.code != "RESOURCE_DOES_NOT_EXIST":
                    raise
            else:
                if found.get("lifecycle_stage") == "deleted":
                    raise TrackerError(
                        f"the experiment {name!r} was deleted in MLflow at {self._base}: restore it there, or name "
                        "another one in tracking.experiment"
                    )
                return str(found["experiment_id"])
            try:
                return str(self._call("POST", "experiments/create", {"name": name})["experiment_id"])
            except _Answered as answered:  # another job was quicker
                if answered.code != "RESOURCE_ALREADY_EXISTS":
                    raise
        raise TrackerError(f"MLflow at {self._base} has and has not the experiment {name!r}")

    def _find(self, experiment: str, key: str) -> Object | None:
        """The oldest run of the key that nobody has deleted."""
        body = {
            "experiment_ids": [experiment],
            "filter": f"tags.`{KEY_TAG}` = '{key}'",
            "order_by": ["attributes.start_time ASC"],
            "max_results": 1,
        }
        found = self._call("POST", "runs/search", body).get("runs") or []
        return found[0] if found else None

    def _log(self, **parts: list[Object]) -> None:
        self._call("POST", "runs/log-batch", {"run_id": self._run, **parts})

    def _call(self, method: str, path: str, body: Object | None = None) -> Object:
        """Raises TrackerError."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self._base}/api/2.0/mlflow/{path}", data=data, method=method, headers=self._headers
        )
        try:
            with self._opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
                raw = answer.read(_ANSWER_LIMIT)
        except urllib.error.HTTPError as error:
            where = error.headers.get("Location", "elsewhere")
            with error:
                raise _explained(self._base, error.code, error.read(_ANSWER_LIMIT), where) from error
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise TrackerError(f"MLflow at {self._base} can't be reached: {_words(reason)}") from error
        try:
            found = json.loads(raw or b"{}")
        except ValueError as error:
            raise TrackerError(_NO_MLFLOW.format(self._base)) from error
        if not isinstance(found, dict):
            raise TrackerError(_NO_MLFLOW.format(self._base))
        return found


_WORDS: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""Protocol Buffers' JSON has no other way to write these."""
_NO_MLFLOW: Final = "{} does not answer as an MLflow tracking server does: correct tracking.uri"


class _Answered(TrackerError):
    """An error of MLflow's own, by its `error_code`."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class _RejectedByMLflow(_Answered, Rejected):
    pass


class _Straight(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: a POST would become a GET, and the password would go to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _explained(base: str, status: int, body: bytes, location: str) -> TrackerError:
    try:
        told = json.loads(body)
        code, message = str(told["error_code"]), str(told.get("message") or "")[:300]
    except (ValueError, TypeError, KeyError):
        code, message = "", ""
    if status in (401, 403):
        text = message or body[:120].decode(errors="replace").strip()
        mend = "put MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, into the Secret"
        return TrackerError(
            f"MLflow at {base} refuses access ({status}{f': {text}' if text else ''}): {mend} that tracking.secretRef "
            "names"
        )
    if 300 <= status < 400:
        return TrackerError(f"{base} redirects to {location}: write that address into tracking.uri")
    if code:
        # A run that `mlflow gc` took away does not come again: another is begun.
        refused = status == 400 and code in ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")
        lasting = refused or code == "RESOURCE_DOES_NOT_EXIST"
        kind = _RejectedByMLflow if lasting else _Answered
        return kind(f"MLflow at {base}: {message or code}", code)
    if status in (404, 405):
        return TrackerError(_NO_MLFLOW.format(base))
    if status == 413:
        return Rejected(f"MLflow at {base}: the proxy before it takes no request of that size (413)")
    return TrackerError(f"MLflow at {base} answered {status}")


def _words(reason: object) -> str:
    if isinstance(reason, TimeoutError):
        return f"no answer within {TIMEOUT_SECONDS:g} s"
    return str(getattr(reason, "strerror", None) or reason or type(reason).__name__)


def _authorization(environ: Mapping[str, str]) -> dict[str, str]:
    token, user = environ.get("MLFLOW_TRACKING_TOKEN"), environ.get("MLFLOW_TRACKING_USERNAME")
    if user:  # as MLflow's client does, the name goes before the token
        password = environ.get("MLFLOW_TRACKING_PASSWORD", "")
        basic = base64.b64encode(f"{user}:{password}".encode()).decode()
        return {"Authorization": f"Basic {basic}"}
    return {"Authorization": f"Bearer {token.strip()}"} if token else {}


def _context(environ: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if file := environ.get("MLFLOW_TRACKING_SERVER_CERT_PATH"):
        context.load_verify_locations(file)
    if environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("true", "1"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _key(name: str) -> str:
    """MLflow takes names for paths and refuses `/lr`, `a//b` or `a/../b`; what they resolve to stands for them."""
    return posixpath.normpath("/" + _NOT_IN_KEYS.sub("_", name)[:KEY_LIMIT]).strip("/") or "_"


def _pairs(values: Mapping[str, str], limit: int) -> list[Object]:
    return [{"key": _key(name), "value": value[:limit]} for name, value in values.items()]


def _parts(values: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)
