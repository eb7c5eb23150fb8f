#!/usr/bin/env python3
"""Hands finished or running runs to a tracker, by that tracker's own client: steps, validation losses and the configuration.

    tools/export_metrics.py trackio RUN...      then: trackio show --project athanor
    tools/export_metrics.py mlflow RUN...       where MLFLOW_TRACKING_URI says
    tools/export_metrics.py wandb RUN...        WANDB_MODE=offline writes a folder for `wandb sync`

A run never waits for a tracker: everything is in its folder, and can be handed over at any time. For TensorBoard nothing is
needed. Needs pyyaml and the tracker (pip). --check reads everything back by the tracker's own reader (trackio, mlflow).
"""
import argparse, json, os, subprocess, sys

import yaml


def rows(run):
    with open(os.path.join(run, "metrics.jsonl")) as f:
        for line in f:
            if not line.endswith("\n"):
                break  # it is being written
            try:
                m = json.loads(line)
            except ValueError:
                print(f"{run}: a line cannot be read and is left out", file=sys.stderr)
                continue
            step = m.pop("step")
            yield step, {k: float("nan") if v is None else float(v) for k, v in flat(m) if v is None or isinstance(v, (int, float))}


def flat(v, prefix=""):
    for k, x in v.items():
        if isinstance(x, dict):
            yield from flat(x, prefix + k + ".")
        else:
            yield prefix + k, x


def config(run):
    with open(os.path.join(run, "config.yaml")) as f:
        c = dict(flat(yaml.safe_load(f)))
    return {k: v for k, v in c.items() if k not in ("alerts.webhook", "alerts.command")}  # addresses of webhooks are passwords


def trackio(name, project, run, check):
    import trackio

    trackio.init(project=project, name=name, config=config(run), resume="never")
    sent = list(rows(run))
    for step, values in sent:
        trackio.log(values, step=step)
    trackio.finish()
    if check:
        told = subprocess.run([sys.executable, "-m", "trackio.cli", "get", "metric", "--project", project, "--run", name, "--metric", "loss", "--json"], capture_output=True, text=True)
        return {h["step"]: h["value"] for h in json.loads(told.stdout)["values"]} == {s: v["loss"] for s, v in sent}


def mlflow(name, project, run, check):
    import mlflow
    from mlflow.entities import Metric, Param

    mlflow.set_experiment(project)
    client, sent = mlflow.MlflowClient(), list(rows(run))
    with mlflow.start_run(run_name=name) as r:
        pairs = [Param(k, str(v)[:500]) for k, v in config(run).items()]
        for i in range(0, len(pairs), 100):
            client.log_batch(r.info.run_id, params=pairs[i : i + 100])
        points = [Metric(k, v, 0, step) for step, values in sent for k, v in values.items()]
        for i in range(0, len(points), 1000):
            client.log_batch(r.info.run_id, metrics=points[i : i + 1000])
    if check:
        found = client.get_metric_history(r.info.run_id, "loss")
        return {h.step: h.value for h in found} == {s: v["loss"] for s, v in sent}


def wandb(name, project, run, check):
    import wandb

    with wandb.init(project=project, name=name, config=config(run)) as r:
        for step, values in rows(run):
            r.log(values, step=step)


a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
a.add_argument("tracker", choices=["trackio", "mlflow", "wandb"])
a.add_argument("runs", nargs="+")
a.add_argument("--project", default="athanor")
a.add_argument("--check", action="store_true")
o = a.parse_args()
for run in o.runs:
    name = os.path.basename(os.path.abspath(run))
    same = globals()[o.tracker](name, o.project, run, o.check)
    print(f"{run}: handed to {o.tracker}" + ("" if same is None else ", and read back the same" if same else ", BUT READ BACK DIFFERENTLY"))
    if same is False:
        sys.exit(1)
