"""What an AWS account can launch, and at which prices: the EC2 quotas, and the prices of a site's instance types."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lading.hooks.deployment.deployment import Deployment
from lading.hooks.ec2.client import EC2, EC2Error
from lading.hooks.ec2.offers import EC2Offers
from lading.hooks.site import Check
from lading.scheduling.model.catalogue import Catalogue
from lading.scheduling.model.gpus import not_supported
from lading.scheduling.model.machine_traits import ON_DEMAND, SPOT
from lading.scheduling.model.quotas import names_burstable, quota, vcpus
from lading.scheduling.text.printable import first_few

# https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html
NAMES = {
    ON_DEMAND: re.compile(r"Running On-Demand (.+) instances"),
    SPOT: re.compile(r"All (.+) Spot Instance Requests"),
}
# A family whose quota is not named after the first letters of its types.
CALLED = {"high": "u"}


def quotas(ec2: EC2) -> dict[str, float]:
    """Return the vCPUs that can run at once, by quota as named by :func:`lading.scheduling.model.quotas.quota`.

    :raises EC2Error: AWS did not answer, or does not allow the request
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
    config = offers.config
    try:
        known = quotas(offers.ec2)
    except EC2Error as error:
        text = f"could not be checked: servicequotas:ListServiceQuotas is not granted, or AWS does not answer: {error}"
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
            yield Check(f"quota {name}", True, "AWS reports none", warns=True)
        elif most < least:
            text = f"{most:g} vCPUs can run, but the smallest type offered has {least:g}; raise it in Service Quotas"
            yield Check(f"quota {name}", False, f"{text}, or exclude such types (exclude_types)")
        else:
            limit = config.max_vcpus.get(name.split()[0])  # type: ignore[call-overload]
            text = f"{most:g} vCPUs can run, counting everything in the account and region"
            if limit is not None and limit > most:
                text += f"; max_vcpus = {limit} is higher: AWS will refuse launches beyond the quota, and jobs wait"
            yield Check(f"quota {name}", True, text, warns=limit is not None and limit > most)


def price_check(offers: EC2Offers, catalogue: Catalogue) -> Check:
    """Report how many of the offered types have a price, how current prices are, and the cheapest offer."""
    priced = {name: kind.offerings for name, kind in catalogue.types.items() if kind.offerings}
    if not priced:
        text = offers.note or "no type selected by `instance_types` has both an image and a price in these zones"
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
        text += f"; without a price, so never launched: {first_few(missing, 5)}"
    if not any(map(names_burstable, offers.config.instance_types)):
        text += "; burstable types (such as t3.*) are left out because `instance_types` does not name them"
    if others := sorted(name for name, kind in catalogue.types.items() if not_supported(kind.features)):
        text += f"; usable only without their GPUs, which are not supported: {', '.join(others[:5])}"
    return Check("prices", True, f"{text}; {offers.note}" if offers.note else text, warns=offers.note is not None)


def connection_checks(deployment: Deployment, name: str) -> Iterator[Check]:
    """Check that Airflow's AWS connection exists; otherwise its hook silently uses other credentials."""
    if fault := deployment.aws_connection_fault(name):
        yield Check("connection", True, fault, warns=True)


def checks(offers: EC2Offers) -> Iterator[Check]:
    try:
        offers.round()
    except OSError as error:
        yield Check("prices", False, str(error))
        return
    catalogue = offers.catalogue or Catalogue({})
    yield price_check(offers, catalogue)
    yield from quota_checks(offers, catalogue)
