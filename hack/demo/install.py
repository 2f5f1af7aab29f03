"""Puts Muster on a cluster as an administrator would: the chart, a bucket, and a Secret with the keys to it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hack import images
from hack.cluster.progress import Progress
from hack.demo.kube import Kube, KubeError

CHART = Path(__file__).resolve().parents[2] / "charts" / "muster"
SYSTEM = "muster-system"
RELEASE = "muster"
S3_SECRET = "s3-credentials"


def operator(kube: Kube, built: Mapping[str, str], progress: Progress, values: tuple[str, ...] = ()) -> None:
    """`helm upgrade --install` of the chart with the local images; returns when every replica is ready.

    The local images keep one tag, so an annotation of the pods tells Kubernetes when the image behind it changed:
    `built` is what `images.build_all` returned. Raises KubeError with what the operator's pods say.
    """
    registry, _, rest = images.OPERATOR.partition("/")
    repository, _, tag = rest.partition(":")
    own = (
        f"image.registry={registry}",
        f"image.repository={repository}",
        f"image.tag={tag}",
        f"runtime.image.repository={images.RUNTIME.partition('/')[2].partition(':')[0]}",
        f"runtime.image.tag={tag}",
        f"podAnnotations.muster\\.dev/built={built[images.OPERATOR]}",
        "defaultQueue.create=true",
    )
    settings = [word for value in (*own, *values) for word in ("--set", value)]
    with progress.part("helm upgrade --install muster charts/muster (a release that is there keeps its values)"):
        arguments = ["upgrade", "--install", RELEASE, str(CHART), "--namespace", SYSTEM, "--create-namespace"]
        arguments.append("--reset-then-reuse-values")
        try:
            kube.helm(*arguments, *settings, "--wait", "--timeout", "180s", timeout_s=240)
        except KubeError as error:
            raise KubeError(f"{error}\n{_pods(kube)}") from error


def _pods(kube: Kube) -> str:
    """The operator's pods and the ends of their logs."""
    try:
        selector = f"--selector=app.kubernetes.io/instance={RELEASE}"
        pods = kube.kubectl("get", "pods", "--namespace", SYSTEM, selector, "--output=wide")
        return pods + kube.kubectl("logs", "--namespace", SYSTEM, selector, "--tail=15", "--prefix")
    except KubeError as error:
        return str(error)


def namespace(kube: Kube, name: str, labels: dict[str, str] | None = None) -> None:
    """A namespace for jobs, with the Secret that their checkpoints need."""
    kube.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels or {}}},
        s3_secret(kube, name),
    )


def s3_secret(kube: Kube, namespace: str, name: str = S3_SECRET, secret_key: str | None = None) -> dict[str, Any]:
    """The Secret that `checkpoint.secretRef` names."""
    cluster = kube.cluster
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "stringData": {
            "AWS_ACCESS_KEY_ID": cluster.s3_access_key,
            "AWS_SECRET_ACCESS_KEY": secret_key or cluster.s3_secret_key,
            "AWS_REGION": cluster.s3_region,
            "AWS_ENDPOINT_URL_S3": cluster.s3_endpoint,
        },
    }


def s3_client(kube: Kube) -> Any:
    """boto3's client for the cluster's S3 server."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=kube.cluster.s3_endpoint,
        aws_access_key_id=kube.cluster.s3_access_key,
        aws_secret_access_key=kube.cluster.s3_secret_key,
        region_name=kube.cluster.s3_region,
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 5}, proxies={}),
    )


def bucket(kube: Kube, name: str) -> None:
    """Makes a bucket unless it is there."""
    client = s3_client(kube)
    if name not in [entry["Name"] for entry in client.list_buckets().get("Buckets", [])]:
        client.create_bucket(Bucket=name)


def empty(kube: Kube, bucket_name: str, prefix: str) -> None:
    """Deletes all objects under a prefix, so that a second run begins anew."""
    client = s3_client(kube)
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket_name, Prefix=prefix):
        for entry in page.get("Contents", []):
            client.delete_object(Bucket=bucket_name, Key=entry["Key"])
