"""What the init container brings serves any image and changes none of the user's imports."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hack import vendor

from muster_protocol import exits

pytestmark = pytest.mark.runtime

NOBODY = 65534
MACHINES = ("aarch64", "x86_64")
BROUGHT = ("boto3", "botocore", "s3transfer", "jmespath", "dateutil", "urllib3", "six", "prometheus_client", "zlib_ng")

PROBE = """\
import importlib.util, json, os, pkgutil, sys
names = sorted(m.name for m in pkgutil.iter_modules() if not m.name.startswith("_"))
found = {}
for name in names:
    spec = importlib.util.find_spec(name)
    found[name] = spec.origin or str(spec.submodule_search_locations)
import boto3, urllib3, six, prometheus_client
versions = {m.__name__: m.__version__ for m in (boto3, urllib3, six, prometheus_client)}
loaded = {n: getattr(m, "__file__", None) for n, m in sys.modules.items() if n != "__main__"}
with open(sys.argv[1], "w") as out:
    json.dump({"found": found, "versions": versions, "loaded": loaded, "path": sys.path, "python": sys.executable}, out)
"""


@pytest.fixture(scope="session")
def mounted() -> Iterator[Path]:
    """/muster as the init container leaves it, in a folder that every user may enter."""
    with tempfile.TemporaryDirectory(prefix="muster-mount-") as folder:
        root = Path(folder)
        root.chmod(0o755)
        vendor.write_context(root / "image")
        image, mount = root / "image" / "opt" / "muster", root / "muster"
        mount.mkdir()
        environment = {"PYTHONPATH": str(image / "lib"), "PATH": os.environ["PATH"]}
        for _ in range(2):  # kubelet may run an init container again
            command = [sys.executable, "-m", "muster_runtime.install", str(mount)]
            done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        yield mount


@pytest.fixture(scope="session")
def users_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment in which the user has other versions of what we bring."""
    folder = tmp_path_factory.mktemp("venv") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in BROUGHT:
        if name == "six":
            (site / "six.py").write_text("__version__ = 'the-users'\n")
        else:
            (site / name).mkdir()
            (site / name / "__init__.py").write_text("__version__ = 'the-users'\n")
    return folder


def test_no_import_of_the_users_resolves_differently(mounted: Path, users_venv: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROBE)
    environment = {"PATH": f"{users_venv}/bin:/usr/bin:/bin", "PYTHONPATH": str(tmp_path / "extra")}
    launch = [str(mounted / "bin" / "muster-launch"), "--"]
    seen = {}
    for name, prefix in (("without", []), ("with", launch)):
        command = [*prefix, "python", "train.py", f"{name}.json"]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        seen[name] = json.loads((tmp_path / f"{name}.json").read_text())
    without, with_muster = seen["without"], seen["with"]
    assert without["versions"] == dict.fromkeys(("boto3", "urllib3", "six", "prometheus_client"), "the-users")
    ours = {"muster_protocol", "muster_runtime"}
    assert {name: with_muster["found"].pop(name, None) is not None for name in ours} == dict.fromkeys(ours, True)
    assert with_muster["found"] == without["found"]
    assert with_muster["versions"] == without["versions"]
    assert with_muster["loaded"] == without["loaded"]
    assert with_muster["python"] == without["python"] == str(users_venv / "bin" / "python")
    assert [entry for entry in with_muster["path"] if entry != str(mounted / "lib")] == without["path"]
    assert sorted(path.name for path in (mounted / "lib").iterdir()) == sorted(ours)


def test_modules_beside_the_script_dont_break_the_launcher(mounted: Path, users_venv: Path, tmp_path: Path) -> None:
    for name in ("json", "asyncio", "signal", "prometheus_client", "muster_protocol"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the wrong module')\n")
    environment = {"PATH": f"{users_venv}/bin:/usr/bin:/bin", "PYTHONPATH": str(tmp_path)}
    command = [str(mounted / "bin" / "muster-launch"), "--", "sh", "-c", "echo ran as $RANK"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "ran as 0\n"), done.stderr


@pytest.mark.parametrize("run_root", [True, False])
def test_another_user_with_nothing_writable_but_the_mount_or_shared_memory(mounted: Path, run_root: bool) -> None:
    """As a pod with a read-only root and a user of its own: no home, no temporary folder."""
    if not shutil.which("python3", path="/usr/bin"):
        pytest.fail("this test uses the system's own /usr/bin/python3; install python3")
    as_user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/nonexistent",
        "TMPDIR": "/nonexistent",
        **({"MUSTER_RUN_ROOT": str(mounted / "run")} if run_root else {}),
    }
    command = [str(mounted / "bin" / "muster-launch"), "--nproc", "2", "--", "python3", "-c", _AS_SESSION]
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=60, **as_user)
    assert done.returncode == 0, done.stderr
    assert "[rank 1] said hello: True" in done.stdout
    assert not list((mounted / "run").iterdir())


_AS_SESSION = """
import os
from muster_runtime import report
from muster_runtime.control import ControlReader
from muster_runtime.reporter import Reporter
assert not ControlReader().stop_requested()
print("said hello:", Reporter().send(report.Hello(int(os.environ["RANK"]), os.getpid())))
"""


@pytest.mark.parametrize(
    ("programs", "told"),
    [({}, "no python3"), ({"python3": "exit 1"}, "older than 3.10"), ({"python": "exit 1"}, "older than 3.10")],
)
def test_an_image_without_a_usable_python_says_so(
    mounted: Path, tmp_path: Path, programs: dict[str, str], told: str
) -> None:
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    log = tmp_path / "termination"
    log.touch()
    environment = {"PATH": str(tmp_path), "MUSTER_TERMINATION_LOG": str(log)}
    command = [str(mounted / "bin" / "muster-launch"), "--", "python", "train.py"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 78
    assert told in done.stderr
    facts = json.loads(log.read_text())
    assert (facts["muster"], facts["cause"]) == (1, "config")
    assert told in facts["message"]


def test_a_stop_while_a_python_is_looked_for_is_heard(mounted: Path, tmp_path: Path) -> None:
    """By a shell that is process 1, to which the kernel brings no signal without a handler."""
    looks, go_on, log = (tmp_path / name for name in ("looks", "go-on", "termination"))
    (tmp_path / "python3").write_text(f"#!/bin/sh\n: >{looks}\nwhile [ ! -e {go_on} ]; do sleep 0.02; done\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    log.touch()
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "MUSTER_TERMINATION_LOG": str(log)}
    launcher = subprocess.Popen([str(mounted / "bin" / "muster-launch"), "--", "python3", "train.py"], env=environment)
    until = time.monotonic() + 20
    while not looks.exists() and time.monotonic() < until:
        time.sleep(0.02)
    launcher.send_signal(signal.SIGTERM)
    go_on.touch()
    assert launcher.wait(20) == 75
    facts = exits.decode(log.read_text())
    assert facts is not None
    assert (facts.cause, facts.exit_code) == (exits.Cause.PREEMPTED, 75)


def test_the_launcher_runs_on_the_commands_own_python(mounted: Path, users_venv: Path, tmp_path: Path) -> None:
    """A python3 that is first on PATH but isn't the command's must not be taken: it may be too old, or lack torch."""
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    python = str(users_venv / "bin" / "python")
    command = [str(mounted / "bin" / "muster-launch"), "--nproc=2", "--", python, "-c", "print('ok')"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "[rank 1] ok" in done.stdout


def test_every_python_and_machine_has_its_build_of_the_one_compiled_library(mounted: Path) -> None:
    found = {path.name for path in (mounted / "vendor").rglob("*.so")}
    wanted = {f"zlib_ng.cpython-3{minor}-{machine}-linux-gnu.so" for minor in (11, 12, 13, 14) for machine in MACHINES}
    assert found == wanted


def test_a_rank_sums_by_the_build_that_is_brought_and_keeps_its_own(mounted: Path, tmp_path: Path) -> None:
    (tmp_path / "zlib_ng.py").write_text("mine = True\n")
    script = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from muster_runtime.checkpoint.crc import crc32\n"
        "import zlib\n"
        "assert 'zlib_ng' not in sys.modules\n"
        "import zlib_ng\n"
        "assert zlib_ng.mine\n"
        "assert crc32 is not zlib.crc32\n"
        "assert crc32(b'muster') == zlib.crc32(b'muster')\n"
    )
    command = [sys.executable, "-I", "-S", "-c", script, str(mounted / "lib"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_vendored_code_is_complete_and_small(mounted: Path) -> None:
    tree = mounted / "vendor"
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import boto3, prometheus_client, pynvml\n"
        "for name in ('s3', 'sts', 'sso', 'sso-oidc'):\n"
        "    boto3.session.Session().client(name, region_name='us-east-1')\n"
        "outside = [n for n, m in sys.modules.items() if 'site-packages' in (getattr(m, '__file__', None) or '')]\n"
        "assert not outside, outside\n"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script, str(tree)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # What other tests have run from there is compiled.
    copied = (path for path in mounted.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    size = sum(path.stat().st_size for path in copied)
    assert size < 10e6, "the copy into each pod must stay small"
