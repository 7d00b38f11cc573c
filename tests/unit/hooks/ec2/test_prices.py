"""What machines cost, by whom that is said, and what they really have."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lading.hooks.ec2.limits import EC2Limits
from lading.hooks.ec2.prices import DAY, Prices, priced
from lading.scheduling.model.catalogue import BUNDLED_SOURCE, Catalogue
from tests.unit.hooks.ec2.test_launch import config

NOW = 1_790_000_000.0
ZONES = ("us-east-1a", "us-east-1b")


def product(name: str, usd: object, **terms: Any) -> str:
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": usd}}
    found = {"OnDemand": {"T": {"priceDimensions": {"R": dimension}}}, **terms}
    return json.dumps({"product": {"attributes": {"instanceType": name}}, "terms": found})


class Aws:
    """What AWS answers, on paper, in the place of both of its clients."""

    region = "us-east-1"
    clock_ahead = 0.0

    def __init__(self) -> None:
        self.usd: dict[str, object] = {"m5.large": "0.0900000000", "c5.large": "0.0800000000"}
        self.spot: list[tuple[str, str, str, int]] = [("m5.large", "us-east-1a", "0.03", 1)]
        self.zones = {"us-east-1a": ["m5.large", "c5.large"], "us-east-1b": ["m5.large"]}
        self.odd: list[Any] = []
        """Rows that make no sense."""
        self.asked: list[str] = []
        self.away = False

        self.reader = self.pricing = self

    def get_paginator(self, operation: str) -> Any:
        return SimpleNamespace(paginate=getattr(self, operation))

    def get_products(self, Filters: list[dict[str, str]], **_: Any) -> Iterator[dict[str, Any]]:
        self._ask("products")
        asked = {each["Field"]: each["Value"] for each in Filters}
        is_metal = asked["productFamily"] == "Compute Instance (bare metal)"
        for name, usd in sorted(self.usd.items()):
            if is_metal == (".metal" in name):
                found = usd if isinstance(usd, dict) else {"Shared": usd}
                there = {tenancy: it for tenancy, it in found.items() if asked.get("tenancy", tenancy) == tenancy}
                yield {"PriceList": [product(name, it) for it in there.values()]}

    def describe_instance_type_offerings(self, **_: Any) -> Iterator[dict[str, Any]]:
        self._ask("zones")
        found = [{"Location": zone, "InstanceType": name} for zone, names in self.zones.items() for name in names]
        yield {"InstanceTypeOfferings": [*found, *self.odd]}

    def describe_spot_price_history(self, **_: Any) -> Iterator[dict[str, Any]]:
        self._ask("spot")
        keys = "InstanceType", "AvailabilityZone", "SpotPrice", "Timestamp"
        found: list[Any] = [dict(zip(keys, each, strict=True)) for each in self.spot]
        for each in found:
            each["Timestamp"] = datetime.fromtimestamp(each["Timestamp"], timezone.utc)
        yield {"SpotPriceHistory": [*found, *self.odd]}

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if self.away:
            raise OSError("no route to host")


@pytest.fixture
def aws() -> Aws:
    return Aws()


@pytest.fixture
def prices(aws: Aws, tmp_path: Path) -> Callable[..., Prices]:
    def make(**wanted: Any) -> Prices:
        table = config(**{"instance_types": ["m5.large", "c5.large"], **wanted})
        return Prices(table, aws, ZONES, tmp_path)  # type: ignore[arg-type]

    return make


def offered(catalogue: Catalogue, name: str) -> list[tuple[str, str | None, float]]:
    return sorted((each.capacity_type, each.zone, each.usd_per_hour) for each in catalogue.types[name].offerings)


def test_the_price_list_counts_before_the_snapshot_in_the_zones_that_have_a_type(prices: Callable[..., Prices]) -> None:
    found = prices().catalogue(NOW)
    assert offered(found, "m5.large") == [("on-demand", zone, 0.09) for zone in ZONES]
    assert offered(found, "c5.large") == [("on-demand", "us-east-1a", 0.08)]
    assert found.sources == (f"AWS Price List of {time.strftime('%Y-%m-%d', time.gmtime(NOW))}",)


def test_it_is_asked_once_a_day_and_kept_where_aws_is_away(
    aws: Aws, prices: Callable[..., Prices], tmp_path: Path
) -> None:
    first = prices()
    first.catalogue(NOW)
    first.catalogue(NOW + DAY - 1)
    assert aws.asked.count("zones") == 1
    aws.away = True
    again = prices()  # another process
    assert offered(again.catalogue(NOW + 10), "m5.large")[0][2] == 0.09
    assert aws.asked.count("zones") == 1
    found = again.catalogue(NOW + DAY)
    assert offered(found, "m5.large")[0][2] == 0.09
    assert again.trouble == "AWS's prices could not be read: no route to host"
    assert time.strftime("%Y-%m-%d", time.gmtime(NOW)) in found.sources[0]
    asked = len(aws.asked)
    again.catalogue(NOW + DAY + 3600.0 - 1)
    assert len(aws.asked) == asked
    aws.away = False
    aws.usd["m5.large"] = "0.07"
    assert offered(again.catalogue(NOW + DAY + 3600.0), "m5.large")[0][2] == 0.07
    assert again.trouble is None


def test_without_an_answer_the_snapshot_counts_with_its_date(aws: Aws, prices: Callable[..., Prices]) -> None:
    aws.away = True
    found = prices().catalogue(NOW)
    assert found.sources == (BUNDLED_SOURCE,)
    assert offered(found, "m5.large") == [("on-demand", zone, 0.096) for zone in ZONES]


BAD_PRICE = '{"region": "us-east-1", "at": 9e9, "usd": {"m5.large": -1}, "zones": {}}'


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"region": "eu", "at": 1, "usd": {}, "zones": {}}', '{"at": "x"}', BAD_PRICE]
)
def test_what_was_kept_and_makes_no_sense_is_asked_anew(
    aws: Aws, prices: Callable[..., Prices], tmp_path: Path, text: str
) -> None:
    (tmp_path / "prices-us-east-1.json").write_text(text)
    assert offered(prices().catalogue(NOW), "m5.large")[0][2] == 0.09
    assert "products" in aws.asked


def test_the_users_file_counts_before_all(prices: Callable[..., Prices], tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        '[[instance_types]]\ninstance_type = "m5.large"\nvcpus = 2\nmemory_gib = 8\n'
        'offerings = [{usd_per_hour = 0.05}, {usd_per_hour = 0.06, zone = "us-east-1b"}]\n'
    )
    found = prices(prices=str(file)).catalogue(NOW)
    assert offered(found, "m5.large") == [("on-demand", "us-east-1a", 0.05), ("on-demand", "us-east-1b", 0.06)]
    assert offered(found, "c5.large")[0][2] == 0.08
    with pytest.raises(ValueError, match=r"nowhere\.csv cannot be read"):
        prices(prices=str(tmp_path / "nowhere.csv")).catalogue(NOW)
    file.write_text("[[instance_types]]\nvcpus = 'x'\n")
    with pytest.raises(ValueError, match=r"mine\.toml"):
        prices(prices=str(file)).catalogue(NOW)


def test_spot_prices_are_those_of_the_history_by_zone(aws: Aws, prices: Callable[..., Prices]) -> None:
    aws.spot += [
        ("m5.large", "us-east-1a", "0.02", 0),
        ("m5.large", "us-east-1b", "0.04", 1),
        ("c5.large", "us-east-1a", "x", 1),
    ]
    found = prices(capacity_type="spot").catalogue(NOW)
    assert offered(found, "m5.large") == [("spot", "us-east-1a", 0.03), ("spot", "us-east-1b", 0.04)]
    assert "c5.large" not in found.types  # its price is unknown
    both = prices(capacity_type="spot-with-fallback").catalogue(NOW)
    assert len(both.types["m5.large"].offerings) == 4


def test_spot_prices_change_within_minutes(aws: Aws, prices: Callable[..., Prices]) -> None:
    asked = prices(capacity_type="spot")
    asked.catalogue(NOW)
    aws.spot = [("m5.large", "us-east-1a", "0.05", 2)]
    assert offered(asked.catalogue(NOW + EC2Limits.spot_age - 1), "m5.large") == [("spot", "us-east-1a", 0.03)]
    assert offered(asked.catalogue(NOW + EC2Limits.spot_age), "m5.large") == [("spot", "us-east-1a", 0.05)]


def test_spot_prices_that_are_known_again_are_no_trouble(aws: Aws, prices: Callable[..., Prices]) -> None:
    """Also long before the price list is asked again."""
    asked = prices(capacity_type="spot")
    asked.catalogue(NOW)
    aws.away = True
    asked.catalogue(NOW + EC2Limits.spot_age)
    assert asked.trouble == "the spot prices could not be read: no route to host"
    aws.away = False
    asked.catalogue(NOW + 2 * EC2Limits.spot_age)
    assert asked.trouble is None


def test_one_bad_product_costs_itself_alone() -> None:
    rows = ["{", "[]", "null", product("a", "0"), product("b", "-1"), product("c", "nan"), product("d", None), 7]
    assert dict(priced([*rows, product("m5.large", "0.1")])) == {"m5.large": 0.1}


SPOT_ROW = {
    "InstanceType": "m5.large", "AvailabilityZone": "us-east-1a", "SpotPrice": "0.001",
    "Timestamp": datetime(2027, 1, 1, tzinfo=timezone.utc),
}  # fmt: skip
ODD = {
    "no row": [None, "x", 7, [], {}],
    "a price that is none": [{**SPOT_ROW, "SpotPrice": each} for each in ("-1", "nan", "inf", "", None, [], True)],
    "without a key": [{key: value for key, value in SPOT_ROW.items() if key != name} for name in SPOT_ROW],
    "another type": [{**SPOT_ROW, name: each} for name in SPOT_ROW for each in (None, [], {})],
    "a place without a name": [{"Location": each, "InstanceType": "c5.large"} for each in (None, "", 7, [])],
    "a type without a name": [{"Location": "us-east-1b", "InstanceType": each} for each in (None, "", 7, [])],
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_one_bad_row_of_zones_or_spot_prices_costs_itself_alone(
    aws: Aws, prices: Callable[..., Prices], odd: list[Any]
) -> None:
    whole = prices(capacity_type="spot-with-fallback").catalogue(NOW)
    aws.odd = odd
    asked = prices(capacity_type="spot-with-fallback")
    found = asked.catalogue(NOW + DAY)
    assert asked.trouble is None
    assert {name: offered(found, name) for name in found.types} == {name: offered(whole, name) for name in whole.types}
    assert asked._kept is not None
    assert asked._kept.zones == {zone: sorted(names) for zone, names in aws.zones.items()}


def test_a_pattern_that_matches_nothing_is_named(prices: Callable[..., Prices]) -> None:
    with pytest.raises(ValueError, match=r"'m99\.\*' matches none of the"):
        prices(instance_types=["m99.*"]).catalogue(NOW)


def test_what_the_region_has_no_price_for_is_not_offered(aws: Aws, prices: Callable[..., Prices]) -> None:
    del aws.usd["c5.large"]
    found = prices().catalogue(NOW)
    assert found.types.keys() == {"m5.large"}, "not at the price of the snapshot"
    assert prices(instance_types=["c5.large"]).catalogue(NOW).types == {}, "and that is no fault of the pattern"


def test_what_no_zone_has_is_not_offered_also_where_prices_may_not_be_asked(
    aws: Aws, prices: Callable[..., Prices], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> Any:
        raise OSError("AccessDeniedException")

    monkeypatch.setattr(aws, "get_products", refuse)
    aws.zones = {"us-east-1a": ["m5.large"]}
    asked = prices()
    found = asked.catalogue(NOW)
    assert offered(found, "m5.large") == [("on-demand", "us-east-1a", 0.096)], "zone b has none of them"
    assert found.types.keys() == {"m5.large"}
    assert asked.trouble == "AWS's prices could not be read: AccessDeniedException"


def test_bare_metal_is_asked_for_apart_and_costs_what_shared_tenancy_does(
    aws: Aws, prices: Callable[..., Prices]
) -> None:
    aws.usd |= {"c5.metal": {"Shared": "4.2", "Dedicated": "4.6"}, "m5.metal": {"Dedicated": "4.9"}}
    aws.zones["us-east-1a"] += ["c5.metal", "m5.metal"]
    found = prices(instance_types=["*.metal", "m5.large"]).catalogue(NOW)
    assert {name: kind.offerings[0].usd_per_hour for name, kind in found.types.items()} == {
        "m5.large": 0.09, "c5.metal": 4.2, "m5.metal": 4.9,
    }  # fmt: skip


def test_a_zone_that_is_new_in_the_table_is_asked_for_at_once(
    aws: Aws, prices: Callable[..., Prices], tmp_path: Path
) -> None:
    prices().catalogue(NOW)
    aws.zones["us-east-1c"] = ["c5.large"]
    table = config(instance_types=["m5.large", "c5.large"])
    later = Prices(table, aws, (*ZONES, "us-east-1c"), tmp_path)  # type: ignore[arg-type]
    assert offered(later.catalogue(NOW + 10), "m5.large") == [("on-demand", zone, 0.09) for zone in ZONES]
