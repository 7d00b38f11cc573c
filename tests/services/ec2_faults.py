"""What a fake EC2 refuses, and how EC2 says so.

The codes: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html. That a lack of capacity comes
as HTTP 500, which makes boto3 try again, is what issue threads show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

# What tests call it: HTTP status, code and message.
ERRORS = {
    "ice": (
        500,
        "InsufficientInstanceCapacity",
        "We currently do not have sufficient {type} capacity in the Availability Zone you requested ({zone}).",
    ),
    "quota": (
        400,
        "VcpuLimitExceeded",
        "You have requested more vCPU capacity than your current vCPU limit allows for the instance bucket that the "
        "specified instance type belongs to.",
    ),
    "spot quota": (400, "MaxSpotInstanceCountExceeded", "Max spot instance count exceeded"),
    "throttle": (503, "RequestLimitExceeded", "Request limit exceeded."),
    "unauthorized": (403, "UnauthorizedOperation", "You are not authorized to perform this operation."),
    "unavailable": (503, "Unavailable", "The server is overloaded and can't handle the request."),
    "unsupported": (
        400,
        "Unsupported",
        "Your requested instance type ({type}) is not supported in your requested Availability Zone ({zone}).",
    ),
    "dry": (412, "DryRunOperation", "Request would have succeeded, but DryRun flag is set."),
    "mismatch": (
        400,
        "IdempotentParameterMismatch",
        "Arguments on this idempotent request are inconsistent with arguments used in previous request(s).",
    ),
    "terminated": (
        400,
        "IdempotentInstanceTerminated",
        "The request cannot be completed because the instance of this client token has been terminated.",
    ),
}
# What happens to machines that are launched all the same.
OF_MACHINES = ("never boots", "another key", "hangs")
LAUNCH_ONLY = ("ice", "quota", "spot quota", "unsupported")


class Request:
    """A request to EC2 as far as faults depend on it."""

    def __init__(self, form: dict[str, str], zone_of: Callable[[str], str]) -> None:
        self.form = form
        self.action = form.get("Action", "")
        self.dry = form.get("DryRun") == "true"
        self.type = form.get("InstanceType", "")
        spot = form.get("InstanceMarketOptions.MarketType") == "spot"
        self.capacity_type = "spot" if spot else "on-demand"
        self._zone_of = zone_of

    @property
    def zone(self) -> str:
        subnet = self.form.get("SubnetId") or self.form.get("NetworkInterface.1.SubnetId")
        try:
            return self._zone_of(subnet) if subnet else self.form.get("Placement.AvailabilityZone", "")
        except Exception:  # there is no such subnet, which moto says
            return ""


@dataclass
class Rule:
    """Where something is refused; None: everywhere."""

    what: str
    type: str | None = None
    zone: str | None = None
    capacity_type: str | None = None
    action: str | None = None
    times: int | None = None

    def meets(self, request: Request) -> bool:
        if self.times == 0 or not fnmatchcase(request.action, self.action or "*"):
            return False
        if self.type is None and self.zone is None and self.capacity_type is None:
            return True
        return (
            fnmatchcase(request.type, self.type or "*")
            and self.zone in (None, request.zone)
            and self.capacity_type in (None, request.capacity_type)
        )


class Faults:
    """All that is refused now, and what has been asked."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self.stock: list[tuple[Rule, int]] = []
        self.slow: dict[tuple[str, str], float] = {}
        """After how many seconds requests are answered, by patterns of actions and instance types."""
        self.asked: Counter[str] = Counter()

    def add(self, what: str, action: str | None = None, **where: str | int | None) -> None:
        """:raises ValueError: nothing of that name is refused"""
        if what not in (known := (*ERRORS, *OF_MACHINES, "lost")):
            raise ValueError(f"{what!r} is not one of {', '.join(known)}")
        self.rules.append(Rule(what, action=action or "RunInstances", **where))  # type: ignore[arg-type]

    def offer(self, left: int, **where: str | None) -> None:
        """From now on so many instances are left of what is named."""
        self.stock.append((Rule("ice", action="RunInstances", **where), left))  # type: ignore[arg-type]

    def clear(self) -> None:
        self.rules.clear()
        self.stock.clear()
        self.slow.clear()

    def pause(self, request: Request) -> float:
        """Seconds from its arrival until a request is answered."""
        return max(
            (
                seconds
                for (action, type), seconds in list(self.slow.items())
                if fnmatchcase(request.action, action) and fnmatchcase(request.type, type)
            ),
            default=0.0,
        )

    def refusal(self, request: Request) -> tuple[int, bytes] | None:
        """The answer to a request that is refused; None: it is not. One for a trial lacks the permission at most."""
        for rule in self.rules:
            if rule.what in ("lost", *OF_MACHINES) or (request.dry and rule.what in LAUNCH_ONLY):
                continue
            if rule.meets(request):
                if rule.times is not None:
                    rule.times -= 1
                name = "spot quota" if rule.what == "quota" and request.capacity_type == "spot" else rule.what
                return error(*ERRORS[name], request)
        return None

    def is_lost(self, request: Request) -> bool:
        """Whether the answer shall never arrive."""
        for rule in self.rules:
            if rule.what == "lost" and rule.meets(request):
                if rule.times is not None:
                    rule.times -= 1
                return True
        return False

    def befalls(self, what: str, type: str) -> bool:
        """Whether something of :data:`OF_MACHINES` happens to machines of a type."""
        return any(rule.what == what and fnmatchcase(type, rule.type or "*") for rule in self.rules)

    def left(self, request: Request, wanted: int) -> tuple[int, str | None]:
        """How many of those that are wanted there are, and what the others are refused with."""
        least = min([wanted, *(left for rule, left in self.stock if rule.meets(request))])
        return least, "ice" if least < wanted else None

    def used(self, request: Request, number: int) -> None:
        self.stock = [(rule, left - number if rule.meets(request) else left) for rule, left in self.stock]


def error(status: int, code: str, message: str, request: Request | None = None) -> tuple[int, bytes]:
    if request is not None:
        message = message.format(type=request.type, zone=request.zone)
    text = (
        f"<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors>"
        "<RequestID>fake</RequestID></Response>"
    )
    return status, text.encode()
