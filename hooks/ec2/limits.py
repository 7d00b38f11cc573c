"""How long a site of EC2 waits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class EC2Limits:
    """How long a site of EC2 waits for AWS and for its machines, in seconds. No tick waits for any of this.

    EC2 may not describe a new instance yet, and may briefly omit one that it has described before:
    https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html

    :param launch_timeout: for RunInstances, which can take long
    :param prices_timeout: for the Price List, which is large
    :param read_timeout: for other requests, which the next round repeats
    :param between_offers: between two rounds that request prices; these are cached for longer
    :param spot_age: of spot prices in use
    :param while_quiet: between two descriptions of instances while no instance changes
    :param until_described: until a new instance that is not described counts as missing
    :param until_missed: until one that is no longer described counts as missing
    :param boot: until a machine answers, even if a shorter time is expected
    :param first_hold: without launches after a refusal that concerns the whole account; grows to ``longest_hold``
    """

    launch_timeout: float = 60
    prices_timeout: float = 20
    read_timeout: float = 6
    between_offers: float = 30.0
    spot_age: float = 300.0
    while_quiet: float = 30.0
    until_described: float = 300.0
    until_missed: float = 60.0
    boot: float = 600.0
    first_hold: float = 60.0
    longest_hold: float = 900.0
