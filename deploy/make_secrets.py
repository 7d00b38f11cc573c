#!/usr/bin/env python3
"""Write new secrets for an Airflow with Lading to a file that only you can read: make_secrets.py HOST FILE

HOST is the host of the database. The secrets are lines NAME=value. An existing file is never overwritten, because a
database may already use the password in it.

Checked: the systemd units (python -m tests.systemd) and the containers of compose.yaml started with its output.
"""

import base64
import secrets
import sys
from pathlib import Path

if len(sys.argv) != 3:
    sys.exit(
        "name the host of the database (postgres with compose.yaml, 127.0.0.1 for a database on this machine) "
        "and a new file, for example: make_secrets.py postgres .env"
    )
host, file = sys.argv[1], Path(sys.argv[2])
try:
    file.touch(mode=0o600, exist_ok=False)
except FileExistsError:
    sys.exit(
        f"{file} exists, and an installation may use its secrets. If none uses them, remove the file; otherwise name "
        "another file"
    )
except OSError as error:
    sys.exit(f"{file} cannot be written: {error.strerror}")
password = secrets.token_urlsafe(48)
file.write_text(f"""\
AIRFLOW__API_AUTH__JWT_SECRET={secrets.token_urlsafe(48)}
AIRFLOW__API__SECRET_KEY={secrets.token_urlsafe(48)}
AIRFLOW__CORE__FERNET_KEY={base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()}
AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=postgresql+psycopg2://airflow:{password}@{host}/airflow
POSTGRES_PASSWORD={password}
""")
