"""Commands called docker and apptainer that take what the real ones take, and run it without any container."""

from __future__ import annotations

import sys
from pathlib import Path

# A client of Docker's is not the container: when it is killed, that goes on, and ``docker rm --force`` ends it.
DOCKER = """#!{python}
import json, os, signal, subprocess, sys, time
from pathlib import Path

here, words = Path({folder!r}), sys.argv[1:]
with open(here / "calls", "a") as calls:
    calls.write(json.dumps(words) + "\\n")
if words[0] == "run":
    known = {{"--env": [], "--volume": []}}
    options, rest = {{}}, words[1:]
    while rest[0].startswith("--"):
        name, _, value = rest.pop(0).partition("=")
        if name in known:
            known[name].append(rest.pop(0))
        else:
            harmless = ("interactive", "init", "network", "workdir", "name", "user", "cpus", "cpu-shares", "memory")
            assert name[2:] in harmless, name
            options[name] = value
    image, *command = rest
    if image == "missing":
        sys.exit("Unable to find image 'missing:latest' locally")
    environment = {{name: os.environ[name] for name in known["--env"]}} | {{"PATH": os.environ["PATH"], "IMAGE": image}}
    child = subprocess.Popen(command, env=environment, cwd=options["--workdir"], start_new_session=True)
    (here / options["--name"]).write_text(str(child.pid))
    signal.signal(signal.SIGTERM, lambda number, frame: child.send_signal(number))
    sys.exit(child.wait())
elif words[0] == "rm":
    assert words[1] == "--force"
    if (here / "is_slow").exists():
        time.sleep(2)
    file = here / words[2]
    if file.exists():
        try:
            os.killpg(int(file.read_text()), signal.SIGKILL)
        except ProcessLookupError:
            pass
        file.unlink()
elif words[0] == "inspect":
    print((here / "killed_for_memory").exists() and "true" or "false")
else:
    sys.exit(f"docker: {{words[0]!r}} is not a docker command.")
"""
APPTAINER = """#!{python}
import json, os, sys
from pathlib import Path

words = sys.argv[1:]
with open(Path({folder!r}) / "calls", "a") as calls:
    calls.write(json.dumps(words) + "\\n")
assert words.pop(0) == "exec", words
while words[0].startswith("--"):
    if words.pop(0) in ("--bind", "--pwd"):
        words.pop(0)
image, *command = words
os.environ["IMAGE"] = image
os.execvp(command[0], command)
"""


def make(folder: Path) -> Path:
    """Make both in a folder, in which they note how they were called (``calls``)."""
    folder.mkdir()
    for name, text in (("docker", DOCKER), ("apptainer", APPTAINER)):
        (folder / name).write_text(text.format(python=sys.executable, folder=str(folder)))
        (folder / name).chmod(0o755)
    return folder
