"""``telekit pipeline``: JSON alone on standard output, exit codes, one message for bad input, a trace that opens."""

import json
from functools import partial

import pytest

from telekit.pipeline.registry import EVERY


@pytest.fixture
def pipeline(telekit):
    """Run this one command: (exit status, standard output, standard error)."""
    return partial(telekit, "pipeline")


def sizes(name, stages, micro_batches):
    return "--schedule", name, "--stages", stages, "--micro-batches", micro_batches


def strict(text):
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


def test_json_has_the_designs_fields(pipeline):
    status, out, err = pipeline(*sizes("1f1b", 8, 20), "--json")
    found = strict(out)
    assert (status, err) == (0, "")
    assert found["makespan"] == found["closed_form"] == 81
    assert found["bubble_fraction"] == pytest.approx(21 / 81)
    assert found["bubble_fraction_of_ideal"] == pytest.approx(21 / 60)
    assert found["bubble_fraction_of_span"] == pytest.approx(21 / 81)
    assert found["peak_activations"] == [8, 7, 6, 5, 4, 3, 2, 1]


@pytest.mark.parametrize("name", EVERY)
def test_every_schedule_answers(pipeline, name):
    status, out, _ = pipeline(*sizes(name, 4, 8), "--json")
    found = strict(out)
    assert status == 0
    assert found["schedule"] == name
    assert found["makespan"] >= 24
    assert len(found["peak_activations"]) == 4
    assert 0 <= found["bubble_fraction_of_span"] <= found["bubble_fraction"] < 1


@pytest.mark.parametrize(
    ("words", "makespan"),
    [
        ((*sizes("dualpipe", 8, 20), "--forward-and-backward", 3), 66),
        ((*sizes("dualpipe", 8, 20), "--forward-and-backward", 2), 52),
        ((*sizes("gpipe", 8, 32), "--backward-input", 0.5, "--backward-weight", 0.5), 78),
        ((*sizes("1f1b", 4, 8), "--comm", 0.25), 37),
        ((*sizes("interleaved-1f1b", 4, 8), "--chunks", 4), 24 + 9 / 4),
        ((*sizes("zb-1p", 4, 8), "--forward", 2, "--backward-input", 2, "--backward-weight", 2), 54),
        (sizes("zb-v", 8, 8), 27.5),
    ],
)
def test_options_reach_the_simulation(pipeline, words, makespan):
    assert strict(pipeline(*words, "--json")[1])["makespan"] == pytest.approx(makespan)


def test_a_group_of_all_micro_batches_holds_them(pipeline):
    plain, grouped = (
        strict(pipeline(*sizes("interleaved-1f1b", 4, 16), "--json", *more)[1])
        for more in ((), ("--group-size", 8))
    )
    assert max(grouped["peak_activations"]) > max(plain["peak_activations"])
    assert grouped["closed_form"] is None


def test_over_the_limit_is_a_negative_verdict(pipeline):
    status, out, _ = pipeline(*sizes("1f1b", 4, 8), "--memory-limit", 3, "--json")
    assert (status, strict(out)["fits"]) == (1, False)
    status, out, _ = pipeline(*sizes("1f1b", 4, 8), "--memory-limit", 3)
    assert status == 1
    assert "DOES NOT FIT" in out
    status, out, _ = pipeline(*sizes("zb-1p", 4, 8), "--memory-limit", 3, "--json")
    assert status == 0
    assert max(strict(out)["peak_activations"]) <= 3


def test_text_says_what_was_assumed(pipeline):
    status, out, _ = pipeline(*sizes("dualpipe", 8, 20), "--forward-and-backward", 2.5)
    assert status == 0
    for words in ("makespan", "idle / makespan", "(F&B) takes 2.5: 0.5 less", "held twice"):
        assert words in out
    assert "F&B is not used" in pipeline(*sizes("1f1b", 8, 20), "--forward-and-backward", 2.5)[1]


def test_trace_is_written(pipeline, tmp_path):
    path = tmp_path / "trace.json"
    assert pipeline(*sizes("zb-h1", 4, 8), "--trace", path, "--json")[0] == 0
    events = [e for e in strict(path.read_text())["traceEvents"] if e["ph"] == "X"]
    assert len(events) == 4 * 8 * 3
    assert {e["cat"] for e in events} == {"forward", "input gradient", "weight gradient"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (sizes("zigzag", 4, 8), "known: gpipe, 1f1b"),
        (sizes("dualpipe", 7, 20), "stages 6 works"),
        (sizes("1f1b", 3_000_000, 8), "stages 65536 works"),
        (sizes("interleaved-1f1b", 1, 8), "stages 2 works"),
        (sizes("dualpipe-v", 4, 0), "micro_batches 8 works"),
        ((*sizes("interleaved-1f1b", 4, 8), "--group-size", 3), "group_size 4 works"),
        ((*sizes("interleaved-1f1b", 4, 8), "--group-size", 1_999_999), "group_size 8 works"),
        ((*sizes("zb-1p", 4, 8), "--memory-limit", 0.5), "memory_limit 1 works"),
        ((*sizes("1f1b", 4, 8), "--forward", "1e307"), "1e+100 works"),
        ((*sizes("v-half", 4, 8), "--forward", "1e308"), "1e+100 works"),
        ((*sizes("zb-1p", 4, 8), "--comm", "1e308"), "1e+100 works"),
        ((*sizes("dualpipe", 4, 8), "--forward-and-backward", "1e308"), "1e+100 works"),
        (sizes("dualpipe", 8, 12), "micro_batches 16 works"),
        (sizes("interleaved-1f1b", 4, 10), "micro_batches 8 works"),
        (sizes("1f1b", 0, 8), "stages 1 works"),
        (sizes("1f1b", 4, -8), "micro_batches 1 works"),
        (sizes("1f1b", 64, 10**9), "the most is 4,000,000"),
        ((*sizes("1f1b", 4, 8), "--chunks", 2), "chunks 1 works"),
        ((*sizes("1f1b", 4, 8), "--forward", 0), "forward = 0.0"),
        ((*sizes("zb-v", 4, 8), "--backward-weight", "nan"), "backward_weight = nan"),
        ((*sizes("1f1b", 4, 8), "--comm", "inf"), "comm = inf"),
        ((*sizes("dualpipe", 4, 8), "--forward-and-backward", -3), "3 works"),
        ((*sizes("1f1b", 4, 8), "--memory-limit", "nan"), "memory_limit = nan"),
        ((*sizes("1f1b", 4, 8), "--group-size", 4), "interleaved-1f1b"),
        ((*sizes("1f1b", 4, 8), "--trace", "/no/such/folder/trace.json"), "cannot be written"),
    ],
)
def test_bad_input_is_exit_2_and_one_message(pipeline, words, said):
    status, out, err = pipeline(*words, "--json")
    assert (status, out) == (2, "")
    assert err.startswith("telekit: ")
    assert said in err
    assert err.count("\n") == 1
    assert "Traceback" not in err
