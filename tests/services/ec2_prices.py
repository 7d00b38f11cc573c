"""The prices that a fake EC2 tells: the Price List and the history of spot prices."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.services.ec2_ledger import Ledger

SEEN = "2026-11-23T00:00:00.000Z"
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
    """The answer to DescribeSpotPriceHistory: the price of now."""
    names = [value for name, value in form.items() if name.startswith("InstanceType")] or list(ledger.catalogue.types)
    items = "".join(
        f"<item><instanceType>{name}</instanceType><productDescription>Linux/UNIX</productDescription>"
        f"<spotPrice>{ledger.price(name, zone, 'spot'):.6f}</spotPrice><timestamp>{SEEN}</timestamp>"
        f"<availabilityZone>{zone}</availabilityZone></item>"
        for zone in zones
        for name in names
        if name in ledger.catalogue.types
    )
    text = (
        '<DescribeSpotPriceHistoryResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>fake</requestId>'
        f"<spotPriceHistorySet>{items}</spotPriceHistorySet><nextToken/></DescribeSpotPriceHistoryResponse>"
    )
    return text.encode()
