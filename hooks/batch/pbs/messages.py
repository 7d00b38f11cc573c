"""What PBS Pro, OpenPBS and TORQUE say: why they refuse something (pbs_error.h, and the texts in pbs_messages.c)."""

from __future__ import annotations

from lading.hooks.batch.refusals import Wording, words

WORDING = Wording(
    permanent=words(
        "violates queue and/or server resource limits",
        # TORQUE says the same of a request that no node can ever give and of nodes that are busy.
        "exceeds queue resource limits(?!.*cannot locate feasible nodes)",
        "cannot satisfy",
        "unknown queue",
        "unknown resource",
        "unauthorized request",
        "access .*denied",
        "illegal",
    ),
    limit=words(
        "cannot locate feasible nodes",
        "would exceed",
        "exceeds? .*limit",
        "limit .*(?:reached|exceeded)",
        "maximum number of jobs",
        "max_(?:queued|queuable|user_queuable|run)",
        "too many jobs",
        "limit on (?:the )?(?:total )?(?:number|jobs|resource)",
        "(?:queue|destination) is not (?:enabled|started)",
        "queue (?:is )?(?:disabled|stopped)",
        r"errno=1504[23]",
    ),
    transient=words(
        "cannot connect to (?:server|pbs|specified server)",
        "(?:could|can) ?(?:not|n't) (?:connect|contact)",
        "communication (?:failure|error|with)",
        "no default server",
        "server (?:is )?(?:busy|shutting down|down)",
        "end of file",
        "protocol",
        "pbs_iff",
        "munge",
        "invalid credential",
        "system error",
        "internal (?:server )?error",
        "unable to (?:connect|contact|communicate)",
        "trqauthd",
    ),
    gone=words(
        "unknown job ?id",
        "job has finished",
        "job [^ ]+ has finished",
        "(?:invalid|bad) (?:job )?state .*complete",
        "request invalid for state of job",
        "invalid state for job",
        "job array parameter|nonexistent (?:subjob|job id)",
    ),
    account=words(
        "unauthorized (?:request|user)", "access .*(?:denied|not allowed)", "bad [ug]id for job", "invalid account"
    ),
)
