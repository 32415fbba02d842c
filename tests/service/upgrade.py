#!/usr/bin/env python3
"""A service with agents goes from one version to the next: upgrade.py OLD NEW.

The service first, then one agent after the other, as docs/operate/agents.md says. Each fit has to be answered once, agents of the other version get
nothing, and the old version does not touch what the new one has made of its database. OLD and NEW have to answer by other rules, as any two builds of other sources do.
"""
import argparse
import contextlib
import pathlib
import subprocess
import tempfile

from served import Failed, Server, check, free_port, until

KIND = "h100-80g"


def question(number):
    return {"model": {"preset": "resnet18", "num_classes": 10 + number}, "device": KIND, "memory_limit": "20GiB"}


class Agents:
    def __init__(self, folder, port):
        self.folder, self.port, self.running = folder, port, {}

    def start(self, batchfit, name):
        log = open(self.folder / f"{name}.log", "ab")
        self.running[name] = subprocess.Popen(
            [batchfit, "agent", "--server", f"http://127.0.0.1:{self.port}", "--name", name, "--simulate", KIND, "--grace", "5"], stdout=log, stderr=log)

    def text(self, name):
        return (self.folder / f"{name}.log").read_text()

    def is_told(self, name):
        """Whether the service has said to it that it is another version or build; it may have ended then."""
        return "with other rules" in self.text(name) or "start the agent with" in self.text(name)

    def drain(self, name):
        """Its exit code; it may have ended by itself."""
        agent = self.running.pop(name)
        agent.terminate()
        return agent.wait(30)

    def end(self):
        for agent in self.running.values():
            agent.kill()
            agent.wait()


def state(server, fit):
    return server.call(f"/v1/fits/{fit}")[1]["state"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        folder = pathlib.Path(folder)
        port = free_port()
        agents = Agents(folder, port)
        stack.callback(agents.end)

        def serve(batchfit):
            return stack.enter_context(Server(batchfit, folder / "batchfit.db", "--agent-lease", "3", port=port))

        old = serve(given.old)
        for name in ("node1", "node2"):
            agents.start(given.old, name)
        until(lambda: len(old.call("/v1/agents")[1]["items"]) == 2, "both agents are registered")
        before = [old.call("/v1/fits", question(number))[1]["id"] for number in range(4)]
        until(lambda: all(state(old, fit) == "done" for fit in before), "the old service's fits are answered")
        answers = {fit: old.call(f"/v1/fits/{fit}")[1]["result"] for fit in before}
        old.process.terminate()
        check(old.process.wait(10) is not None, "the old service ends")

        new = serve(given.new)
        check(all(new.call(f"/v1/fits/{fit}")[1]["result"] == answers[fit] for fit in before), "answers are what they were")
        waiting = [new.call("/v1/fits", question(number))[1]["id"] for number in range(10, 14)]
        until(lambda: all(agents.is_told(name) for name in agents.running), "the old agents are told")
        check(not any(state(new, fit) == "done" for fit in waiting), "an agent of the other version got a fit")
        print("the service: on the old one's database, agents of the old version get nothing, fits wait")
        for name in ("node1", "node2"):
            agents.drain(name)
            agents.start(given.new, name)
        until(lambda: all(state(new, fit) == "done" for fit in waiting), "the new agents answer what waited")
        rows = new.call("/v1/recommendations?limit=500")[1]["items"]
        for fit in waiting:
            check(sum(row["fit_id"] == fit for row in rows) == 1, f"{fit} is answered once")
        new.process.terminate()
        new.process.wait(10)
        back = subprocess.Popen([given.old, "serve", "--listen", "127.0.0.1:0", "--database", str(folder / "batchfit.db")], stderr=subprocess.PIPE, text=True)
        try:
            _, said = back.communicate(timeout=5)
            check(back.returncode == 1 and "later version" in said, f"the old version leaves the database alone: {said[-300:]}")
            print("back again: the old version leaves the database alone")
        except subprocess.TimeoutExpired:
            back.kill()
            print("back again: the tables are the same, so the old version starts on them")
        check(not new.panics() and not old.panics(), "nothing panics")
        print("the agents: one after the other, each fit was answered once")


if __name__ == "__main__":
    try:
        main()
    except Failed as failed:
        raise SystemExit(f"FAILED: {failed}")
