"""What the command refuses before its work, and what becomes of an error of its own."""

import json

import pytest

from telekit.cli import app


@pytest.mark.parametrize(
    ("out", "cluster", "said"),
    [
        ("none/fitted.yaml", "h800", "its folder does not exist"),
        ("folder.yaml", "h800", "is a folder"),
        ("fitted.txt", "h800", "ends in"),
        ("z" * 300 + ".yaml", "h800", "cannot be"),
        ("fitted.yaml", "no-such-cluster", "no-such-cluster"),
    ],
)
def test_where_the_cluster_cannot_go_is_said_before_traces_are_read(
    tmp_path, telekit, monkeypatch, out, cluster, said
):
    (tmp_path / "folder.yaml").mkdir()
    monkeypatch.setattr("telekit.diagnose.readers.read", lambda *_, **__: pytest.fail("the traces were read"))
    status, _, err = telekit("diagnose", tmp_path, "--cluster", cluster, "--cluster-out", tmp_path / out)
    assert status == 2
    assert said in err
    assert "Traceback" not in err


def test_a_cluster_without_host_times_keeps_the_catalogs(tmp_path, telekit):
    """One launch a step, after which the host waits: what a launch costs is not in these traces; jitter is."""
    for rank in range(4):
        events = []
        for step in range(12):
            at, length = 2000 * step, 1000 + 10 * ((7 * step + 3 * rank) % 5)
            events += [
                {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1,
                 "ts": at, "dur": 1990},
                {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": at + 1,
                 "dur": 3, "args": {"correlation": step}},
                {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": at + 10, "dur": length,
                 "args": {"correlation": step}},
                {"ph": "X", "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "pid": 1, "tid": 1,
                 "ts": at + 20, "dur": length},
            ]  # fmt: skip
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(events))
    fitted = tmp_path / "fitted.yaml"
    _, out, _ = telekit("diagnose", tmp_path, "--cluster", "h800", "--cluster-out", fitted, "--json")
    found = json.loads(out)["cluster"]
    assert found["values"]["host_launch_s"]["before"] == found["values"]["host_launch_s"]["after"]
    assert found["values"]["jitter"]["before"] != found["values"]["jitter"]["after"]
    assert any("host_launch_s keeps its value" in note for note in found["notes"])
    assert found["measured"]["host"] is found["measured"]["idle"] is found["measured"]["monitor"] is None
    assert found["measured"]["jitter"]["deviation"] == pytest.approx(found["values"]["jitter"]["after"])


@pytest.mark.parametrize("error", [OSError(28, "No space left"), RuntimeError("a slip of ours")])
def test_no_error_looks_like_a_negative_verdict(monkeypatch, capsys, error):
    def fails(**_):
        raise error

    monkeypatch.setattr(app, "app", fails)
    with pytest.raises(SystemExit) as left:
        app.main()
    assert left.value.code == 2
    told = capsys.readouterr().err
    assert ("Traceback" in told) == isinstance(error, RuntimeError)
    assert str(error.args[-1]) in told
