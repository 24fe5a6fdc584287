"""Logs as the tools print them, and logs as people damage them: each bad line is named, the rest still read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telekit.comm import measurements
from telekit.comm.measurements import read_measurements
from telekit.comm.row_checks import in_network
from telekit.errors import InputError

RANKS = "".join(
    f"#  Rank  {i} Group  0 Pid  29{i} on nodeA device  {i} [0000:0{i}:00] NVIDIA H100 80GB HBM3\n"
    for i in range(8)
)
HEAD = """# nccl-tests version 2.17.6 nccl-headers=22803 nccl-library=22803
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
#
# Using devices
"""
COLUMNS = """#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""
ROW = {
    1: "     1048576        262144  float   sum  -1  27.37   38.31   67.04       0    27.10   38.69   67.71       0",
    4: "     4194304       1048576  float   sum  -1  54.19   77.40  135.45       0    54.00   77.67  135.93       0",
    16: "    16777216       4194304  float   sum  -1  123.8   135.52  237.16       0   123.0   136.40  238.70       0",
}
FOOT = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 100.0\n#\n"
NEW = HEAD + RANKS + COLUMNS + "\n".join(ROW.values()) + "\n" + FOOT
OLD = """# nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
#   Rank  0 Pid   9988 on      node1 device  0 [0x07] Tesla V100-SXM2-32GB
#   Rank  1 Pid   9988 on      node1 device  1 [0x0a] Tesla V100-SXM2-32GB
#
#                                               out-of-place                       in-place
#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)             (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
    16777216       2097152   float    763.7   21.97   10.98  1e-07    760.0   22.08   11.04  1e-07
"""
A2A = """# nThread 1 nGpus 4 minBytes 1048576 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
     1048576         65536     float    none      -1    17.74   59.11   44.33     N/A    17.70   59.24   44.43     N/A
"""
HCCL = """mpirun -n 8 ./bin/all_reduce_test -b 8M -e 64M -f 2 -d fp32 -o sum -p 8
the minbytes is 8388608, maxbytes is 67108864, iters is 20, warmup_iters is 5
data_size(Bytes): |   aveg_time(us): | alg_bandwidth(GB/s): | check_result:
8388608           |     150.00       |      55.92405        | success
67108864          |     900.00       |      74.56540        | success
"""


@pytest.fixture
def log(tmp_path):
    def write(text, name="run.log"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_new_nccl_tests_text(log):
    found = read_measurements(log(NEW))
    assert not found.problems
    assert {(r.op, r.ranks, r.nodes, r.device) for r in found.rows} == {
        ("all-reduce", 8, 1, "NVIDIA H100 80GB HBM3")
    }
    outside = [(r.size_bytes, round(r.time_s * 1e6, 6), r.line) for r in found.rows if not r.in_place]
    first = (HEAD + RANKS + COLUMNS).count("\n") + 1
    assert outside == [(1048576, 27.37, first), (4194304, 54.19, first + 1), (16777216, 123.8, first + 2)]
    assert [r.time_s for r in found.rows if r.in_place] == pytest.approx([27.1e-6, 54e-6, 123e-6])


def test_old_text_whose_op_is_in_the_name_or_given(log):
    for path, said in ((log(OLD, "all_gather_perf.txt"), {}), (log(OLD), {"op": "all-gather"})):
        rows = read_measurements(path, **said).rows
        assert [(r.op, r.ranks, r.size_bytes) for r in rows] == [("all-gather", 2, 16777216)] * 2
    with pytest.raises(InputError, match=r"line 10 .*does not say the collective"):
        read_measurements(log(OLD))


def test_all_to_all_without_checks_counts_gpus_of_the_header(log):
    rows = read_measurements(log(A2A, "alltoall_perf.log")).rows
    assert [(r.op, r.ranks, r.in_place) for r in rows] == [("all-to-all", 4, False), ("all-to-all", 4, True)]


def test_hosts_are_counted_and_mpi_prefixes_are_dropped(log):
    text = NEW.replace("Rank  7 Group  0 Pid  297 on nodeA", "Rank  7 Group  0 Pid  297 on nodeB")
    text = "".join(f"[1,0]<stdout>:{line}\n" for line in text.splitlines())
    rows = read_measurements(log(text)).rows
    assert {(r.ranks, r.nodes) for r in rows} == {(8, 2)} and len(rows) == 6


def test_groups_of_a_split_communicator(log):
    split = "".join(
        line.replace("Group  0", f"Group  {i // 4}") + "\n" for i, line in enumerate(RANKS.splitlines())
    )
    text = (HEAD + split + COLUMNS + ROW[16] + "\n").replace("237.16", "203.28").replace("238.70", "204.60")
    assert {r.ranks for r in read_measurements(log(text)).rows} == {4}  # 2 * 3/4 of 135.52 is 203.28


def test_hccl(log):
    found = read_measurements(log(HCCL))
    assert [(r.op, r.ranks, r.size_bytes, r.line) for r in found.rows] == [
        ("all-reduce", 8, 8388608, 4),
        ("all-reduce", 8, 67108864, 5),
    ]
    assert found.rows[0].time_s == pytest.approx(150e-6)
    assert any("whole buffer" in note for note in found.notes)
    failed = HCCL.replace("74.56540        | success", "74.56540        | failed")
    assert "line 5" in read_measurements(log(failed)).problems[0].field


def test_csv_in_seconds_and_microseconds(log):
    rows = read_measurements(
        log("op,ranks,size_bytes,time_us,nodes,device\nall_reduce,8,1048576,27.37,1,h100\n", "a.csv")
    ).rows
    assert [(r.op, r.ranks, r.size_bytes, r.device, r.line) for r in rows] == [
        ("all-reduce", 8, 1048576, "h100", 2)
    ]
    assert rows[0].time_s == pytest.approx(27.37e-6)
    same = read_measurements(
        log("collective,n_gpus,bytes,time_s\nallreduce,8,1048576,27.37e-6\n", "b.csv")
    ).rows
    assert same[0].time_s == pytest.approx(rows[0].time_s)
    with pytest.raises(InputError, match="no column time_s or time_us"):
        read_measurements(log("op,ranks,size_bytes\n", "c.csv"))


def damaged(old, new):
    assert old in ROW[4]
    return NEW.replace(ROW[4], ROW[4].replace(old, new))


LINE = (HEAD + RANKS + COLUMNS).count("\n") + 2


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("77.40", "72.08", "GiB/s, not GB/s"),
        ("4194304       1048576", "1048576       1048576", "element count"),
        ("4194304       1048576", "4194305       1048576", "is not its"),
        ("54.19", "0.0542", "beyond any link"),
        ("77.40", "0.0774", "in ms"),
        ("54.19", "-54.19", "above 0"),
        ("54.19", "0.00", "above 0"),
        ("54.19", "nan", "above 0"),
        ("135.45", "77.40", "factor of all-reduce on 8 ranks"),
        ("135.45", "1354.5", "factor of all-reduce on 8 ranks"),
        ("54.19", "xx", "not a number"),
        ("135.45       0", "135.45       7", "wrong elements"),
    ],
)
def test_a_damaged_line_is_flagged_and_the_rest_read(log, old, new, says):
    found = read_measurements(log(damaged(old, new)))
    assert [p.field for p in found.problems if says in p.rule] and {p.field for p in found.problems} == {
        f"line {LINE}"
    }
    assert {r.size_bytes for r in found.rows if r.line != LINE} == {1048576, 16777216}


def test_element_counts_show_in_a_csv_by_the_bandwidth(log):
    half = (
        "op,ranks,bytes,time_us,algbw\nall_reduce,8,2097152,54.19,38.70\nall_reduce,8,1048576,54.19,38.70\n"
    )
    found = read_measurements(log(half, "a.csv"))
    assert [r.size_bytes for r in found.rows] == [2097152]
    assert found.problems[0].field == "line 3" and "elements of 2 bytes" in found.problems[0].rule


@given(st.integers(0, len(NEW)))
def test_a_log_cut_anywhere_gives_only_rows_of_the_whole_or_an_error(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("cut") / "all_reduce.log"
    path.write_text(NEW[:cut], encoding="utf-8")
    whole = {(1048576, 27.37e-6), (4194304, 54.19e-6), (16777216, 123.8e-6)}
    whole |= {(1048576, 27.10e-6), (4194304, 54.0e-6), (16777216, 123.0e-6)}
    try:
        found = read_measurements(path)
    except InputError:
        return
    assert {(r.size_bytes, round(r.time_s, 11)) for r in found.rows} <= {(s, round(t, 11)) for s, t in whole}


def test_files_that_are_no_log(log, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="no table"):
        read_measurements(log("hello\n"))
    with pytest.raises(InputError, match="not a regular file"):
        read_measurements(tmp_path / "none.log")
    with pytest.raises(InputError, match=r"line 1 .*characters or more"):
        read_measurements(log("x" * 10_000))
    monkeypatch.setattr(measurements, "MAX_LOG_BYTES", 100)
    with pytest.raises(InputError, match="over"):
        read_measurements(log(NEW))


def test_busbw_above_the_link_is_in_network_or_impossible():
    assert not in_network("all-reduce", 8, 365e9, 450e9)
    assert in_network("all-reduce", 8, 480e9, 450e9)  # 480 is H100's with NVLS
    for op, busbw in (("all-gather", 480e9), ("all-reduce", 800e9)):  # 450 * 14/9 = 700 is the most
        with pytest.raises(InputError, match="at most"):
            in_network(op, 8, busbw, 450e9)


# --- what launchers and tools do to a log -----------------------------------------------------------------------------

TABLE = """# nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor)
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
     1048576        262144     float     sum      -1    40.00   26.21   45.88      0    40.00   26.21   45.88      0
"""


@pytest.mark.parametrize(
    "prefix",
    ["[1,0]<stdout>: ", "[1,0]<stdout>:", "0: ", "2026-01-31T12:00:00.123 ", "[prterun-host-1,0]<stdout>: ",
     "[2026-01-31 12:00:00] 0: "],
)  # fmt: skip
def test_prefixes_of_launchers_are_passed_over(tmp_path, prefix):
    path = tmp_path / "h100_all_reduce_perf_1.txt"
    path.write_text("".join(prefix + line + "\n" for line in TABLE.splitlines()))
    found = read_measurements(path)
    assert [(row.op, row.ranks, row.size_bytes) for row in found.rows] == [("all-reduce", 8, 2**20)] * 2


def test_utf_16_is_read(tmp_path):
    path = tmp_path / "all_reduce_perf.txt"
    path.write_text(TABLE, encoding="utf-16")
    assert len(read_measurements(path).rows) == 2


@pytest.mark.parametrize(
    ("was", "becomes"),
    [("     1048576  ", "          -8  "), (" 26.21   45.88      0    ", "  0.00   45.88      0    ")],
)
def test_no_bad_row_is_dropped_in_silence(tmp_path, was, becomes):
    path = tmp_path / "all_reduce_perf.txt"
    path.write_text(TABLE.replace(was, becomes, 1) + TABLE.splitlines()[-1] + "\n")
    found = read_measurements(path)
    assert found.problems and {problem.field for problem in found.problems} == {"line 3"}
    assert {row.line for row in found.rows} >= {4}


@pytest.mark.parametrize("more", ["time_ms", "algbw_GiB_s", "busbw_gibs"])
def test_columns_that_contradict_or_are_in_unknown_units_are_refused(tmp_path, more):
    path = tmp_path / "log.csv"
    path.write_text(f"op,ranks,size_bytes,time_us,{more}\nall_reduce,8,1048576,40,40\n")
    with pytest.raises(InputError, match="line 1"):
        read_measurements(path)
