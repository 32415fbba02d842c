#!/usr/bin/env python3
"""Does what a page shows of a section, as somebody would who reads it in an empty folder, and compares what is printed with what is shown.

The `console` blocks of the section are typed into one shell, one command after the other. Lines of output that are `...` stand for any number of lines,
and `...` in a line for any text. Commands with `sudo` are about the machine's own PostgreSQL and are left out: the database is a cluster of this
script's own in a temporary folder instead, with a role and a database as they make them, and its socket where the page has Debian's.

    tests/service/recipe.py BATCHFIT [--page docs/operate/agents.md] [--section "Two services, PostgreSQL and two agents"]

Standard library only, Linux, curl and jq, Debian's `postgresql`.
"""
import argparse
import contextlib
import getpass
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

from many_servers import Database
from served import Failed, check

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Where Debian's PostgreSQL listens.
SOCKET = "/var/run/postgresql"
# What is printed by the script itself, between commands.
MARK = "-- typed --"


def shown(page, section):
    """The commands of a section, each with the lines that it prints."""
    text = (ROOT / page).read_text()
    found = re.search(rf"^#+ {re.escape(section)}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    check(found, f"{page} has no section {section!r}")
    commands = []
    for block in re.findall(r"^```console\n(.*?)^```", found[1], re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                commands.append((line[2:], []))
            else:
                commands[-1][1].append(line.rstrip())
    return commands


def is_as_shown(printed, wanted):
    pattern = "".join(r"(?:.*\n)*" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + r"\n" for line in wanted)
    return re.fullmatch(pattern, "".join(line.rstrip() + "\n" for line in printed)) is not None


def trial(arguments, stack):
    commands = [(command, wanted) for command, wanted in shown(arguments.page, arguments.section) if not command.startswith("sudo ")]
    check(commands, "the section shows no commands")
    folder = pathlib.Path(tempfile.mkdtemp())
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    # PostgreSQL does not run as root.
    folder.chmod(0o755)
    place, data, bin = folder / "place", folder / "data", folder / "bin"
    for one in (place, data, bin):
        one.mkdir()
    (bin / "batchfit").symlink_to(arguments.batchfit.resolve())
    database = Database(data)
    stack.callback(database.kill)
    owner = getpass.getuser()
    for statement in [f'CREATE ROLE "{owner}" LOGIN', f'CREATE DATABASE batchfit OWNER "{owner}"']:
        database.ask(statement)
    socket = f"{database.folder}&port={database.port}"
    typed = "".join(f"{command.replace(SOCKET, socket)}\necho '{MARK}'\n" for command, _ in commands)
    shell = subprocess.Popen(["bash"], cwd=place, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(folder / "stderr", "w"), text=True, start_new_session=True,
                             env={"PATH": f"{bin}:{os.environ['PATH']}", "HOME": str(place), "LANG": "C.UTF-8", "no_proxy": "*"})
    try:
        # What runs beside the shell holds its output open, so that is read to the last mark and not to its end.
        shell.stdin.write(typed)
        shell.stdin.close()
        for command, wanted in commands:
            printed = []
            while (line := shell.stdout.readline()) and line.rstrip() != MARK:
                printed.append(line.rstrip())
            said = "\n".join(printed)
            check(is_as_shown(printed, wanted), f"$ {command}\n{said}\nand not as shown\n" + "\n".join(wanted) + "\n" + (folder / "stderr").read_text()[-1500:])
            print(f"ok  $ {command}", flush=True)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("batchfit", type=pathlib.Path)
    parser.add_argument("--page", default="docs/operate/agents.md")
    parser.add_argument("--section", default="Two services, PostgreSQL and two agents")
    with contextlib.ExitStack() as stack:
        try:
            trial(parser.parse_args(), stack)
        except Failed as why:
            sys.exit(f"FAILED: {why}")


if __name__ == "__main__":
    main()
