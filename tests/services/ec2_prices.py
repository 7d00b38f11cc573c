"""The prices that a fake EC2 reports, the Price List and the history of spot prices; and the quotas of its account."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

from tests.services.ec2_ledger import Ledger

PAGE = 100


def product(name: str, usd: float) -> str:
    """A product of the Price List, as GetProducts answers it: JSON in JSON."""
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": f"{usd:.10f}"}}
    terms = {"OnDemand": {"SKU.TERM": {"priceDimensions": {"SKU.TERM.RATE": dimension}}}}
    attributes = {"instanceType": name, "regionCode": "us-east-1", "operatingSystem": "Linux"}
    return json.dumps({"product": {"productFamily": "Compute Instance", "attributes": attributes}, "terms": terms})


def products(ledger: Ledger, asked: Mapping[str, Any]) -> bytes:
    """A page of GetProducts."""
    names = sorted(ledger.catalogue.types)
    start = int(asked.get("NextToken") or 0)
    some = names[start : start + PAGE]
    found: dict[str, Any] = {"PriceList": [product(each, ledger.price(each, "", "on-demand")) for each in some]}
    if start + PAGE < len(names):
        found["NextToken"] = str(start + PAGE)
    return json.dumps(found).encode()


def spot_history(ledger: Ledger, form: Mapping[str, str], zones: Iterator[str]) -> bytes:
    """The answer to DescribeSpotPriceHistory: the price at the begin of the time that is asked for, and its changes."""
    names = [value for name, value in form.items() if name.startswith("InstanceType")] or list(ledger.catalogue.types)
    since, until = (moment(form[name]) if name in form else math.inf for name in ("StartTime", "EndTime"))
    items = "".join(
        f"<item><instanceType>{name}</instanceType><productDescription>Linux/UNIX</productDescription>"
        f"<spotPrice>{usd:.6f}</spotPrice><timestamp>{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%dT%H:%M:%S.000Z}"
        f"</timestamp><availabilityZone>{zone}</availabilityZone></item>"
        for zone in zones
        if form.get("AvailabilityZone", zone) == zone
        for name in names
        if name in ledger.catalogue.types
        for at, usd in within(ledger.history(name, zone, "spot"), since, until)
    )
    text = (
        '<DescribeSpotPriceHistoryResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>fake</requestId>'
        f"<spotPriceHistorySet>{items}</spotPriceHistorySet><nextToken/></DescribeSpotPriceHistoryResponse>"
    )
    return text.encode()


def within(history: list[tuple[float, float]], since: float, until: float) -> list[tuple[float, float]]:
    """The changes of a time, and the last one before it."""
    before = [each for each in history if each[0] <= since]
    return before[-1:] + [each for each in history if since < each[0] <= until]


def moment(text: str) -> float:
    """Epoch seconds of a time as clients of AWS write it."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def quotas(ledger: Ledger) -> bytes:
    """The answer to ListServiceQuotas: what tests have set, or what a new account has; and some that are others'."""
    names = {
        ("standard", "on-demand"): "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
        ("standard", "spot"): "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests",
        ("g", "on-demand"): "Running On-Demand G and VT instances",
        ("p", "spot"): "All P4, P3 and P2 Spot Instance Requests",
        ("u", "on-demand"): "Running On-Demand High Memory instances",
    }
    found = [
        {"QuotaName": name, "Value": ledger.quotas.get(key, 32 if key[0] == "standard" else 0)}
        for key, name in names.items()
    ]
    found += [
        {"QuotaName": "All P5 Spot Instance Requests", "Value": 192},
        {"QuotaName": "EC2-VPC Elastic IPs", "Value": 5},
    ]
    return json.dumps({"Quotas": found}).encode()
