#!/usr/bin/env python3
"""Reads the page /metrics of a running program with Prometheus' own parser, and says what it has.

    athanor watch runs & tools/prometheus_check.py http://127.0.0.1:7007/metrics [KEY]

Needs prometheus-client (pip). Where promtool is on the PATH, it checks the page too. Exits with 1 if the page is not as it
should be: a parser's error, a counter without _total, or another unit than the base one.
"""
import re, shutil, subprocess, sys, urllib.request

from prometheus_client.parser import text_string_to_metric_families

request = urllib.request.Request(sys.argv[1], headers={"Authorization": "Bearer " + sys.argv[2]} if len(sys.argv) > 2 else {})
with urllib.request.urlopen(request) as answer:
    kind, text = answer.headers["Content-Type"], answer.read().decode()
assert kind.startswith("text/plain; version=0.0.4"), kind
wrong, samples = [], 0
families = list(text_string_to_metric_families(text))
for f in families:
    samples += len(f.samples)
    for s in f.samples:
        if f.type == "counter" and not s.name.endswith("_total"):
            wrong.append(f"{s.name}: a counter without _total")
        if f.type != "counter" and s.name.endswith("_total"):
            wrong.append(f"{s.name}: no counter, but _total")
        if re.search(r"_(ms|us|kb|mb|gib|percent)(_|$)", s.name):
            wrong.append(f"{s.name}: not the base unit")
    if not f.documentation:
        wrong.append(f"{f.name}: no help")
print(f"prometheus_client: {len(families)} metrics, {samples} samples")
if shutil.which("promtool"):
    r = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True)
    print("promtool check metrics:", "ok" if r.returncode == 0 and not r.stderr else r.stderr)
    if r.returncode or r.stderr:
        wrong.append("promtool")
for w in wrong:
    print("WRONG", w)
sys.exit(bool(wrong))
