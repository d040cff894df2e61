"""What is concluded from the metrics of several members."""

import pytest

from headway.errors import ConfigError
from headway.inspection.member_metrics import MemberFigures, MemberMetrics, quantile, seconds_per_record, tenants_of
from headway.metrics.table import LEVEL_QUEUE_TIME

Samples = list[tuple[str, dict[str, str], float]]


def samples(seconds: float, attempts: float, used: float) -> Samples:
    of_handler, of_tenant = {"group": "billing", "handler": "bill"}, {"group": "billing", "tenant": "shop"}
    return [
        ("headway_handler_duration_seconds_sum", of_handler, seconds),
        ("headway_handler_duration_seconds_count", of_handler, attempts),
        ("headway_handler_duration_seconds_bucket", {**of_handler, "le": "1"}, 3),
        ("headway_handler_slots", of_handler, 20),
        ("headway_tenant_handler_seconds_total", of_tenant, used),
        ("headway_tenant_waiting", of_tenant, 7),
    ]


EARLIER = MemberFigures.of(100.0, samples(10, 100, 10) + samples(10, 100, 10))
NOW = MemberFigures.of(110.0, samples(15, 110, 60) + samples(15, 110, 20))


def test_a_record_takes_the_mean_time_of_the_recent_attempts_divided_by_all_slots() -> None:
    assert seconds_per_record(None, EARLIER, "billing") == pytest.approx(0.1 / 40)
    assert seconds_per_record(EARLIER, NOW, "billing") == pytest.approx(0.5 / 40)
    assert seconds_per_record(EARLIER, NOW, "mails") is None


def test_tenants_are_added_up_over_members_with_what_they_use_now() -> None:
    [tenant] = tenants_of(EARLIER, NOW)
    assert (tenant.group, tenant.tenant, tenant.handler_seconds, tenant.waiting) == ("billing", "shop", 80, 14)
    assert tenant.handler_seconds_per_second == 6.0
    assert tenants_of(None, NOW)[0].handler_seconds_per_second is None
    assert tenants_of(NOW._replace(at=90.0), EARLIER)[0].handler_seconds_per_second == 0.0  # a member has restarted


def waits(*counts: float) -> MemberFigures:
    """Two members whose histograms of the time in the queue have these counts up to 1 s, 10 s and any time."""
    bounds = zip(("1.0", "10.0", "+Inf", "odd"), (*counts, 9), strict=True)
    name, labels = "headway_level_queue_seconds_bucket", {"group": "billing", "level": "2"}
    return MemberFigures.of(100.0, [(name, {**labels, "le": bound}, count) for bound, count in bounds] * 2)


def test_the_time_below_which_most_records_waited_is_that_of_the_latest_ones() -> None:
    before, now = waits(500, 500, 500), waits(500, 600, 600)
    assert quantile(before, now, LEVEL_QUEUE_TIME, "billing", "2") == pytest.approx(1 + 9 * 0.95)
    assert quantile(None, now, LEVEL_QUEUE_TIME, "billing", "2", 0.5) == pytest.approx(0.6)
    assert quantile(now, before, LEVEL_QUEUE_TIME, "billing", "2") == pytest.approx(0.95)  # a member has restarted
    assert quantile(now, now, LEVEL_QUEUE_TIME, "billing", "2") is None
    assert quantile(before, waits(500, 500, 600), LEVEL_QUEUE_TIME, "billing", "2") == 10.0  # above all bounds
    assert quantile(before, now, LEVEL_QUEUE_TIME, "mails", "2") is None


@pytest.mark.parametrize("url", ["file:///etc/passwd", "10.0.0.7:8080", "http://", "ftp://host/metrics"])
def test_what_is_no_address_of_metrics_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not the address of metrics"):
        MemberMetrics([url])


def test_a_password_in_an_address_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as refused:
        MemberMetrics(["ftp://ann:secret@host/metrics"])
    assert "secret" not in str(refused.value)
