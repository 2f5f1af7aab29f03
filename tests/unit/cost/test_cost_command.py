"""`muster cost report` and `muster prices`, as a person calls them."""

from __future__ import annotations

import csv
import io
import json
import re
import sqlite3
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from muster.api.terms import Usage
from muster.cli.app import app
from muster.cli.cost import CHART
from muster.controllers.terms import spend
from muster.sizing.price_file import list_prices
from muster.sizing.prices import catalogue
from muster.telemetry.cost.chargeback import Report, notes, report
from muster.telemetry.cost.formats import to_csv
from muster.telemetry.cost.intervals import AttemptParts, Interval, JobFacts, PoolInterval, Stored
from muster.telemetry.cost.ledger import ledger
from muster.telemetry.cost.periods import month, next_month
from muster.telemetry.cost.rows import Entry, UnreadableRow, read, written
from muster.telemetry.history.database import engine_of, migrate
from muster.telemetry.history.database import parse as parse_url
from muster.telemetry.history.reading import Reader
from muster.telemetry.history.rows import Storage, place
from muster.telemetry.history.upserts import take_over, tell, write
from muster_protocol.checkpoints.file_store import FileStore
from muster_protocol.uris import CheckpointUri

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "cost"


def run(*arguments: str, columns: int = 200, **variables: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": str(columns), **variables})


def reported(*arguments: str) -> str:
    files = ("--intervals", str(EXAMPLE / "october.jsonl"), "--prices", str(EXAMPLE / "prices.yaml"))
    found = run("cost", "report", *files, "--month", "2026-10", *arguments)
    assert found.exit_code == 0, found.output
    return found.stdout


def test_the_table_ends_with_the_clusters_total() -> None:
    lines = reported().splitlines()
    assert lines[0].split()[:3] == ["QUEUE", "GPU", "HOURS"]
    assert [line.split()[0] for line in lines[1:5]] == ["research", "vision", "(idle)", "total"]


@pytest.mark.parametrize("form", ["table", "html", "csv", "json", "focus"])
def test_a_bill_at_list_prices_says_so_whoever_reads_it(form: str) -> None:
    asked = ("cost", "report", "--intervals", str(EXAMPLE / "october.jsonl"), "--month", "2026-10", "-o", form)
    found = run(*asked)
    assert found.exit_code == 0, found.output
    told = "At public list prices, since no --prices names a file"
    assert (told in found.stdout, told in found.stderr) == (form in ("table", "html"), form not in ("table", "html"))
    assert told not in run(*asked, "--prices", str(EXAMPLE / "prices.yaml")).output
    assert told not in run(*asked, "--no-list-prices").output


@pytest.mark.parametrize("by", ["queue", "namespace", "user", "project", "month", "job", "flavour", "queue,month"])
def test_every_table_has_the_same_total(by: str) -> None:
    whole = json.loads(reported("-o", "json", "--by", by))
    assert sum(Decimal(row["cost"]) for row in whole["rows"]) == Decimal(whole["total"]["cost"])
    assert whole["total"]["cost"] == json.loads(reported("-o", "json"))["total"]["cost"]


def test_json_has_the_names_that_all_json_of_ours_has_and_leaves_labels_as_they_are() -> None:
    (first, *_) = json.loads(reported("-o", "json", "--by", "label:cost_center"))["rows"]
    assert {"label:cost_center", "gpuHours", "gbMonths", "spotSaved"} < set(first)
    assert not [name for name in (*first, *first["waste"]) if "_" in name and not name.startswith("label:")]


def test_the_csv_adds_up_to_the_same() -> None:
    rows = list(csv.DictReader(io.StringIO(reported("-o", "csv", "--by", "user,month"))))
    assert sum(Decimal(row["cost"]) for row in rows) == Decimal(json.loads(reported("-o", "json"))["total"]["cost"])


def test_the_focus_file_has_the_same_total() -> None:
    rows = list(csv.DictReader(io.StringIO(reported("-o", "focus", "--cluster", "prod"))))
    total = sum(Decimal(row["BilledCost"]) for row in rows)
    assert round(total, 6) == Decimal(json.loads(reported("-o", "json"))["total"]["cost"])
    assert {row["BillingAccountId"] for row in rows} == {"prod"}


def test_the_page_has_every_row_and_the_total_and_trusts_no_name(tmp_path: Path) -> None:
    text = reported("-o", "html", "--by", "user,month", "--cluster", "<prod>")
    assert "Cost of &lt;prod&gt; by user, month" in text
    cells = re.findall(r'<td class="cost[^"]*">([0-9,.]+)</td>', text)
    amounts = [Decimal(cell.replace(",", "")) for cell in cells]
    assert sum(amounts[:-1]) == amounts[-1] == Decimal("14929.20")
    assert "<p>Wasted: starting 22.2" in text
    assert "in EUR" in text


def test_a_month_that_goes_on_has_a_forecast() -> None:
    begins = datetime(2026, 11, 1, tzinfo=timezone.utc)
    row = Interval("a", 1, 0, 0, "n", "H100", "on-demand", 2, begins - timedelta(days=3))
    prices = catalogue({"H100/on-demand": Decimal(1)}, currency="EUR", defaults=False)

    def until(days: float) -> Report:
        return report(ledger(prices, begins, begins + timedelta(days=days), [row]), [])

    assert (until(10).total.cost, until(10).forecast) == (Decimal(480), Decimal(1440))
    assert until(30).forecast is until(0.5).forecast is None
    came = replace(row, begins=begins + timedelta(days=10))
    late = report(ledger(prices, begins, begins + timedelta(days=12), [came]), [])
    assert (late.total.cost, late.forecast) == (Decimal(96), Decimal(960)), "Muster came on the 11th"
    assert next(notes(late)).startswith("Month to date, 2.0 days: 96.00 EUR")
    assert next(notes(until(10))) == (
        "Month to date, 10.0 days: 480.00 EUR; at this pace the month comes to 1,440.00 EUR"
    )


def test_money_is_never_cut_and_a_name_is_no_markup(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text((EXAMPLE / "october.jsonl").read_text().replace('"user": "', '"user": "[red]x[/blue]'))
    found = run("cost", "report", "--intervals", str(file), "--month", "2026-10", "--by", "user,queue", columns=80)
    assert found.exit_code == 0, found.output
    assert "[red]x[/blue]" in found.stdout
    assert "…" not in found.stdout


def test_an_annotation_neither_commands_the_terminal_nor_looks_like_a_row(tmp_path: Path) -> None:
    file, said = tmp_path / "rows.jsonl", r'"user": "\u001b[2J\u001b]0;x\u0007\u202ex\nmallory  9 '
    file.write_text((EXAMPLE / "october.jsonl").read_text().replace('"user": "', said))
    asked = ("cost", "report", "--intervals", str(file), "--month", "2026-10", "--by", "user")
    for lines in (on_terminal(*asked, columns=120), run(*asked).stdout.splitlines()):
        assert all(character.isprintable() for line in lines for character in line)
        assert sum("[2J]0;xx mallory 9" in line for line in lines) >= 1
        assert not [line for line in lines if line.startswith("mallory")]


def on_terminal(*arguments: str, columns: int = 80) -> list[str]:
    """The lines on a terminal that is so wide, without its colours."""
    found = run(*arguments, columns=columns, FORCE_COLOR="1", NO_COLOR="1", TERM="xterm")
    assert found.exit_code == 0, found.output
    return re.sub(r"\x1b\[[0-9;]*m", "", found.stdout).splitlines()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_line_of_json_ends_at_its_newline_alone(tmp_path: Path, end: str) -> None:
    begins, file = datetime(2026, 10, 1, tzinfo=timezone.utc), tmp_path / "rows.jsonl"
    held = Interval("uid", 1, 0, 0, "node", "H100", "on-demand", 8, begins, begins + timedelta(hours=1))
    user = "Ann\u2028Lee\x85"
    told = [json.loads(line) for line in written([held, JobFacts("uid", "ns", "job", "q", user=user)])]
    file.write_bytes(end.join(json.dumps(line, ensure_ascii=False) for line in told).encode())
    found = run("cost", "report", "--intervals", str(file), "--by", "user", "-o", "json")
    assert found.exit_code == 0, found.output
    assert [row["user"] for row in json.loads(found.stdout)["rows"]] == [user]


def test_the_report_fits_on_a_terminal() -> None:
    files = ("--intervals", str(EXAMPLE / "october.jsonl"), "--prices", str(EXAMPLE / "prices.yaml"))
    asked = ("cost", "report", *files, "--month", "2026-10")
    wide, narrow, narrowest = on_terminal(*asked, columns=90), on_terminal(*asked), on_terminal(*asked, columns=70)
    whole = [line.split() for line in reported().splitlines()[:5]]
    assert [line.split() for line in wide[:5]] == [line.split() for line in narrow[:5]] == whole
    for lines, columns in ((wide, 90), (narrow, 80), (narrowest, 70)):
        assert max(len(line.rstrip()) for line in lines) <= columns
    rows = [[int(cell.replace(",", "")) for cell in line.split()[1:]] for line in narrowest[1:5]]
    assert [sum(column) for column in zip(*rows[:3], strict=True)] == rows[3], "whole money adds up, too"
    assert narrowest[-1].strip() == "In whole EUR, for the terminal is narrow; -o csv has all digits"


def test_prices_fit_on_a_terminal_and_name_their_sources() -> None:
    lines = on_terminal("prices", "list", "--region", "aws/us-east-1")
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert [line.split()[-1] for line in lines[1:5]] == ["(1)", "(1)", "(2)", "(1)"]
    assert [line.strip() for line in lines[5:7]] == [
        "(1) https://aws.amazon.com/ec2/pricing/on-demand/",
        "(2) https://aws.amazon.com/s3/pricing/",
    ]
    assert "https://" in on_terminal("prices", "list", columns=120)[1]


def test_a_name_is_no_formula() -> None:
    begins = datetime(2026, 10, 1, tzinfo=timezone.utc)
    row = Interval("a", 1, 0, 0, "n", "H100", "on-demand", 1, begins, begins + timedelta(hours=1))
    prices = catalogue({"H100/on-demand": Decimal(1)}, currency="EUR", defaults=False)
    for name in ("=HYPERLINK(1)", "[red]x[/blue]", "@a", "+1", "-1"):
        facts = JobFacts("a", "n", "a", "q", user=name)
        table = report(ledger(prices, begins, next_month(begins), [row]), [facts], by=("user",))
        (cell,) = (line["user"] for line in csv.DictReader(io.StringIO(to_csv(table))))
        assert cell == (name if name[0] == "[" else f"'{name}")


def test_a_month_without_a_next_one_is_refused() -> None:
    for name in ("9999-12", "0000-01"):
        with pytest.raises(ValueError, match="is no month"):
            month(name)


def test_reconcile_tells_what_is_left_in_the_store(tmp_path: Path) -> None:
    url = parse_url(f"sqlite:///{tmp_path}/history.db")
    moment = datetime(2026, 11, 20, tzinfo=timezone.utc)
    gone, odd = f"file://{tmp_path}/gone", "gs://elsewhere/run"
    tell(url, [Storage(gone, moment, "a", 10**9), Storage(odd, moment, "b", 10**9)])
    asked = ("cost", "reconcile", "--database", f"sqlite:///{tmp_path}/history.db")
    dry = run(*asked, "--dry-run", columns=80)
    lines = [line.split() for line in dry.stdout.splitlines()]
    assert (dry.exit_code, lines[:2]) == (1, [["URI", "TAKES", "TOOK"], [gone, "0", "B", "1.00", "GB"]])
    assert dry.stdout.endswith("1 uri looked at, 1 changed, 1 could not be looked at, nothing written\n")
    assert odd in dry.stderr
    changed = [{"uri": gone, "job": "a", "bytes": 0, "was": 10**9}]
    told = json.loads(run(*asked, "--dry-run", "-o", "json").stdout)
    assert told == {"looked": 1, "changed": changed, "failed": [odd], "written": False}
    assert run(*asked, "--under", "file://").exit_code == 0
    reader = Reader(url)
    try:
        assert [(one.uri, one.bytes, one.job) for one in reader.storage()] == [(gone, 0, "a"), (odd, 10**9, "b")]
        (kept,) = (one for one in reader.stored(moment, moment + timedelta(days=900)) if one.job == "a")
        assert (kept.size, kept.begins, kept.ends is not None) == (10**9, moment, True)
    finally:
        reader.close()


def test_reconcile_looks_at_the_server_that_a_job_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = list[tuple[str, str]]()

    def opened(uri: CheckpointUri, endpoint: str) -> FileStore:
        looked.append((str(uri), endpoint))
        return FileStore(CheckpointUri("file", "", f"{tmp_path}/empty"))

    monkeypatch.setattr("muster.cli.reconcile.open_store", opened)
    moment, url = datetime(2026, 11, 20, tzinfo=timezone.utc), f"sqlite:///{tmp_path}/history.db"
    ours = Storage(place("s3://models/a", "http://minio:9000/"), moment, "a", 1)
    tell(parse_url(url), [ours, Storage(place("s3://models/a"), moment, "b", 2), Storage("s3://zoo", moment, "c", 3)])
    refused = run("cost", "reconcile", "--database", url, "--endpoint", "http://localhost:9000")
    assert (refused.exit_code, "can't stand for all of AWS's own, http://minio:9000" in refused.stderr) == (2, True)
    assert run("cost", "reconcile", "--database", url, "--dry-run").exit_code == 0
    assert looked == [("s3://models/a", ""), ("s3://models/a", "http://minio:9000"), ("s3://zoo", "")]
    looked.clear()
    assert run("cost", "reconcile", "--database", url, "--under", ours.uri, "--endpoint", "http://here").exit_code == 0
    assert looked == [("s3://models/a", "http://here")]
    reader = Reader(parse_url(url))
    try:
        assert [(one.uri, one.bytes) for one in reader.storage()][:2] == [("s3://models/a", 2), (ours.uri, 0)]
    finally:
        reader.close()


def test_a_jobs_status_and_the_ledger_say_the_same() -> None:
    rows = json.loads(reported("-o", "json", "--by", "job"))["rows"]
    row = next(row for row in rows if row["job"] == "vision/vit-l")
    seconds = round(Decimal(row["gpuHours"]) * 3600)
    gpus = Decimal(row["useful"]) + Decimal(row["wasted"])
    assert Decimal(spend(Usage(), seconds, 2.7).cost or 0) == round(gpus, 4)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "is no JSON"),
        ("[]", "is no object"),
        ("[" * 100_000, "is no JSON"),
        ('{"kind": "guess"}', "there is no kind 'guess'; there are interval, job"),
        ('{"kind": ["pool"]}', "there is no kind ['pool']; there are interval, job"),
        ('{"kind": "job", "uid": "a", "namespace": "b", "name": "\\ud800", "queue": "c"}', "is no JSON"),
        ('{"job": "a"}', "interval.attempt"),
        ('{"kind": "job", "uid": "a", "team": "b"}', "rows of kind 'job' have no field 'team'; they have uid"),
        (
            '{"kind": "pool", "gpu_type": "H100", "capacity": "spot", "gpus": -1, "begins": "2026-11-01T00:00:00Z"}',
            "negative",
        ),
        (
            '{"kind": "pool", "gpu_type": "H100", "capacity": "x", "gpus": 1, "begins": "2026-11-01T00:00:00Z"}',
            "'x' is none",
        ),
        (
            '{"kind": "pool", "gpu_type": "H100", "capacity": "spot", "gpus": 1, "begins": "2026-11-01T00:00:00"}',
            "no time zone",
        ),
        *(
            (
                f'{{"kind": "pool", "gpu_type": "H100", "capacity": "spot", "gpus": 1, "begins": "{begins}"}}',
                "before 1970 or after 9998",
            )
            for begins in ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59Z")
        ),
        ('{"kind": "parts", "job": "a", "attempt": 1, "seconds": {"hung": -1}}', "seconds.hung: is negative"),
        (
            '{"kind": "stored", "job": "a", "checkpoint": "1", "size": 1, "begins": "2026-11-02T00:00:00Z", '
            '"ends": "2026-11-01T00:00:00Z"}',
            "is before it begins",
        ),
    ],
)
def test_a_line_that_is_no_row_says_which_and_why(line: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f"\n{line}\n")
    found = run("cost", "report", "--intervals", str(file))
    assert found.exit_code == 2
    assert f"{file}:2: " in found.stderr
    assert said in found.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--intervals", "/nowhere"], "cannot read /nowhere: No such file"),
        (["--intervals", str(EXAMPLE / "october.jsonl"), "--month", "2026-13"], "'2026-13' is no month"),
        (["--intervals", str(EXAMPLE / "october.jsonl"), "--by", "team"], "nothing is grouped by 'team'"),
        ([], "docs/cost.md has an example of each"),
        (
            ["--intervals", str(EXAMPLE / "october.jsonl"), "--month", "2026-01", "-o", "csv"],
            "october.jsonl: nothing is told of 2026-01, but from 2026-09-30 to ",
        ),
        (
            ["--intervals", str(EXAMPLE / "october.jsonl"), "--region", "mars"],
            "no price is for region 'mars'; there are: aws",
        ),
        (
            ["--intervals", str(EXAMPLE / "october.jsonl"), "--month", "2926-01"],
            "october.jsonl: nothing is told of 2926-01, but from 2026-09-30 to ",
        ),
        (["--intervals", "/dev/null"], "/dev/null: no row tells of GPUs or storage"),
    ],
)
def test_what_was_asked_wrongly_is_said(arguments: list[str], said: str) -> None:
    found = run("cost", "report", *arguments)
    assert (found.exit_code, said in found.stderr, found.stdout) == (2, True, ""), found.stderr


def test_a_group_counts_once_and_a_label_that_no_job_has_is_said() -> None:
    assert reported("--by", "queue,user, queue").splitlines()[0].split()[:3] == ["QUEUE", "USER", "GPU"]
    assert "No job of these has a label nokey" in reported("--by", "label:nokey")
    assert "No job of these" not in reported("--by", "queue")


def test_a_month_that_the_history_does_not_know_is_no_bill_of_nothing(tmp_path: Path) -> None:
    url, moment = f"sqlite:///{tmp_path}/history.db", datetime(2026, 10, 2, tzinfo=timezone.utc)
    engine = engine_of(parse_url(url), writes=True)
    with engine.begin() as connection:
        migrate(connection)
        term = take_over(connection, "one", moment, moment)
        write(connection, term, [(1, PoolInterval("H100", "spot", 10, moment, moment + timedelta(hours=1)))])
    engine.dispose()
    assert run("cost", "report", "--database", url, "--month", "2026-10").exit_code == 0
    found = run("cost", "report", "--database", url, "--month", "2026-09", "-o", "json")
    told = f"{tmp_path}/history.db tells of nothing in 2026-09; it was written until 2026-10-02 00:00 UTC"
    assert (found.exit_code, found.stdout, told in found.stderr) == (2, "", True), found.stderr


def test_a_month_that_is_to_come_is_no_bill_of_nothing(tmp_path: Path) -> None:
    """Not even where something goes on; so it is in a month's first seconds, too."""
    url, moment = f"sqlite:///{tmp_path}/history.db", datetime(2026, 10, 2, tzinfo=timezone.utc)
    engine = engine_of(parse_url(url), writes=True)
    with engine.begin() as connection:
        migrate(connection)
        term = take_over(connection, "one", moment, moment)
        write(connection, term, [(1, PoolInterval("H100", "spot", 10, moment, None))])
    engine.dispose()
    found = run("cost", "report", "--database", url, "--month", "2026-11", "-o", "json")
    assert (found.exit_code, found.stdout) == (2, "")
    assert "tells of nothing in 2026-11; it was written until 2026-10-02 00:00 UTC" in found.stderr


@pytest.mark.parametrize("with_gpus", [False, True])
def test_the_files_whole_time_is_that_of_what_was_kept_too(with_gpus: bool, tmp_path: Path) -> None:
    kept, file = Stored("a", "1", 730 * 10**9, moment_of(9, 1), moment_of(10, 1)), tmp_path / "rows.jsonl"
    held = Interval("a", 1, 0, 0, "n", "H100", "spot", 1, moment_of(9, 20), moment_of(9, 21))
    file.write_text("\n".join(written([kept, held] if with_gpus else [kept])))
    found = run("cost", "report", "--intervals", str(file), "-o", "json")
    assert json.loads(found.stdout)["total"]["gbMonths"] == "720.00", "thirty days"


def moment_of(month: int, day: int) -> datetime:
    return datetime(2026, month, day, tzinfo=timezone.utc)


def test_a_database_may_be_named_by_a_variable_and_files_go_before_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/history.db"
    tell(parse_url(url), [Storage("gs://elsewhere/run", datetime(2026, 11, 20, tzinfo=timezone.utc), "a", 1)])
    assert (
        run("cost", "reconcile", "--under", "s3://", MUSTER_HISTORY_URL=url).stdout == "0 uris looked at, 0 changed\n"
    )
    typed = run("cost", "reconcile", "--under", "s3://", "--database", url)
    assert "no uri begins with s3://; there are: gs://elsewhere/run" in typed.stderr
    assert "nobody has written to it yet" in run("cost", "report", MUSTER_HISTORY_URL=url).stderr, "it is that one"
    files = ("--intervals", str(EXAMPLE / "october.jsonl"), "--month", "2026-10")
    assert run("cost", "report", *files, MUSTER_HISTORY_URL=url).stdout.startswith("QUEUE")
    assert "give either" in run("cost", "report", *files, "--database", url).stderr


@pytest.mark.parametrize("command", ["report", "reconcile"])
def test_an_older_operators_database_and_none_at_all_are_told(command: str, tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    asked = ("cost", command, "--database", f"sqlite:///{path}")
    found = run(*asked)
    assert (found.exit_code, "cannot" in found.stderr, path.exists()) == (2, True, False), "a typo leaves no file"
    path.touch()
    found = run(*asked)
    assert (found.exit_code, "no operator has written one to" in found.stderr) == (2, True), found.stderr
    tell(parse_url(f"sqlite:///{path}"), [])
    with sqlite3.connect(path) as database:
        database.execute("UPDATE alembic_version SET version_num = '0001'")
        database.execute("DROP TABLE storage")
    found = run(*asked)
    assert found.exit_code == 2
    assert "version 0001, and this muster reads 0002: the operator that writes it is older; upgrade it" in found.stderr


def test_a_page_names_a_label_by_its_key_and_does_not_call_a_cluster_cluster() -> None:
    page = reported("-o", "html", "--by", "label:Team,queue")
    assert "<h1>Cost of the cluster by Team, queue</h1>" in page
    assert '<th class="group">Team</th><th class="group">Queue</th>' in page
    assert "<h1>Cost of moon by" in reported("-o", "html", "--cluster", "moon")
    (account,) = {row["BillingAccountId"] for row in csv.DictReader(io.StringIO(reported("-o", "focus")))}
    assert account == "cluster"


def test_the_history_gives_the_same_report_and_what_goes_on_is_counted_as_far_as_it_reaches(tmp_path: Path) -> None:
    begins, seen_at = datetime(2026, 10, 2, tzinfo=timezone.utc), datetime(2026, 10, 2, 3, tzinfo=timezone.utc)
    url = f"sqlite:///{tmp_path}/history.db"
    engine = engine_of(parse_url(url), writes=True)
    with engine.begin() as connection:
        migrate(connection)
        term = take_over(connection, "one", begins, seen_at)
        rows = [Interval("a", 1, 0, 0, "n", "H100", "spot", 8, begins), PoolInterval("H100", "spot", 10, begins)]
        write(connection, term, list(enumerate(rows)))
    engine.dispose()
    arguments = ("--prices", str(EXAMPLE / "prices.yaml"), "--month", "2026-10", "-o", "json")
    found = run("cost", "report", "--database", url, *arguments)
    assert found.exit_code == 0, found.output
    total = json.loads(found.stdout)["total"]
    assert (total["gpuHours"], total["useful"], total["idle"]) == ("30.00", "34.800000", "8.700000")
    assert total["wasted"] == "0.000000"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://x", "--database, or MUSTER_HISTORY_URL: mysql is not supported"),
        ("sqlite:////nowhere/x.db", "cannot use the history at /nowhere/x.db: unable"),
    ],
)
def test_a_database_that_is_none_or_is_away_is_said(url: str, said: str) -> None:
    found = run("cost", "report", "--database", url)
    assert (found.exit_code, said in found.stderr) == (2, True), found.output


def test_rows_are_read_as_they_were_written() -> None:
    moment = datetime(2026, 11, 1, tzinfo=timezone.utc)
    every: list[Entry] = [
        Interval("a", 1, 0, 0, "n", "H100", "spot", 8, moment, moment, True),
        JobFacts("a", "ns", "n", "q", "u", "p", {"x": "y"}),
        PoolInterval("H100", "spot", 8, moment),
        AttemptParts("a", 1, {"training": 5}),
        Stored("a", "100", 7, moment),
    ]
    found = read(written(every), "rows")
    assert [*found.intervals, *found.jobs, *found.pools, *found.parts, *found.stored] == every
    with pytest.raises(UnreadableRow):
        read(['{"gpus": "many"}'], "rows")


def test_prices_check_tells_what_is_wrong_in_a_file_and_in_values(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("prices: {H100/spot: 2}\ncost: {currency: USD, catalogue: {gpus: [{gpu: A100, hourly: 1}]}}\n")
    found = run("prices", "check", str(file))
    assert (found.exit_code, found.stdout.strip()) == (1, f"{file}: 1 problem, 1 price in USD")
    assert "cost.catalogue: gpus[0].capacity: is missing; write one of on-demand" in found.stderr
    assert run("prices", "check", str(EXAMPLE / "prices.yaml")).exit_code == 0
    file.write_text("prices: {H100/spot: '2,5', H100/on-demand: 7}\ncost: {currency: USD}\n")
    assert run("prices", "check", str(file)).stdout.strip() == f"{file}: 1 problem, 1 price in USD"
    file.write_text("{}")
    found = run("prices", "check", str(file))
    assert (found.exit_code, "names no price" in found.stderr) == (1, True)


def test_the_charts_values_are_known_without_any_price(tmp_path: Path) -> None:
    assert set(yaml.safe_load((ROOT / "charts/muster/values.yaml").read_text())) == CHART
    file = tmp_path / "values.yaml"
    for values in ("replicas: 1\nhistory: {database: sqlite}\n", "null\n"):
        file.write_text(values)
        assert run("prices", "list", "--prices", str(file)).stdout == run("prices", "list").stdout
    file.write_text("gpu: [{gpu: A100, capacity: spot, hourly: 1}]\n")
    assert "'gpu' is no part of a price file" in run("prices", "check", str(file)).stderr


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("prices: {H100/spot: nan}", "values.yaml: prices: H100/spot: nan is no price"),
        ("prices: {H100/spot: []}", "prices: H100/spot: [] is no price"),
        ("prices: {H100/spot: '2,5'}", "prices: H100/spot: 2,5 is no price"),
        ("prices: 2", "prices: is no map of numbers"),
        ("prices: {H100: 2}", "with one of on-demand, reserved, spot"),
        ("cost: {curency: EUR}", "values.yaml: cost: there is no 'curency'; did you mean 'currency'?"),
        (f"prices: {{{'H' * 64}/spot: 1}}", "HHH/spot: 1 is no price"),
        ("cost: {currency: [EUR]}", "there is no currency"),
        ("cost: {region: {a: b}}", "no price is for region"),
        (
            "prices: {H100/spot: 1}\ngpus: []",
            "'gpus' is no value of the chart, which a file with 'prices' is taken for",
        ),
        ("prices: {H100/spot: 1}\ncost: {}\nprices: {}", "line 3: 'prices' stands in line 1 already"),
    ],
)
def test_prices_check_takes_any_values(values: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(values)
    found = run("prices", "check", str(file))
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    assert said in found.stderr


def test_a_price_file_in_another_encoding_is_told_the_line(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_bytes("gpus:\n- {gpu: H100, capacity: spot, hourly: 1, source: Überlassung}\n".encode("latin-1"))
    assert f"{file}, line 2: it is not in UTF-8; save it in UTF-8" in run("prices", "check", str(file)).stderr


def test_money_of_no_currency_has_no_code(tmp_path: Path) -> None:
    """XXX is ISO 4217's, for programs."""
    values = tmp_path / "values.yaml"
    values.write_text("prices: {H100/on-demand: 2, A100/on-demand: 1}\n")
    asked = ("--prices", str(values))
    rows = ("cost", "report", "--intervals", str(EXAMPLE / "october.jsonl"), *asked)
    told = (run("prices", "check", str(values)), run("prices", "list", *asked), run(*rows), run(*rows, "-o", "html"))
    assert [one.exit_code for one in told] == [0, 0, 0, 0]
    assert not [one.output for one in told if "XXX" in one.output]
    assert "2 prices in a currency that cost.currency does not name" in told[0].stdout
    assert json.loads(run("prices", "list", *asked, "-o", "json").stdout)["currency"] == "XXX"


def test_prices_list_shows_what_holds_and_whence() -> None:
    lines = run("prices", "list", "--region", "aws/us-east-1").stdout.splitlines()
    assert any(line.split()[:3] == ["H100", "on-demand", "6.88"] for line in lines)
    assert lines[-1] == "Prices of region aws/us-east-1, as --region says"
    told = json.loads(run("prices", "list", "-o", "json", "--region", "aws/us-east-1").stdout)
    assert told["currency"] == "USD"
    assert [len(told[kind]) for kind in ("storage", "transfer")] == [1, 1]
    none = run("prices", "list", "--no-list-prices")
    assert (none.stdout, "no price holds" in none.stderr) == ("", True)
    nowhere = run("prices", "list", "--region", "mars")
    assert (nowhere.exit_code, nowhere.stdout, "no price is for region 'mars'" in nowhere.stderr) == (2, "", True)


def test_prices_list_says_why_these_and_names_the_other_regions() -> None:
    told = run("prices", "list").stdout.splitlines()[-1]
    assert told.startswith("No region is chosen, so list prices are those of coreweave: it lists the most GPU types")
    assert "takes another: aws/us-east-1, azure/eastus" in told
    wrong = run("prices", "list", "--region", "aws/us-esat-1")
    assert "no price is for region 'aws/us-esat-1'; did you mean 'aws/us-east-1'?" in wrong.stderr
    assert "Prices of region" not in wrong.stdout
    assert "No region" not in wrong.stdout


def test_that_the_list_prices_name_the_most_gpu_types_there_is_so() -> None:
    prices = list_prices()

    def types(region: str) -> int:
        kinds = [
            {price.gpu for price in prices.gpus if (price.region, price.capacity) == (region, kind)}
            for kind in ("on-demand", "spot")
        ]
        return len(kinds[0] & kinds[1])

    assert types(prices.region) == max(types(region) for region in {price.region for price in prices.gpus})


def test_no_bill_is_made_at_other_prices_than_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text("x: [")
    found = run("cost", "report", "--intervals", str(EXAMPLE / "october.jsonl"), "--prices", str(file))
    assert (found.exit_code, found.stdout) == (2, "")
    assert f"no report at other prices than those of {file}" in found.stderr


def test_a_list_of_prices_shows_what_holds_beside_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text("x: [")
    found = run("prices", "list", "--prices", str(file))
    assert (found.exit_code, "is no YAML" in found.stderr) == (0, True)
    assert "H100" in found.stdout
