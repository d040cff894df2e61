"""What is concluded from the metrics of several members."""

import pytest

from headway.errors import ConfigError
from headway.inspection.member_metrics import MemberFigures, MemberMetrics, seconds_per_record, tenants_of

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


@pytest.mark.parametrize("url", ["file:///etc/passwd", "10.0.0.7:8080", "http://", "ftp://host/metrics"])
def test_what_is_no_address_of_metrics_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not the address of metrics"):
        MemberMetrics([url])


def test_a_password_in_an_address_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as refused:
        MemberMetrics(["ftp://ann:secret@host/metrics"])
    assert "secret" not in str(refused.value)
