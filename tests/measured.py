#!/usr/bin/env python3
"""Runs test binaries: measures every test, and ends a binary that hangs.

  tests/measured.py BINARY [ARGUMENT…]   runs a test binary, as Cargo asks its runner to
  tests/measured.py --all [--alone NAME[=THREADS]]…
                                         runs all binaries that `cargo test --no-run --message-format=json`
                                         names on stdin, two at once; after them, one at a time, those
                                         named PACKAGE::TARGET, whose tests need the machine for
                                         themselves, with this number of tests at once
  tests/measured.py --report             prints the ten slowest tests, then those that failed

Records go to the file that PARTITA_TEST_RECORD names, one JSON object a line. The binary's output passes
through unchanged, so that Cargo's closing lines stay; with --all it comes when the binary has ended.
Programs that are no test binaries run unmeasured.

Stable libtest prints no durations. It starts its tests in the order of `--list`, as many at once as there are
threads, and the next whenever one ends; the moments of the `test NAME ... ok` lines therefore give each
test's begin. Durations are wall-clock time, of which other tests of the binary use a share.
"""

import concurrent.futures
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time

# Seconds without the end of any test after which the binary hangs. The longest test takes two minutes alone.
PATIENCE = 1200
# What the binary's children may still have to say when it has ended.
DRAIN_SECONDS = 5
SLOWEST = 10
# Test binaries that run at once. Many tests wait for daemons, so one binary leaves processors idle.
AT_ONCE = 2
ENDED = re.compile(r"^test (.+?)(?: - should panic)? \.\.\. (ok|FAILED|ignored)")


class Progress:
    """Which tests of a binary wait, run and have ended."""

    def __init__(self, names, threads):
        self.waiting, self.threads = names, threads
        self.running, self.ended = {}, []
        self.last = time.monotonic()
        self.begin()

    def begin(self):
        while self.waiting and len(self.running) < self.threads:
            self.running[self.waiting.pop(0)] = time.monotonic()

    def end(self, name, outcome):
        self.last = time.monotonic()
        if name in self.running:
            self.ended.append((name, outcome, self.last - self.running.pop(name)))
        self.begin()


def threads(arguments):
    """The tests that run at once, as libtest decides it."""
    for at, argument in enumerate(arguments):
        if argument.startswith("--test-threads"):
            return int(argument.partition("=")[2] or arguments[at + 1])
    return int(os.environ.get("RUST_TEST_THREADS") or len(os.sched_getaffinity(0)))


def run(binary, arguments):
    """Runs a test binary and records its tests; returns its exit code."""
    listing = [binary, *arguments, "--list", "--format", "terse"]
    listed = subprocess.run(listing, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    names = [line.removesuffix(": test") for line in listed if line.endswith(": test")]
    # Tests interrupt programs; a shell's background commands ignore that, and so would all below them.
    for interrupt in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(interrupt, signal.SIG_DFL)
    begun = time.monotonic()
    child = subprocess.Popen([binary, *arguments], stdout=subprocess.PIPE)
    progress = Progress(names, threads(arguments))

    def pass_on():
        for line in child.stdout:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            if found := ENDED.match(line.decode(errors="replace")):
                progress.end(found[1], found[2])

    reader = threading.Thread(target=pass_on, daemon=True)
    reader.start()
    hangs = False
    while True:
        try:
            code = child.wait(1)
            break
        except subprocess.TimeoutExpired:
            if not hangs and time.monotonic() - progress.last > PATIENCE:
                hangs = True
                child.kill()
    reader.join(DRAIN_SECONDS)

    package = os.environ.get("CARGO_PKG_NAME", "")
    target = re.sub(r"-[0-9a-f]{16}$", "", os.path.basename(binary))
    where = f"{package}::{target}"
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    binary_record = {
        "binary": where,
        "seconds": time.monotonic() - begun,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
    }
    records = [binary_record]
    tests = list(progress.ended)
    if code != 0:
        left = "hangs" if hangs else "did not end"
        tests += [(name, left, time.monotonic() - at) for name, at in progress.running.items()]
        if all(outcome in ("ok", "ignored") for _, outcome, _ in tests):
            tests.append(("(the binary)", f"ended with {code}", 0.0))
    for name, outcome, seconds in tests:
        records.append({"test": f"{where} {name}", "outcome": outcome, "seconds": seconds})
        if outcome == "hangs":
            print(f"test {name} hangs: nothing has ended for {PATIENCE} s", flush=True)
    if path := os.environ.get("PARTITA_TEST_RECORD"):
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
    return code if code >= 0 else 128 - code


def targets(lines):
    """The test binaries that Cargo's messages name: environment, folder, binary, name."""
    for line in lines:
        if not line.startswith("{"):
            continue
        message = json.loads(line)
        binary = message.get("executable")
        if message["reason"] != "compiler-artifact" or not binary or not message["profile"]["test"]:
            continue
        folder = os.path.dirname(message["manifest_path"])
        # `path+file:///…/NAME#VERSION`, or `…/FOLDER#NAME@VERSION` where the folder has another name.
        path, _, version = message["package_id"].rpartition("#")
        package = version.partition("@")[0] if "@" in version else os.path.basename(path)
        environment = os.environ | {"CARGO_MANIFEST_DIR": folder, "CARGO_PKG_NAME": package}
        yield environment, folder, binary, f"{package}::{message['target']['name']}"


def run_all(arguments):
    """Runs the binaries that stdin names; returns whether all passed."""
    asked = [name.partition("=") for option, name in zip(arguments[::2], arguments[1::2]) if option == "--alone"]
    alone = {name: ["--test-threads", number] if number else [] for name, _, number in asked}
    found = list(targets(sys.stdin))
    if not found:
        sys.exit("tests/measured.py: stdin names no test binary")
    if unknown := alone.keys() - {name for *_, name in found}:
        sys.exit(f"tests/measured.py: there is no test binary {', '.join(sorted(unknown))}")
    printing = threading.Lock()

    def one(target):
        environment, folder, binary, name = target
        command = [sys.executable, os.path.abspath(__file__), binary, *alone.get(name, [])]
        done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        with printing:
            print(f"\n     Running {name} ({binary})", flush=True)
            sys.stdout.buffer.write(done.stdout)
            sys.stdout.buffer.flush()
        return name if done.returncode else None

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        ended = list(pool.map(one, [target for target in found if target[3] not in alone]))
    ended += [one(target) for target in found if target[3] in alone]
    failed = [name for name in ended if name]
    if failed:
        print(f"\nerror: {len(failed)} of {len(found)} test binaries failed: {', '.join(failed)}", flush=True)
    return not failed


def report():
    """Prints the slowest tests and, last, those that failed."""
    with open(os.environ["PARTITA_TEST_RECORD"], encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    binaries = [record for record in records if "binary" in record]
    tests = [record for record in records if "test" in record]
    seconds, cpu_seconds = (sum(b[key] for b in binaries) for key in ("seconds", "cpu_seconds"))
    print(f"{len(tests)} tests in {len(binaries)} binaries: {seconds:.0f} s, {cpu_seconds:.0f} s of CPU time")
    print("the slowest:")
    for record in sorted(tests, key=lambda record: -record["seconds"])[:SLOWEST]:
        print(f"{record['seconds']:7.1f} s  {record['test']}")
    failed = [record for record in tests if record["outcome"] not in ("ok", "ignored")]
    if failed:
        print("failed:")
        for record in failed:
            print(f"  {record['test']}: {record['outcome']}")


def main():
    match sys.argv[1:]:
        case ["--report"]:
            report()
        case ["--all", *arguments]:
            sys.exit(0 if run_all(arguments) else 1)
        case [binary, *arguments] if os.path.basename(os.path.dirname(binary)) == "deps":
            sys.exit(run(binary, arguments))
        case [program, *arguments]:
            os.execv(program, [program, *arguments])
        case _:
            sys.exit("usage: tests/measured.py BINARY [ARGUMENT…] | --all [--alone NAME[=THREADS]]… | --report")


main()
