"""What PBS Pro, OpenPBS and TORQUE say: why they refuse something (pbs_error.h, and the texts in pbs_messages.c)."""

from __future__ import annotations

from lading.hooks.batch.refusals import Wording, any_of

WORDING = Wording(
    permanent=any_of(
        "violates queue and/or server resource limits",
        # TORQUE says the same of a request that no node can ever give and of nodes that are busy.
        "exceeds queue resource limits(?!.*cannot locate feasible nodes)",
        "cannot satisfy",
        # Of one job, not of how many there are.
        r"walltime (?:limit )?exceed|exceed\w* (?:the )?(?:max\w* )?walltime",
        "unknown queue",
        "unknown resource",
        "unauthorized request",
        "access .*denied",
        "illegal",
    ),
    limit=any_of(
        "cannot locate feasible nodes",
        "would exceed",
        "exceeds? .*limit",
        "limit .*(?:reached|exceeded)",
        r"(?:reached|limit of|maximum of) .*(?:limit|jobs)",
        "array .*too large",
        "maximum number of jobs",
        "max_(?:queued|queuable|user_queuable|run)",
        "too many jobs",
        "limit on (?:the )?(?:total )?(?:number|jobs|resource)",
        "(?:queue|destination) is not (?:enabled|started)",
        "queue (?:is )?(?:currently )?(?:disabled|stopped|not available)",
        "licensed? (?:cpus|unavailable)",
        r"errno=1504[23]",
    ),
    transient=any_of(
        "cannot connect to (?:server|pbs|specified server)",
        "(?:could|can) ?(?:not|n't) (?:connect|contact)",
        "communication (?:failure|error|with)",
        "no default server",
        "server (?:is )?(?:busy|shutting down|down)",
        "end of file",
        "protocol",
        "pbs_iff",
        "munge",
        "(?:invalid|expired) credential",
        "system error",
        "internal (?:server )?error",
        "failed to save job",
        # Its qsub hands jobs to one in the background, which may have submitted it.
        "background qsub",
        "no free connections",
        "connection table full",
        "too many submit retries",
        "can ?not establish connection",
        r"(?:to|from|in) socket|socket close",
        "(?:unable to|error) (?:connect|contact|communicat)",
        "trqauthd",
    ),
    gone=any_of(
        "unknown (?:job|array) ?id",
        "job not found",
        "job has finished",
        "job [^ ]+ has finished",
        "(?:invalid|bad) (?:job )?state .*complete",
        "request invalid for state of job",
        "invalid (?:state for job|for finished array subjob)",
        "job array parameter|nonexistent (?:subjob|job id)",
    ),
    account=any_of(
        "unauthorized (?:request|user)", "access .*(?:denied|not allowed)", "bad [ug]id for job", "invalid account"
    ),
    # Asked for 9.trq1, qstat may say that it does not know 9.trq1.example.org.
    server=any_of(r"(?<=[\d\]])\.[a-z][\w.-]*"),
    ending=any_of("delete already in progress", "job cancel in progress"),
)
