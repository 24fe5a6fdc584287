"""Lengths of documents: the published row, closed forms, and what a broken file may hold."""

from __future__ import annotations

import io
import json
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telekit import catalog
from telekit.errors import InputError
from telekit.training.documents import (
    DISTRIBUTIONS,
    MAX_LENGTH,
    checked_lengths,
    distribution,
    load_lengths,
    shares_below,
)


@pytest.fixture(scope="module")
def published():
    rows = catalog.load(catalog.root() / "measurements" / "packing.json")
    return {row["id"]: row for row in rows}


@pytest.fixture(scope="module")
def evenly():
    """The distribution as two million equally likely documents, before rounding."""
    return distribution("wlb-llm").quantile((np.arange(2_000_000) + 0.5) / 2_000_000)


def test_wlb_against_the_row_s_own_figures(published, evenly):
    row, wlb = published["lengths_wlbllm"], distribution("wlb-llm")
    assert wlb.mean == pytest.approx(row["mean"], rel=0.0014)
    assert wlb.mean * row["n_docs"] == pytest.approx(row["total_tokens"], rel=0.0014)
    assert wlb.longest == row["max"] == wlb.quantile(1.0)
    for limit, share in row["share_docs_below"].items():
        below = shares_below(evenly, int(limit))
        assert below.documents == pytest.approx(share, abs=0.0002)
        assert below.tokens == pytest.approx(row["share_tokens_below"][limit], abs=0.0015)
    squares = evenly.astype(float) ** 2
    above = squares[evenly > 16384].sum() / squares.sum()
    assert above == pytest.approx(row["attention_share_sum_l2_above_16k"], abs=0.002)
    assert 1 - shares_below(evenly, 16385).pairs == pytest.approx(above, abs=1e-4)


def test_wlb_passes_through_every_published_quantile(published):
    row, wlb = published["lengths_wlbllm"], distribution("wlb-llm")
    assert (wlb.quantile(np.arange(257) / 256) == row["quantiles_257"]).all()
    assert (wlb.quantile(row["tail_probs"]) == row["tail_quantiles"]).all()
    assert wlb.verified and not wlb.illustrative and row["source"] == wlb.source


def test_chats_hold_what_is_published_and_say_what_is_assumed(published):
    row, chat = published["chunkflow_lengths"], distribution("lmsys-chat")
    assert chat.illustrative and "assumed" in chat.text
    assert chat.quantile(row["share_below_4K_pct"] / 100) == 4096
    assert chat.quantile(0.9999) == 262144
    assert chat.quantile(1.0) == row["longest"]


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_mean_is_the_integral_of_the_inverse(name):
    found = distribution(name)
    shares = (np.arange(1_000_000) + 0.5) / 1_000_000
    assert found.inverse(shares).mean() == pytest.approx(found.mean, rel=2e-4)
    drawn = found.sample(200_000, seed=3)
    assert drawn.dtype == np.int64 and drawn.min() >= 1 and drawn.max() <= found.longest
    assert drawn.mean() == pytest.approx(found.mean, rel=0.05)


def test_a_seed_is_a_sample():
    found = distribution("lognormal", median=800, sigma=0.5)
    assert (found.sample(50, seed=1) == found.sample(50, seed=1)).all()
    assert (found.sample(50, seed=1) != found.sample(50, seed=2)).any()
    assert found.quantile(0.5) == 800
    assert found.quantile(0.8413447460685429) == round(800 * np.exp(0.5))
    assert len(found.sample(0)) == 0


def test_synthetic_ones_are_what_they_say():
    assert set(distribution("uniform", shortest=3, longest=5).sample(3000).tolist()) == {3, 4, 5}
    counts = np.bincount(
        distribution("uniform", shortest=3, longest=5).quantile((np.arange(300) + 0.5) / 300)
    )
    assert counts[3:].tolist() == [100, 100, 100]
    two = distribution("bimodal", short=10, long=90, long_share=0.25).quantile((np.arange(100) + 0.5) / 100)
    assert (two == 10).sum() == 75 and (two == 90).sum() == 25
    assert (distribution("constant", length=7).sample(9) == 7).all()


@pytest.mark.parametrize(
    ("name", "parameters", "said"),
    [
        ("zipf", {}, "must be one of wlb-llm"),
        ("wlb-llm", {"median": 3}, "it takes none"),
        ("lognormal", {"sigma": 0}, "over 0"),
        ("lognormal", {"median": float("nan")}, "over 0"),
        ("uniform", {"shortest": 9, "longest": 8}, "must not be over longest"),
        ("bimodal", {"long_share": 1.5}, "within 0 and 1"),
        ("constant", {"length": 1.5}, "whole number"),
        ("constant", {"length": float("inf")}, "whole number"),
    ],
)
def test_impossible_distributions(name, parameters, said):
    with pytest.raises(InputError, match=said):
        distribution(name, **parameters)


def test_impossible_shares_and_counts():
    with pytest.raises(InputError, match="within 0 and 1"):
        distribution("constant").quantile([0.5, np.nan])
    with pytest.raises(InputError, match="whole number from 0"):
        distribution("constant").sample(10**12)
    with pytest.raises(InputError, match="at least one document"):
        shares_below([], 5)


def test_checked_lengths_names_every_place():
    with pytest.raises(InputError) as error:
        checked_lengths([5, 0, -3, float("nan"), 2.5, float("inf"), 7])
    assert [p.field for p in error.value.problems] == [f"lengths[{i}]" for i in (1, 2, 3, 4, 5)]
    with pytest.raises(InputError, match=r"lengths\[1\] = 9: .* to 8"):
        checked_lengths([8, 9], most=8)
    with pytest.raises(InputError, match="90 more"):
        checked_lengths(np.zeros(100))


@pytest.mark.parametrize("wrong", [[[1, 2]], [[1], [1, 2]], 5, ["3"], [None], [True], [2**70], [1 + 2j]])
def test_what_is_no_list_of_numbers(wrong):
    with pytest.raises(InputError):
        checked_lengths(wrong)


@given(st.lists(st.integers(1, MAX_LENGTH)))
def test_lengths_stay_what_they_are(lengths):
    for given_as in (lengths, np.array(lengths, float), np.array(lengths, np.uint64)):
        found = checked_lengths(given_as)
        assert found.dtype == np.int64 and found.tolist() == lengths


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


GOOD = {
    "header.csv": "id,length\na,5\nb,7\n",
    "alone.csv": "5\n7\n",
    "other.csv": "anything\n5\n7",
    "blank.txt": "\n5\n\n7.0\n\n",
    "bom.csv": b"\xef\xbb\xbflen\r\n5\r\n7\r\n",
    "objects.jsonl": '{"text": "x", "num_tokens": 5}\n{"num_tokens": 7}\n',
    "ids.jsonl": '{"input_ids": [1, 2, 3, 4, 5]}\n\n{"input_ids": [1, 2, 3, 4, 5, 6, 7]}',
    "plain.jsonl": "5\n7.0\n",
}


@pytest.mark.parametrize("name", GOOD)
def test_text_files(tmp_path, name):
    assert load_lengths(write(tmp_path, name, GOOD[name])).tolist() == [5, 7]


def test_a_field_can_be_named(tmp_path):
    table = write(tmp_path, "a.csv", "length,mine\n1,5\n1,7\n")
    assert load_lengths(table, field="mine").tolist() == [5, 7]
    lines = write(tmp_path, "a.jsonl", '{"length": 1, "mine": 5}\n{"length": 1, "mine": [1]}\n')
    assert load_lengths(lines, field="mine").tolist() == [5, 1]


BAD = {
    "zero.csv": ("length\n5\n0\n", r"line 3 = 0"),
    "negative.csv": ("-5\n", r"line 1 = -5"),
    "nan.csv": ("5\nnan\n", r"line 2 = nan: is not a number"),
    "infinite.csv": ("5\ninf\n", r"line 2 = inf"),
    "fraction.csv": ("5\n6.5\n", r"line 2 = 6.5"),
    "huge.csv": ("5\n1e300\n", r"line 2 = 1e\+300"),
    "word.csv": ("length\n5\nmany\n", r"line 3 = many"),
    "ragged.csv": ("a,length\n5\n", r"must have 2 cells"),
    "which.csv": ("a,b\n5,7\n", r"name one of a, b"),
    "nul.csv": (b"length\n5\n\x00\n", r"line 3"),
    "latin.csv": (b"length\n5\n\xff\n", r"line 3 = byte 1: is not UTF-8"),
    "empty.csv": ("", "holds no lengths"),
    "only_header.csv": ("length\n", "holds no lengths"),
    "cut.jsonl": ('{"length": 5}\n{"leng', r"line 2 .*cut short"),
    "null.jsonl": ('{"length": null}\n', r"line 1 = null"),
    "text.jsonl": ('{"length": "5"}\n', r"line 1"),
    "true.jsonl": ("5\ntrue\n", r"line 2 = true"),
    "nan.jsonl": ("5\nNaN\n", r"line 2 = nan"),
    "empty_list.jsonl": ('{"input_ids": [1]}\n{"input_ids": []}\n', r"line 2 = 0"),
    "digits.jsonl": ("5\n" + "9" * 5000 + "\n", r"line 2"),
    "wide.jsonl": ("5\n" + "9" * 400 + "\n", r"line 2 = 9+.*is no number of tokens"),
    "deep.jsonl": ("5\n" + "[" * 200_000 + "\n", r"line 2"),
    "missing.jsonl": ('{"length": 5}\n{"len": 5}\n', r"line 2 .*has no field length"),
    "unknown.jsonl": ('{"size": 5, "id": 1}\n', r"no column is called"),
    "lengths.bin": ("5\n", r"of no kind that is read"),
}


@pytest.mark.parametrize("name", BAD)
def test_broken_text_files(tmp_path, name):
    content, said = BAD[name]
    with pytest.raises(InputError, match=said) as error:
        load_lengths(write(tmp_path, name, content))
    assert name in str(error.value)


def test_all_broken_lines_are_counted(tmp_path):
    path = write(tmp_path, "a.jsonl", "5\n" + "{\n" * 30)
    with pytest.raises(InputError, match="20 more lines") as error:
        load_lengths(path)
    assert len(error.value.problems) == 11


def test_lines_and_files_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("telekit.training.length_files.MAX_LINE_BYTES", 100)
    with pytest.raises(InputError, match="line 2 = too long"):
        load_lengths(write(tmp_path, "a.jsonl", "5\n[" + "1," * 60 + "1]\n"))
    monkeypatch.setattr("telekit.training.documents.MAX_DOCUMENTS", 3)
    with pytest.raises(InputError, match="at most 3 are read"):
        load_lengths(write(tmp_path, "b.csv", "1\n" * 4))
    np.save(tmp_path / "c.npy", np.ones(4, np.int64))
    with pytest.raises(InputError, match="at most 3 are read"):
        load_lengths(tmp_path / "c.npy")


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        load_lengths(tmp_path / "none.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match="not a regular file"):
        load_lengths(tmp_path / "folder.csv")
    with pytest.raises(InputError, match="there are length"):
        load_lengths(write(tmp_path, "a.csv", "length\n5\n"), field="size")


@pytest.mark.parametrize("dtype", ["i8", "i4", ">i4", "u2", "f4", "f8"])
def test_npy(tmp_path, dtype):
    np.save(tmp_path / "a.npy", np.array([5, 7], dtype))
    assert load_lengths(tmp_path / "a.npy").tolist() == [5, 7]


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def header(text, version=b"\x01\x00", width=2):
    return b"\x93NUMPY" + version + len(text).to_bytes(width, "little") + text.encode()


BAD_NPY = {
    "cut": (npy(np.arange(1, 100))[:-8], "cut short"),
    "longer": (npy(np.arange(1, 100)) + b"1", "not what it says"),
    "no_header": (b"PK\x03\x04", "not a .npy header"),
    "empty": (b"", "not a .npy header"),
    "cut_header": (npy(np.arange(1, 9))[:40], "not a .npy header"),
    "two_columns": (npy(np.ones((2, 3))), "one dimension"),
    "scalar": (npy(np.int64(3)), "one dimension"),
    "text": (npy(np.array(["a"])), "must be whole numbers"),
    "bool": (npy(np.array([True])), "must be whole numbers"),
    "record": (npy(np.zeros(2, "i4,i4")), "must be whole numbers"),
    "zero": (npy(np.array([3, 0])), "entry 1 = 0"),
    "nan": (npy(np.array([3, np.nan])), "entry 1 = nan"),
    "unsigned": (npy(np.array([3, 2**63], np.uint64)), "entry 1"),
    "none": (npy(np.zeros(0, np.int64)), "holds no lengths"),
    "claims": (header("{'descr': '<i8', 'fortran_order': False, 'shape': (99999999,), }\n"), "cut short"),
    "claims_more": (header("{'descr': '<i8', 'fortran_order': False, 'shape': (10**3,), }\n"), "not a .npy header"),
    "vast": (header("{'descr': '<i8', 'fortran_order': False, 'shape': (999999999999,), }\n"), "at most"),
    "negative": (header("{'descr': '<i8', 'fortran_order': False, 'shape': (-1,), }\n"), "cut short"),
    "huge_header": (b"\x93NUMPY\x02\x00" + (2**31).to_bytes(4, "little"), "at most 10,000 bytes"),
    "deep_header": (header("(" * 9000), "not a .npy header"),
    "version_3": (header("{'descr': '<i8', 'fortran_order': False, 'shape': (0,), }\n", b"\x03\x00", 4), "version"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_NPY)
def test_broken_npy(tmp_path, name):
    content, said = BAD_NPY[name]
    with pytest.raises(InputError, match=said):
        load_lengths(write(tmp_path, f"{name}.npy", content))


class Harm:
    def __reduce__(self):
        return (sys.exit, ("unpickled",))


def test_objects_are_never_unpickled(tmp_path):
    np.save(tmp_path / "a.npy", np.array([Harm()], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="never unpickled"):
        load_lengths(tmp_path / "a.npy")


def test_npy_has_no_fields(tmp_path):
    np.save(tmp_path / "a.npy", np.array([5]))
    with pytest.raises(InputError, match="no named columns"):
        load_lengths(tmp_path / "a.npy", field="length")


def test_parquet_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(InputError, match="pip install pyarrow"):
        load_lengths(write(tmp_path, "a.parquet", "PAR1"))


def test_parquet(tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="parquet files need pyarrow")
    from pyarrow import parquet

    def save(**columns):
        parquet.write_table(arrow.table(columns), tmp_path / "a.parquet")
        return tmp_path / "a.parquet"

    assert load_lengths(save(text=["a", "b"], length=[5, 7])).tolist() == [5, 7]
    assert load_lengths(save(input_ids=[[1] * 5, [1] * 7])).tolist() == [5, 7]
    assert load_lengths(save(mine=[5.0, 7.0], length=[1, 1]), field="mine").tolist() == [5, 7]
    with pytest.raises(InputError, match="entry 1 = nan"):
        load_lengths(save(length=[5, None]))
    with pytest.raises(InputError, match="whole numbers or of lists"):
        load_lengths(save(length=["5"]))
    with pytest.raises(InputError, match="holds no lengths"):
        load_lengths(save(length=arrow.array([], arrow.int64())))
    with pytest.raises(InputError, match="no readable parquet"):
        load_lengths(write(tmp_path, "b.parquet", "PAR1" + "x" * 100))
    whole = save(length=list(range(1, 2000))).read_bytes()
    with pytest.raises(InputError, match="no readable parquet"):
        load_lengths(write(tmp_path, "c.parquet", whole[:-20]))


@given(st.binary(max_size=200), st.sampled_from([".csv", ".jsonl", ".npy"]))
def test_any_bytes_give_lengths_or_one_readable_error(tmp_path_factory, content, suffix):
    path = tmp_path_factory.getbasetemp() / f"any{suffix}"
    path.write_bytes(content)
    try:
        assert (load_lengths(path) >= 1).all()
    except InputError as error:
        assert path.name in str(error)


@given(st.lists(st.integers(1, 10**6), min_size=1), st.sampled_from([".csv", ".jsonl", ".npy"]))
def test_round_trip(tmp_path_factory, lengths, suffix):
    path = tmp_path_factory.getbasetemp() / f"round{suffix}"
    if suffix == ".npy":
        np.save(path, np.array(lengths))
    elif suffix == ".csv":
        path.write_text("length\n" + "".join(f"{n}\n" for n in lengths))
    else:
        path.write_text("".join(json.dumps({"length": n}) + "\n" for n in lengths))
    assert load_lengths(path).tolist() == lengths


@pytest.mark.parametrize(
    "first", ["nan", "NaN", "4096x", "true", "1_0", "inf", "-inf", "None", "n/a", "-", "2,048"]
)
@pytest.mark.parametrize("suffix", ["csv", "txt"])
def test_a_first_line_that_is_no_word_is_no_header(tmp_path, first, suffix):
    path = tmp_path / f"lengths.{suffix}"
    path.write_text(f'"{first}"\n8\n')
    with pytest.raises(InputError, match="line 1"):
        load_lengths(path)


@pytest.mark.parametrize("first", ["length", "tokens in all", "_n", "Länge"])
def test_a_word_alone_is_a_header(tmp_path, first):
    path = tmp_path / "lengths.csv"
    path.write_text(f"{first}\n8\n4\n", encoding="utf-8")
    assert load_lengths(path).tolist() == [8, 4]


def test_an_empty_cell_is_a_fault_and_an_empty_line_is_not(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text('8\n\n""\n4\n')
    with pytest.raises(InputError, match="line 3"):
        load_lengths(path)
    path.write_text("8\n\n4\n")
    assert load_lengths(path).tolist() == [8, 4]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"length": [8, 4, 2]}', "must be a number of tokens, not a list"),
        ('{"num_tokens": [8]}', "must be a number of tokens, not a list"),
        ('{"input_ids": [[1, 2, 3], [4]]}', "lists must be of tokens"),
        ('{"input_ids": [1, true]}', "lists must be of tokens"),
        ('{"input_ids": ["a"]}', "lists must be of tokens"),
        ('{"input_ids": 5}', "must be a list of tokens"),
        ("[8, 4, 2]", "a list without a name"),
    ],
)
def test_only_lists_of_tokens_are_counted(tmp_path, line, says):
    path = tmp_path / "lengths.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(InputError, match=says) as fault:
        load_lengths(path)
    assert fault.value.problems[0].field == "line 1"


def test_a_column_of_tokens_is_no_column_of_lengths(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("input_ids\n8\n")
    with pytest.raises(InputError, match="must be a list of tokens"):
        load_lengths(path)


@pytest.mark.parametrize("name", ["a\0.csv", "x" * 300 + ".csv", None, 5])
def test_names_that_no_file_has_are_refused(name):
    with pytest.raises(InputError):
        load_lengths(name)


def test_half_precision_is_read_without_a_word(tmp_path):
    path = tmp_path / "lengths.npy"
    np.save(path, np.array([8, 2048], np.float16))
    assert load_lengths(path).tolist() == [8, 2048]
    np.save(path, np.array([8, np.inf], np.float16))
    with pytest.raises(InputError, match="entry 1"):
        load_lengths(path)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("constant", {"length": "8"}), ("lognormal", {"sigma": None}), ("bimodal", {"long_share": "a"})],
)
def test_parameters_that_are_no_numbers_are_refused(name, wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        distribution(name, **wrong)


def test_seeds_and_shares_that_are_none_are_refused():
    for seed in (-1, 0.5, "a"):
        with pytest.raises(InputError, match="seed"):
            distribution("constant").sample(3, seed)
    with pytest.raises(InputError, match="share"):
        distribution("constant").quantile("a")
