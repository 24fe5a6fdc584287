"""An interval stands on runs of the same kind of model, on any device, before those of the other kind on this one."""

from telekit.cost.interval import interval, likeness
from telekit.job import load_job

JOB = {
    "model": "deepseek-v3", "cluster": {"device": "h800", "devices": 512},
    "train": {"global_batch": 2048, "precision": "fp8"}, "layout": {"pp": 8, "ep": 32},
}  # fmt: skip


def row(device, model, precision, low):
    named = {"device": device, "model": model, "precision": precision, "of": f"{device} {model} {precision}"}
    return named | {"low": low, "high": 2.0, "configurations": 9, "sources": 5}


def test_kind_and_precision_come_before_the_device_alone():
    rows = [row("h800", None, None, 0.1), row(None, "moe", "8-bit", 0.2), row(None, None, None, 0.3)]
    assert interval(load_job(JOB), {"intervals": rows}).low == 0.2
    assert interval(load_job(JOB), {"intervals": [*rows, row("h800", "moe", None, 0.4)]}).low == 0.4
    assert interval(load_job(JOB), {"intervals": rows[:1] + rows[2:]}).low == 0.1


def test_every_group_is_asked_once():
    keys = likeness("h800", "moe", "8-bit")
    assert len(set(keys)) == 6 and keys[0] == ("h800", "moe", "8-bit") and keys[-1] == (None, None, None)
