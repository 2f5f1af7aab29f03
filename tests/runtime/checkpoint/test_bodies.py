"""What goes to S3 straight from memory: nothing copied, nothing signed that has a checksum, everything sent."""

from __future__ import annotations

import hashlib
import io
from typing import Any

import boto3
import botocore.awsrequest
import botocore.config
import pytest
import urllib3

from muster_runtime.checkpoint.bodies import Content, send_unsigned

pytestmark = pytest.mark.runtime
STATE = memoryview(bytearray(range(256)) * 20_000)


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", "https://127.0.0.1:1"])
def test_shards_are_sent_whole_and_unsigned_and_small_objects_signed(endpoint: str) -> None:
    requests: list[Any] = []
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        config=botocore.config.Config(request_checksum_calculation="when_required", s3={"addressing_style": "path"}),
    )
    send_unsigned(client)

    def answer(request: Any, **_: object) -> botocore.awsrequest.AWSResponse:
        requests.append(request)
        return botocore.awsrequest.AWSResponse(
            request.url, 200, {"ETag": '"1"'}, urllib3.HTTPResponse(io.BytesIO(), preload_content=False)
        )

    client.meta.events.register("before-send.s3.PutObject", answer)
    client.put_object(Bucket="models", Key="shard", Body=Content(STATE), ChecksumCRC32="AAAAAA==")
    client.put_object(Bucket="models", Key="LATEST", Body=b"small")
    shard, small = requests
    assert shard.headers["Content-Length"] == str(len(STATE))
    assert shard.headers["X-Amz-Content-SHA256"] == b"UNSIGNED-PAYLOAD"
    assert b"x-amz-checksum-crc32" in shard.headers["Authorization"].split(b"Signature")[0]
    assert shard.url == f"{endpoint}/models/shard"
    assert small.headers["X-Amz-Content-SHA256"] == hashlib.sha256(b"small").hexdigest().encode()


def test_a_body_is_read_again_from_where_it_is_set() -> None:
    body = Content(STATE)
    whole = b"".join(iter(lambda: bytes(body.read(1)), b""))
    assert whole == STATE
    assert body.tell() == len(STATE)
    assert body.seek(-10, 2) == len(STATE) - 10
    assert body.read() == STATE[-10:]
    body.seek(0)
    assert b"".join(iter(lambda: bytes(body.read(1)), b"")) == STATE
