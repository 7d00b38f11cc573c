#!/usr/bin/env python3
"""Print new secrets for an Airflow with Lading, as lines NAME=value: make_secrets.py HOST-OF-THE-DATABASE > FILE

Checked: its output started the systemd units and the commands of compose.yaml (docs/how_to/deployment.md).
"""

import base64
import secrets
import sys

if len(sys.argv) != 2:
    sys.exit("name the host of the database: postgres with compose.yaml, 127.0.0.1 for one on this machine")
password = secrets.token_urlsafe(48)
print(f"""\
AIRFLOW__API_AUTH__JWT_SECRET={secrets.token_urlsafe(48)}
AIRFLOW__API__SECRET_KEY={secrets.token_urlsafe(48)}
AIRFLOW__CORE__FERNET_KEY={base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()}
AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=postgresql+psycopg2://airflow:{password}@{sys.argv[1]}/airflow
POSTGRES_PASSWORD={password}""")
