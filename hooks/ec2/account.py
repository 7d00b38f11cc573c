"""What an account may launch, and what it costs there: the quotas of EC2 and the prices of a site's types."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lading.hooks.deployment import current
from lading.hooks.ec2.client import EC2, EC2Error
from lading.hooks.ec2.offers import EC2Offers
from lading.hooks.site import Check
from lading.scheduling.catalogue import Catalogue
from lading.scheduling.gpus import not_supported
from lading.scheduling.machine_traits import ON_DEMAND, SPOT
from lading.scheduling.quotas import names_burstable, quota, vcpus

# https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html
NAMES = {
    ON_DEMAND: re.compile(r"Running On-Demand (.+) instances"),
    SPOT: re.compile(r"All (.+) Spot Instance Requests"),
}
# A family that is not called by the letters of its types.
CALLED = {"high": "u"}
# How many types without a price are named.
MOST_NAMED = 5


def quotas(ec2: EC2) -> dict[str, float]:
    """How many vCPUs may run at once, by quota as :func:`lading.scheduling.quotas.quota` calls it.

    :raises EC2Error: it could not be asked, or is not allowed
    """
    found: dict[str, float] = {}
    for name, value in ec2.quotas():
        for capacity_type, pattern in NAMES.items():
            if (match := pattern.fullmatch(name)) is not None and (letters := re.match("[A-Za-z]+", match[1])):
                first = letters.group().lower()
                key = f"{CALLED.get(first, first)} {capacity_type}"
                found[key] = min(value, found.get(key, value))
    return found


def quota_checks(offers: EC2Offers, catalogue: Catalogue) -> Iterator[Check]:
    """Whether the account may run what the site offers, by quota."""
    config = offers.config
    try:
        known = quotas(offers.ec2)
    except EC2Error as error:
        text = f"could not be examined, for servicequotas:ListServiceQuotas is not granted or AWS is away: {error}"
        yield Check("quotas", True, text, warns=True)
        return
    smallest: dict[str, float] = {}
    for kind in catalogue.types.values():
        for capacity_type in {each.capacity_type for each in kind.offerings}:
            name = quota(kind.name, capacity_type)
            its = vcpus(kind.name, kind.capacity.cpus)
            smallest[name] = min(smallest.get(name, its), its)
    for name, least in sorted(smallest.items()):
        if (most := known.get(name)) is None:
            yield Check(f"quota {name}", True, "AWS names none", warns=True)
        elif most < least:
            text = f"{most:g} vCPUs may run, and the smallest type offered has {least:g}; raise it in Service Quotas"
            yield Check(f"quota {name}", False, f"{text}, or leave such types out (exclude_types)")
        else:
            limit = config.max_vcpus.get(name.split()[0])  # type: ignore[call-overload]
            text = f"{most:g} vCPUs may run, all that runs in the account and region counted"
            if limit is not None and limit > most:
                text += f"; max_vcpus says {limit}, more than that: launches will be refused, and jobs wait"
            yield Check(f"quota {name}", True, text, warns=limit is not None and limit > most)


def price_check(offers: EC2Offers, catalogue: Catalogue) -> Check:
    """For how much of what the site offers there are prices, how old these are, and what the cheapest is."""
    priced = {name: kind.offerings for name, kind in catalogue.types.items() if kind.offerings}
    if not priced:
        text = offers.note or "no type that `instance_types` leaves has an image and a price in these zones"
        return Check("prices", False, f"{text}; correct `instance_types`, `ami` or `prices` in the table of the site")
    found = [(each.usd_per_hour, name, each) for name, offered in priced.items() for each in offered]
    usd, name, offering = min(found, key=lambda each: each[:2])
    zones = sorted({each.zone for _, _, each in found if each.zone is not None})
    if (most := offers.config.max_usd_per_hour) is not None and most < usd:
        text = f"max_usd_per_hour = {most:g} is less than the cheapest machine costs, {usd:.4f} USD per hour ({name}, "
        text += f"{offering.capacity_type}), so none will be launched; raise it, or offer smaller types"
        return Check("prices", False, text)
    text = f"{len(priced)} types in {', '.join(zones) or 'any zone'}, from {usd:.4f} USD per hour ({name}, "
    text += f"{offering.capacity_type}), with volumes and addresses; {'; '.join(catalogue.sources)}"
    if missing := sorted(catalogue.types.keys() - priced.keys()):
        more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
        text += f"; without a price, and never launched: {', '.join(missing[:MOST_NAMED])}{more}"
    if not any(map(names_burstable, offers.config.instance_types)):
        text += "; burstable types (such as t3.*) are left out, for `instance_types` does not name them"
    if others := sorted(name for name, kind in catalogue.types.items() if not_supported(kind.features)):
        text += f"; without their GPUs, which are not supported: {', '.join(others[:MOST_NAMED])}"
    return Check("prices", True, f"{text}; {offers.note}" if offers.note else text, warns=offers.note is not None)


def connection_checks(name: str) -> Iterator[Check]:
    """Whether Airflow has a connection to AWS; without one its hook uses other credentials than were meant."""
    if fault := current.deployment().aws_connection_fault(name):
        yield Check("connection", True, fault, warns=True)


def checks(offers: EC2Offers) -> Iterator[Check]:
    """Prices and quotas."""
    try:
        offers.round()
    except OSError as error:
        yield Check("prices", False, str(error))
        return
    catalogue = offers.catalogue or Catalogue({})
    yield price_check(offers, catalogue)
    yield from quota_checks(offers, catalogue)
