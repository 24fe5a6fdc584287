"""Nothing passes silently: what cannot be read, what no ratio describes, what only one rank holds."""

import json

import ml_dtypes
import numpy as np
import pytest

from telekit.accuracy.causes.case import Case
from telekit.accuracy.compare import compare
from telekit.accuracy.compared import PARTS, Compared
from telekit.accuracy.comparing.judged import errors_in_order
from telekit.accuracy.comparing.table import rows_of, write_csv
from telekit.accuracy.locating import first_divergence
from telekit.accuracy.locating.walk import explain as causes
from telekit.accuracy.readers import NamedTensor, Statistics, Tensors, tensors
from telekit.accuracy.standards.verdict import Verdict
from telekit.ui.accuracy_report import write_report

RNG = np.random.default_rng(8)
X = RNG.standard_normal((8, 8)).astype(np.float32)
W = RNG.standard_normal((64, 32)).astype(np.float32)


def named(name, array, **said):
    array = np.asarray(array)
    said = {"shape": array.shape, "dtype": array.dtype.name, "loader": lambda: array} | said
    return NamedTensor(name, place=name, **said)


def operator(api, inputs, outputs):
    found = []
    for part, values in (("input", inputs), ("output", outputs)):
        for i, value in enumerate(values):
            name, said = f"{api}.{part}.{i}", {"api": api, "part": part}
            if isinstance(value, np.ndarray):
                found.append(named(name, value, **said))
            else:
                kind = "none" if value is None else "scalar"
                found.append(NamedTensor(name, (), kind, name, kind=kind, value=value, **said))
    return found


def both(target, golden):
    return compare(Tensors("t", "dump", tuple(target)), Tensors("g", "dump", tuple(golden)))


def files(tmp_path, target, golden):
    np.savez(tmp_path / "t.npz", w=target)
    np.savez(tmp_path / "g.npz", w=golden)
    return compare(tmp_path / "t.npz", tmp_path / "g.npz")


# ---- the search for a cause never takes the comparison with it ----


@pytest.mark.parametrize("beside", [np.array(2.0, np.float32), 3, None, np.zeros(0, np.float32)])
@pytest.mark.parametrize("name", ["Functional.linear", "Torch.mul", "Functional.mse_loss"])
def test_inputs_without_a_ratio_do_not_switch_the_rules_off(name, beside):
    """msprobe's default for a figure an input lacks is 1.0: the output is judged as if that input were equal."""
    api = f"{name}.0.forward"
    found = both(operator(api, [beside], [3 * X]), operator(api, [beside], [2 * X]))
    assert found.verdicts[-1].part("1 per mille share").result == "error"
    assert found.first_divergence.cause == "constant ratio"


def test_a_scalar_output_beside_tensors_is_explained_without_a_crash():
    api, six, one = "Functional.mse_loss.0.forward", np.array(6.0, np.float32), np.array(1.0, np.float32)
    found = both(operator(api, [X, X], [six]), operator(api, [X, X], [one]))
    assert found.first_divergence.cause == "constant ratio"
    assert not any("own failure" in text for text in found.first_divergence.evidence)
    assert (
        found.verdicts[-1].part("relative error").result == "error"
        and found.verdicts[-1].by_standard == "pass"
    )


def test_a_detector_that_fails_is_named_and_others_go_on(monkeypatch):
    def broken(case):
        raise IndexError("tuple index out of range")
        yield

    monkeypatch.setattr(causes, "_ELEMENTS", (broken, *causes._ELEMENTS))
    found = causes.explain(Case(2.0 * W, 1.0 * W))
    assert found[0].kind == "constant ratio"
    assert found[-1].confidence == 0 and "broken (IndexError: tuple index" in found[-1].text
    (unknown,) = causes.explain(Case(RNG.standard_normal(W.shape), 1.0 * W))
    assert unknown.kind == "unknown" and "broken" in unknown.text


def test_a_search_that_fails_leaves_the_verdicts(monkeypatch):
    def broken(*arguments, **options):
        raise ZeroDivisionError("float division")

    monkeypatch.setattr(first_divergence, "locate", broken)
    api = "Torch.mul.0.forward"
    found = both(operator(api, [X], [3 * X]), operator(api, [X], [2 * X]))
    assert found.result == "error" and found.first_divergence.tensor == f"{api}.output.0"
    assert "ZeroDivisionError" in found.notes[0]


@pytest.mark.parametrize("seed", range(3))
def test_nan_at_the_same_places_says_nothing_on_the_terminal(seed, capfd):
    random = np.random.default_rng(seed)
    a = random.standard_normal((4, 8)).astype(np.float32)
    w = random.standard_normal((8, 8)).astype(np.float32)
    a[0, 0] = np.nan
    api = "Functional.linear.0.forward"
    both(operator(api, [a, w], [2 * a @ w.T]), operator(api, [a, w], [a @ w.T]))
    assert capfd.readouterr() == ("", "")


# ---- what cannot be read ----


def dump(folder, data, statistics=None):
    """A tensor dump of one operator whose output's file holds these bytes; None writes no file."""
    (folder / "dump_tensor_data").mkdir(parents=True)
    item = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [4], "requires_grad": False}
    file = "Functional.relu.0.forward.output.0.npy"
    out = item | {"data_name": file} | (statistics or {})
    entry = {"input_args": [item | {"Max": 1.0, "Min": 0.0, "Mean": 0.5, "Norm": 2.0}], "output": [out]}
    text = {
        "task": "tensor",
        "level": "L1",
        "framework": "pytorch",
        "data": {"Functional.relu.0.forward": entry},
    }
    (folder / "dump.json").write_text(json.dumps(text), encoding="utf-8")
    if data is not None:
        (folder / "dump_tensor_data" / file).write_bytes(data)
    return folder


def npy(tmp_path):
    np.save(tmp_path / "x.npy", np.ones(4, np.float32))
    return (tmp_path / "x.npy").read_bytes()


@pytest.mark.parametrize("damage", ["truncated", "missing", "link", "other shape"])
def test_a_file_that_cannot_be_read_is_an_error_unless_statistics_tell(tmp_path, damage):
    good = npy(tmp_path)
    np.save(tmp_path / "y.npy", np.ones(5, np.float32))
    bytes_ = {
        "truncated": good[:-8],
        "missing": None,
        "link": None,
        "other shape": (tmp_path / "y.npy").read_bytes(),
    }
    said = {"Max": 1.0, "Min": 1.0, "Mean": 1.0, "Norm": 2.0}
    for nth, (statistics, result) in enumerate(((None, "error"), (said, "warning"))):
        target = dump(tmp_path / f"t{nth}", bytes_[damage], statistics)
        if damage == "link":
            name = "Functional.relu.0.forward.output.0.npy"
            (target / "dump_tensor_data" / name).symlink_to(tmp_path / "x.npy")
        found = compare(target, dump(tmp_path / f"g{nth}", good, statistics))
        part = found.verdicts[1].part("cannot be read")
        assert part.result == found.result == result and part.note.startswith("target: ")
        assert "cannot be read" in str(rows_of(found)[1]["Err_message"])


def test_a_type_that_is_not_compared_is_an_error(tmp_path):
    found = files(tmp_path, np.ones(3, np.clongdouble), np.ones(3, np.clongdouble))
    assert found.result == "error"


def test_shape_alone_is_no_pass():
    item = named("a.0.forward.output.0", X, loader=None, api="Torch.a.0.forward", part="output")
    assert both([item], [item]).result == "warning"
    empty = named("a.0.forward.output.0", X[:0], loader=None, api="Torch.a.0.forward", part="output")
    assert both([empty], [empty]).result == "pass"


def test_what_both_sides_lost_is_no_pass(tmp_path):
    for name in ("t", "g"):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "a.npz", w=W)
        (tmp_path / name / "b.npz").write_bytes(b"PK no archive")
    assert compare(tmp_path / "t", tmp_path / "g").result == "warning"


# ---- files of tensors ----


@pytest.mark.parametrize(
    ("target", "golden", "part"),
    [
        (np.float32([np.inf, 1]), np.float32([-np.inf, 1]), "sign of infinities"),
        (np.array([7, 1]), np.array([7, 2]), "equal"),
        (np.array([10_000, 1]), np.array([10_000, 2]), "equal"),
        (np.array([True, True, True]), np.array([True, True, False]), "equal"),
        (np.full(4, 0.5, np.float32), np.zeros(4, np.float32), "zero"),
        (np.float32(2.9), np.float32(2.0), "relative error"),
        (np.float32([2.9]), np.float32([2.0]), "relative error"),
    ],
)
def test_files_are_judged_where_msprobe_has_no_figure(tmp_path, target, golden, part):
    found = files(tmp_path, target, golden)
    assert found.result == found.verdicts[0].part(part).result == "error"
    assert files(tmp_path, golden, golden).result == "pass"


def test_one_step_of_bf16_is_within_the_rule_for_one_number(tmp_path):
    one = np.array(1.0, ml_dtypes.bfloat16)
    assert files(tmp_path, np.float32(one) + np.float32(2.0**-7), np.float32(one)).result == "pass"


def changed(how):
    w = W.copy()
    match how:
        case "twice":
            return 2 * W
        case "order":
            return W[::-1].copy()
        case "zero rows":
            w[:8] = 0
        case _:
            w[3] = np.nan
    return w


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("twice", "constant ratio"),
        ("order", "permutation"),
        ("zero rows", "dropped tokens"),
        ("nan", "overflow"),
    ],
)
def test_a_file_names_the_cause_by_its_values(tmp_path, how, cause):
    found = files(tmp_path, changed(how), W).first_divergence
    assert found.cause == cause and found.confidence >= 0.8 and found.tensor == "w"
    assert "L1" not in found.next_dump and "file of tensors" in found.next_dump


def test_noise_in_a_file_is_unknown_and_asks_for_no_level(tmp_path):
    found = files(tmp_path, W + RNG.standard_normal(W.shape).astype(np.float32), W).first_divergence
    assert found.cause == "unknown" and "L1" not in found.next_dump


def test_ranks_in_file_names_are_kept_apart(tmp_path):
    for name, factor in (("t", 2.0), ("g", 1.0)):
        (tmp_path / name).mkdir()
        for rank in range(3):
            np.savez(tmp_path / name / f"weights_rank{rank}.npz", w=W * (factor if rank == 2 else 1.0))
    assert [x.rank for x in tensors(tmp_path / "t")] == [0, 1, 2]
    found = compare(tmp_path / "t", tmp_path / "g")
    assert [v.result for v in found.verdicts] == ["pass", "pass", "error"] and not found.problems
    (tmp_path / "n").mkdir()
    for name in ("a", "b"):
        np.savez(tmp_path / "n" / f"{name}.npz", w=W)
    assert compare(tmp_path / "n", tmp_path / "n").result == "warning", "one of two is not compared"


# ---- a standard that grows with depth, and what it refuses ----


@pytest.mark.parametrize("layer", [0, 31, 32, 33, 40, 1000])
def test_a_bound_by_depth_looks_at_every_layer(tmp_path, layer):
    name = f"layers.{layer}.w"
    np.savez(tmp_path / "t.npz", **{name: 100 * W, "norm.w": W})
    np.savez(tmp_path / "g.npz", **{name: W, "norm.w": W})
    found = compare(tmp_path / "t.npz", tmp_path / "g.npz", standard="depth-bound")
    by_name = {row.name: v.result for row, v in zip(found.rows, found.verdicts, strict=True)}
    assert by_name == {name: "error", "norm.w": "pass"} and found.result == "error"
    assert not any("not judged" in n for n in found.notes)


def test_a_model_of_32_layers_keeps_the_published_bound():
    rows = [named(f"layers.{i}.w", W) for i in (0, 5, 32)]
    found = compare(
        Tensors("t", "dump", tuple(rows)), Tensors("g", "dump", tuple(rows)), standard="depth-bound"
    )
    powers = [int(v.parts[0].rule.split("1.03**")[1].split()[0]) for v in found.verdicts]
    assert powers == [33, 28, 1]


@pytest.mark.parametrize(("name", "array", "why"), [
    ("layers.20000.w", W, "layer 20000: must be from 0 to 32"),
    ("layers.3.count", np.arange(4), "dtype int64: not a known floating format"),
])  # fmt: skip
def test_what_a_standard_refuses_is_no_silent_pass(name, array, why):
    sides = [
        Tensors(x, "dump", (named(name, factor * array), named("w", W))) for x, factor in (("t", 3), ("g", 1))
    ]
    found = compare(*sides, standard="depth-bound")
    assert [v.result for v in found.verdicts] == ["skip", "pass"]
    (note,) = [n for n in found.notes if "not judged" in n]
    assert note == f"1 of 2 rows not judged by depth-bound, the first {name}: {why}"


# ---- the standard and rounding ----


def test_where_rounding_explains_all_a_note_names_the_limit():
    """A product summed in 16 parts, each rounded to bf16: most elements differ, by a step or two."""
    random = np.random.default_rng(1)
    a, w = (random.standard_normal((64, 64)).astype(ml_dtypes.bfloat16) for _ in range(2))
    wide = [x.astype(np.float32) for x in (a, w)]
    golden = (wide[0] @ wide[1]).astype(ml_dtypes.bfloat16)
    target = np.zeros_like(golden)
    for k in np.split(np.arange(64), 16):
        target = (target.astype(np.float32) + wide[0][:, k] @ wide[1][k]).astype(ml_dtypes.bfloat16)
    api = "Torch.matmul.0.forward"
    found = both(operator(api, [a, w], [target]), operator(api, [a, w], [golden]))
    assert found.result == "error" and found.first_divergence is None
    (note,) = [n for n in found.notes if "rounding explains" in n]
    assert "msprobe-coded" in note and "depth-bound" in note and "bf16" in note


def test_many_rows_within_rounding_are_loaded_a_few_times_each():
    """The run's epsilon is sampled once, not for every row that misses the standard."""
    count, loads = 60, []

    def counted(i, factor):
        array = (1000 * W * factor).astype(ml_dtypes.bfloat16)
        return named(f"w{i:03}", array, loader=lambda: loads.append(i) or array)

    found = both(*([counted(i, factor) for i in range(count)] for factor in (1.004, 1.0)))
    assert found.result == "error" and found.first_divergence is None
    assert [v.result for v in found.verdicts] == ["error"] * count
    assert len(loads) <= 2 * count * 8


def _first_error(rows, failing):
    """The row to look at next, asked of all that still fail: what `errors_in_order` gives in one pass."""
    dirty = set()
    order = sorted(failing, key=lambda i: (rows[i].step or 0, rows[i].order))
    for i in order:
        key = (rows[i].step, rows[i].rank, rows[i].api)
        if rows[i].part == "input" and rows[i].api:
            dirty.add(key)
        elif not rows[i].api or key not in dirty or rows[i].part in ("parameters", "parameters_grad"):
            return i
    return order[0] if order else None


@pytest.mark.parametrize("seed", range(40))
def test_errors_in_order_are_those_of_asking_again_after_each(seed):
    random = np.random.default_rng(seed)
    rows, verdicts = [], []
    for i in range(30):
        api, rank, step = random.choice(["", "a", "b", "c"]), int(random.integers(2)), int(random.integers(2))
        part = str(random.choice(PARTS)) if api else str(random.choice(["", "input"]))
        order = int(random.integers(30)) if not api else "abc".index(api) * 7
        rows.append(Compared(f"x{i}", None, None, str(api), part, order=order, step=step or None, rank=rank))
        verdicts.append(
            Verdict(str(random.choice(["error", "pass", "warning"], p=[0.7, 0.2, 0.1])), (), "", "")
        )
    left, expected = [i for i, v in enumerate(verdicts) if v.result == "error"], []
    while (place := _first_error(rows, left)) is not None:
        left.remove(place)
        expected.append(place)
    assert list(errors_in_order(rows, verdicts)) == expected


def test_gradients_of_parameters_are_inputs_as_in_msprobe():
    """Its rule for an output is `.output.` in the name; a gradient has none."""

    def row(factor):
        return [
            named(
                "Module.a.parameters_grad.w",
                factor * X,
                api="Module.a.parameters_grad",
                part="parameters_grad",
            )
        ]

    verdict = both(row(3.0), row(1.0)).verdicts[0]
    assert verdict.result == "pass" and not any(p.name == "1 per mille share" for p in verdict.parts)


def test_types_taken_together_are_a_message_in_statistics_too():
    said = {
        "loader": None,
        "statistics": Statistics(1.0, 0.0, 0.5, 1.0),
        "part": "output",
        "api": "Torch.a.0.forward",
    }
    rows = [[named("Torch.a.0.forward.output.0", X, **said, dtype=d)] for d in ("float16", "bfloat16")]
    verdict = both(*rows).verdicts[0]
    assert verdict.result == "pass" and "types differ: float16, golden bfloat16" in verdict.messages[0]


def test_setitem_is_exempt_by_the_name_torch_gives_it():
    api = "Tensor.__setitem__.0.forward"
    found = both(operator(api, [X], [3 * X]), operator(api, [X], [X]))
    assert {v.result for v in found.verdicts} == {"skip"} and found.negative


# ---- text ----


def test_a_lone_surrogate_harms_no_file(tmp_path):
    api = "Module.\ud800x.forward.0"
    found = both(operator(api, [X], [3 * X]), operator(api, [X], [X]))
    write_report(found, tmp_path / "a.html")
    write_csv(found, tmp_path / "a.csv")
    assert all("\\ud800x" in (tmp_path / f"a.{x}").read_text(encoding="utf-8") for x in ("html", "csv"))


@pytest.mark.parametrize(
    ("mapping", "note"),
    [
        ({"wq": "w"}, "wq is in no name of target"),
        ({"w+v": "wv"}, "v in no name of target"),
        ({"shards": {"gate": "row"}}, "shards gate fits no name"),
    ],
)
def test_a_line_of_the_mapping_that_fits_nothing_is_said(mapping, note):
    side = Tensors("t", "npz", (named("a.w", W),))
    assert any(note in n for n in compare(side, side, mapping=mapping).notes)
    assert not compare(side, side, mapping={"w": "w"}).notes
