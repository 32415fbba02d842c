#!/usr/bin/env python3
"""What agents cost that have nothing to do: transactions of PostgreSQL, and processor time of it and of the server, for each agent and second.

Starts one server on a cluster of PostgreSQL of its own, and agents with a simulated card each; waits; and asks for fits that are no agent's and for
some that are, one after the other.

    tests/service/idle.py BATCHFIT [--agents 40] [--seconds 40]

Standard library only, Linux, Debian's `postgresql`.
"""
import argparse
import contextlib
import pathlib
import shutil
import sys
import tempfile
import time

from agents import Process
from many_servers import Database
from served import Failed, Server, check, until
from size import Processors


def trial(given, stack):
    folder = pathlib.Path(tempfile.mkdtemp())
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    database = Database(folder)
    stack.callback(database.kill)
    server = stack.enter_context(Server(given.batchfit.resolve(), folder / "server", url=database.url))
    processors = Processors([server])

    def spent(work):
        """Transactions and seconds of processors for what is done."""
        count = lambda: int(database.ask("SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database"))
        # Sessions tell what they did once a second, when they are idle.
        time.sleep(1.5)
        before, then = count(), processors.now()
        work()
        time.sleep(1.5)
        now = processors.now()
        return count() - before, {whose: now[whose] - then[whose] for whose in now}

    def ask(device):
        def go():
            for number in range(10):
                body = {"model": {"preset": "resnet18"}, "device": device, "memory_limit": f"{4000 + number}MiB"}
                status, fit = server.call("/v1/fits", body, headers={"Prefer": "wait=30"})
                check(status == 200 and fit["state"] == "done", fit)
        return go

    nobody, _ = spent(lambda: time.sleep(given.seconds))
    alone, _ = spent(ask("sim:h200"))
    agents = [Process(folder, f"agent{number}", [str(given.batchfit.resolve()), "agent", "--server", f"http://127.0.0.1:{server.port}", "--name", f"node{number}",
                                                 "--simulate", "h100-80g"]) for number in range(given.agents)]
    stack.callback(lambda: [agent.kill() for agent in agents])
    until(lambda: len(server.call("/v1/agents")[1]["items"]) == given.agents, "all agents are registered")
    idle, taken = spent(lambda: time.sleep(given.seconds))
    each = given.agents * (given.seconds + 1.5)
    print(f"{given.agents} agents with nothing to do, {given.seconds} s: {(idle - nobody) / each:.2f} transactions of an agent in a second, "
          f"{1e6 * taken['PostgreSQL'] / each:.0f} us of PostgreSQL's processor time and {1e6 * taken['servers'] / each:.0f} us of the server's "
          f"(a service without agents: {nobody / (given.seconds + 1.5):.1f} transactions in a second)")
    for what, device, without in [("no agent's", "sim:a100-80g", alone), ("an agent's", "h100-80g", alone)]:
        count, _ = spent(ask(device))
        print(f"a fit that is {what}: {count / 10:.0f} transactions beside those agents, with what they do meanwhile ({without / 10:.0f} without agents)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("batchfit", type=pathlib.Path)
    parser.add_argument("--agents", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=40)
    with contextlib.ExitStack() as stack:
        try:
            trial(parser.parse_args(), stack)
        except Failed as why:
            sys.exit(f"FAILED: {why}")


if __name__ == "__main__":
    main()
