"""What the operator's settings make: prices, the history's database, rules. What is wrong in them is logged or refused
here, at the start."""

from __future__ import annotations

import logging
import secrets
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from muster.cli.settings import BadNodes, Settings
from muster.cluster.provisioning import Asking
from muster.controllers.quarantine import Rules
from muster.server.replica import History
from muster.sizing.price_file import read
from muster.sizing.prices import Catalogue, catalogue
from muster_protocol import env
from muster_protocol.durations import parse_duration

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

    from muster.telemetry.history.database import Renew
    from muster.telemetry.history.writer import Writer

log = logging.getLogger(__name__)


def history_of(settings: Settings, prices: Catalogue) -> History | None:
    """The history; None where none is kept, or the URL of its database is wrong, which is logged."""
    if not settings.history_url_file and not settings.history_url.get_secret_value():
        return None
    # Here and below, since a database's libraries cost 24 MiB, and most operators keep no history.
    from muster.telemetry.history.database import BadUrl, parse

    try:
        url = parse(_told_url(settings))
    except (BadUrl, OSError) as error:
        log.error("history: nothing is kept, for the database's URL is wrong: %s", error)
        return None
    return History(url, _renewal(settings, url) if settings.history_url_file else None, prices)


def _told_url(settings: Settings) -> str:
    """Raises OSError."""
    if settings.history_url_file:
        return Path(settings.history_url_file).read_text(errors="replace").strip()
    return settings.history_url.get_secret_value()


def _renewal(settings: Settings, url: URL) -> Renew:
    """What reads the file of the URL anew. `url`: as it was at the start."""
    from muster.telemetry.history.database import BadUrl, parse

    last = url

    def renew() -> URL:
        nonlocal last
        try:
            found = parse(_told_url(settings))
        except (BadUrl, OSError) as error:
            log.warning("history: %s has no URL to go by: %s; the one before is used", settings.history_url_file, error)
            return last
        if found.drivername == url.drivername:  # another kind of database is for another start
            last = found
        return last

    return renew


def history_writer(settings: Settings, history: History | None) -> Writer | None:
    """What writes the history, not started yet."""
    if history is None:
        return None
    from muster.telemetry.history.database import shown
    from muster.telemetry.history.writer import Writer

    kept = settings.history_retention
    retention = timedelta(seconds=parse_duration(kept)) if kept else None
    log.info("history: goes to %s", shown(history.url))
    return Writer(history.url, identity=settings.identity, retention=retention, renew=history.renew)


def node_hours(settings: Settings) -> tuple[tuple[str, float], ...]:
    """Of every kind of capacity: what the settings say, else what is supposed."""
    said = {kind.value: hours for kind, hours in settings.node_hours.items()}
    return tuple(sorted({**env.NODE_HOURS, **said}.items()))


def price_catalogue(settings: Settings) -> Catalogue:
    """All prices. What is wrong with them is logged, and stops nothing."""
    found = catalogue(
        settings.prices,
        read(settings.catalogue, "cost.catalogue"),
        region=settings.price_region,
        currency=settings.currency,
        defaults=settings.list_prices,
    )
    for problem in found.problems:
        log.warning("prices: %s; what is right is used all the same", problem)
    return found


def asking(settings: Settings) -> Asking | None:
    """How an autoscaler is asked for nodes, or None."""
    if not settings.provisioning_class:
        return None
    parameters = tuple(sorted(settings.provisioning_parameters.items()))
    return Asking(
        settings.provisioning_class, parameters, settings.provisioning_patience, settings.provisioning_node_selectors
    )


def quarantine_rules(settings: Settings) -> Rules | None:
    """When nodes are tainted, or None: they are not."""
    if settings.bad_nodes is not BadNodes.TAINT:
        return None
    window, forgive_after = parse_duration(settings.bad_nodes_window), parse_duration(settings.bad_nodes_forgive_after)
    return Rules(settings.bad_nodes_threshold, window, forgive_after, settings.bad_nodes_share)


def token_key(settings: Settings) -> bytes:
    """The configured key, or a random one with a warning: then a restart can't talk to launchers that run already."""
    text = settings.token_key.get_secret_value()
    if text:
        return text.encode()
    log.warning(
        "MUSTER_OPERATOR_TOKEN_KEY is not set: using a random key. Progress of jobs that run already can't be read; "
        "set it to the output of `openssl rand -hex 32`"
    )
    return secrets.token_bytes(32)
