"""Every chapter runs here: unanswered, with every control moved, and with its exercises solved."""

import nbformat
import pytest
from notebook_tools import CHAPTERS, NOTEBOOKS, code_cells, mime, read, run, settings, tags

from telekit.errors import InputError
from telekit.exercises.check import Feedback

# by chapter and cell id: a right answer, and wrong ones with a word that their feedback must hold
SOLUTIONS: dict[str, dict[str, tuple[str, dict[str, str]]]] = {
    "01_introduction": {
        "exercise-mixtral": (
            # per layer: queries and output, keys and values, two experts; then the vocabulary twice
            "(32 * (2 * 4096**2 + 2 * 4096 * 1024 + 2 * 3 * 4096 * 14336) + 2 * 32000 * 4096) / 1e9",
            {
                "46.7": "all eight experts",
                "32 * (2 * 4096**2 + 2 * 4096 * 1024 + 2 * 3 * 4096 * 14336) / 1e9 + 0.131": "input embedding",
                "(32 * (4 * 4096**2 + 2 * 3 * 4096 * 14336) + 2 * 32000 * 4096) / 1e9": "8 heads, not 32",
                "(32 * (2 * 4096**2 + 2 * 4096 * 1024 + 2 * 2 * 4096 * 14336) + 2 * 32000 * 4096) / 1e9": "not two",
                "(32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 2 * 32000 * 4096) / 1e9": "one expert",
                "12.88e9": "check the prefix",
            },
        ),
        "exercise-head": (
            "100 * 151936 * 1024 / 596.0e6",
            {
                "100 * 151936 * 1024 / (596.0e6 + 151936 * 1024)": "tied",
                "100 * 151936 * 1024 / (596.0e6 - 151936 * 1024)": "has the head in it",
                "0.261": "a fraction or per cent",
            },
        ),
        "exercise-length": (
            # 2 (2 h^2 + 2 h kv) FLOPs of projections = 4 H d (S + 1) / 2 of mixing
            "2 * (2 * 4096**2 + 2 * 4096 * 1024) / (2 * 4096) - 1",
            {
                "5120": "half of the keys",
                "4 * 4096": "8 heads, not 32",
                "20480": "by the key and by the value",
                "'40,960'": "queries have 32 heads",
            },
        ),
        "exercise-active": ("'No Input'", {"'both'": "5.71 B", "'neither'": "4.55 B"}),
        "exercise-mtp": (
            "4.1",
            {"1.7": "stored parameters", "1.9": "pass through the head", "27.8": "9 of the module's 257"},
        ),
        "exercise-design": (
            '{"n_routed_experts": 384, "num_hidden_layers": 60, "first_k_dense_replace": 1,'
            ' "num_attention_heads": 64, "num_key_value_heads": 64}',
            {
                "{}": "it has 671 B",
                '{"n_routed_experts": 384}': "it has 61 layers",
                '{"n_routed_experts": 384, "num_hidden_layers": 60, "first_k_dense_replace": 1}': "one meets 37.0 B",
                '{"n_routed_experts": 384, "num_hidden_layers": 60, "first_k_dense_replace": 1,'
                ' "num_experts_per_tok": 7}': "it takes 46.8 days",
                '{"n_routed_experts": 400, "num_hidden_layers": 58}': "leave 16 over",
                '{"n_experts": 384}': "no field of the base",
                '{"first_k_dense_replace": 61}': "no layer has experts",
                '{"num_experts_per_tok": 300}': "must not exceed n_routed_experts=256",
            },
        ),
    },
    "02_operator_accuracy": {
        "exercise-share": (
            "100 * 1.5e-3 / 2**-8",
            {
                "25.6": "at x = 1",
                "51.2": "the best place",
                "19.2": "half a step at most",
                "61.6": "the share outside",
            },
        ),
        "exercise-tightest": (
            "2**-11 / (1 + 2**-11)",
            {"2**-10": "a whole step", "2**-8": "bf16's", "1e-3": "torch's"},
        ),
        "exercise-ones": (
            "256",
            {"128": "a step is still 1", "4096": "as a tree", "2048": "three more bits"},
        ),
        "exercise-ratio": (
            "0.004 / 2**-11",
            {"40": "counts as 2**-11", "0.004 * 2**8": "bf16's", "0.004 * 2**10": "half of it"},
        ),
        "exercise-name": (
            '{"A": "permutation", "B": "near zero", "C": "scale", "D": "missing term", "E": "one row"}',
            {
                '{"A": "missing term", "B": "near zero", "C": "scale",'
                ' "D": "permutation", "E": "one row"}': "norms are equal",
                '{"A": "permutation", "B": "one row", "C": "scale",'
                ' "D": "missing term", "E": "near zero"}': "only the relative",
                '{"A": "permutation", "B": "near zero", "C": "scale",'
                ' "D": "scale", "E": "one row"}': "not by one factor",
                '{"A": "permutation"}': "one word for each",
                '{"A": "noise", "B": "near zero", "C": "scale", "D": "scale", "E": "one row"}': "is not one of",
            },
        ),
        "exercise-design": (
            '{"rtol": 0.01, "atol": 0.01, "share": 1, "relative_norm": 0.003}',
            {
                '{"rtol": 0.01, "atol": 0.01, "share": 1, "relative_norm": 1}': "'all too large' by 0.5 % passes",
                '{"rtol": 0.016, "atol": 1e-5, "share": 1, "relative_norm": 0.003}': "golden near 0' fails",
                '{"rtol": 0.016, "atol": 0.016, "share": 0.99, "relative_norm": 0.003}': "'one value too large' by 5 %",
                '{"rtol": 0.001, "atol": 0.01, "share": 1, "relative_norm": 0.003}': "Nothing healthy may fail",
                '{"rtol": 0.01, "atol": 0.01, "share": 1, "relative_norm": 0.001}': "Nothing healthy may fail",
                '{"rtol": 0.01}': "rtol, atol, share, relative_norm",
            },
        ),
    },
    "03_end_to_end_accuracy": {
        "exercise-phase": (
            "'backward'",
            {"'forward'": "that agrees", "'Optimizer'": "before the optimizer", "'nothing'": "not rounding"},
        ),
        "exercise-ratio": (
            "'ep'",
            {
                "'tp'": "attention is split by it",
                "'dp'": "dp is 4",
                "'micro-batches'": "alike for all weights",
            },
        ),
        "exercise-blind": (
            "'activation_func'",
            {
                "'linear_fc1'": "every statistic agrees",
                "'linear_fc2'": "input is wrong",
                "'none'": "another number",
            },
        ),
        "exercise-bound": (
            "1.14 / (4 * 1.03**33 * 2**-7)",
            {
                "1.14 * 2**7": "those are epsilons",
                "1.14 / (4 * 1.03 * 2**-7)": "all 33 steps",
                "1.14 / (4 * 1.03**33 * 2**-8)": "2**-7, not 2**-8",
                "1.14 / (4 * 2**-7)": "the bound grows",
            },
        ),
        "exercise-fault": (
            '{"operator": "layers.0.mlp.linear_fc2", "cause": "double reduction"}',
            {
                '{"operator": "layers.0.mlp.linear_fc2", "cause": "missing reduction"}': "keeps its own half",
                '{"operator": "layers.0.mlp.linear_fc2", "cause": "missing term"}': "a ratio of 2",
                '{"operator": "layers.0.mlp", "cause": "double reduction"}': "contains the operator",
                '{"operator": "layers.0.mlp_bda", "cause": "double reduction"}': "a consequence",
                '{"operator": "layers.0.self_attention.linear_proj", "cause": "mask"}': "within rounding",
                '"linear_fc2"': "Write",
            },
        ),
        "exercise-design": (
            '("step-1 loss",'
            ' ("step-1 norm", ("step-2 loss", ("update of step 2", "nothing", "state-lost-on-resume"),'
            ' "no-bias-correction"),'
            ' ("step-2 loss", "gradients-divided-by-dp", "norm-gradients-not-summed")),'
            ' ("layers.0 linear_fc1", ("layers.1 linear_proj", "residual-missing", "row-parallel-sum-missing"),'
            ' ("layers.0 rotary_pos_emb", "gate-and-up-cut-as-one", "rotary-base")))',
            {
                '("step-1 loss", "nothing", "rotary-base")': "gate-and-up-cut-as-one is taken for rotary-base",
                '("step-1 loss", "no-bias-correction", "rotary-base")': "a clean run is accused",
                '("step-1 norm", ("step-2 loss", ("update of step 2", "nothing", "state-lost-on-resume"),'
                ' "no-bias-correction"), ("layers.0 rotary_pos_emb", ("layers.0 linear_fc1", ("layers.1 linear_proj",'
                ' ("layers.1 mlp_bda", ("step-2 loss", "gradients-divided-by-dp", "norm-gradients-not-summed"),'
                ' "residual-missing"), "row-parallel-sum-missing"), "gate-and-up-cut-as-one"), "rotary-base"))': (
                    "takes 4 dumps"
                ),
                '("step-1 loss", "nothing")': "next if it differs",
                '("step-3 loss", "nothing", "rotary-base")': "is no check",
                '("step-1 loss", ("step-1 loss", "nothing", "rotary-base"), "rotary-base")': "asked for twice",
                '("step-1 loss", "innocent", "rotary-base")': "is no suspect",
                '"nothing"': "not one name",
            },
        ),
    },
    "04_interleaved_pipeline": {
        "exercise-micro-batch": (
            "100 * 7 / (8 + 7)",
            {"17.9": "8 of them, not 32", "87.5": "over working time", "50": "7 others"},
        ),
        "exercise-chunks": ("4", {"5": "under 10 % of the working time", "3": "12.7 %"}),
        "exercise-held": (
            "(2 * 7 + 8 + 1) / 2",
            {"11": "one more forward", "23": "half of what a stage keeps", "8": "1F1B's"},
        ),
        "exercise-saved": (
            "100 * 7 / (512 + 7)",
            {
                "100 * 7 / 23": "at 16 micro-batches",
                "100 * 7 / 512": "over the working time",
                "7 / 519": "per cent",
            },
        ),
        "exercise-letter": (
            "7 * (1 + 2 - 2)",
            {"0": "it is 2, not 1", "14": "W counts twice", "8": "7 others"},
        ),
        "exercise-design": (
            '{"schedule": "v-half", "micro_batch": 2}',
            {
                '{"schedule": "zb-v", "micro_batch": 1}': "1.029 times the shortest",
                '{"schedule": "zb-v", "micro_batch": 2}': "holds 16 sequences and has room for 10",
                '{"schedule": "dualpipe", "micro_batch": 1}': "beside two copies",
                '{"schedule": "dualpipe", "micro_batch": 8}': "It must run",
                '{"schedule": "interleaved-1f1b", "micro_batch": 1, "chunks": 4}': "times the shortest",
                '{"schedule": "1f1b", "micro_batch": 1, "chunks": 2}': "It must run",
                '{"schedule": "2f2b", "micro_batch": 1}': "no such schedule",
                '{"schedule": "1f1b", "micro_batch": 3}': "holds 1, 2, 4, 8 sequences",
                '{"schedule": "1f1b", "micro_batch": 1, "tp": 2}': "tp: only schedule",
                '{"schedule": "1f1b"}': "a schedule and a micro-batch",
            },
        ),
    },
    "05_attention_aware_data_scheduling": {
        "exercise-pairs": (
            "(1024 * 1025 / 2) / (2 * 512 * 513 / 2)",
            {"2": "that is squares", "3.996": "there are two", "'1/1.998'": "upside down"},
        ),
        "exercise-exchange": (
            "(8 + 16) + (8 + 2)",
            {
                "(8 + 16) + (8 + 8)": "as given",
                "(24 + 16 + 12 + 10) / 2": "the mean",
                "24 + 12": "heaviest with lightest",
                "24": "two samples a rank",
                "28": "the faster rank",
            },
        ),
        "exercise-bound": (
            "30 + 10",
            {"25": "that is the mean", "30": "its rank takes two", "100": "all work"},
        ),
        "exercise-tokens": (
            "(59047 + 32768) / (59047 + 1024)",
            {"1": "tokens alone", "32": "pairs alone", "1 + 32768 / 59047": "have attention too"},
        ),
        "exercise-crossover": (
            "(2 * 6144**2 + 2 * 6144 * 1024 + 3 * 6144 * 24576) / 6144 - 1",
            {
                "44032": "half of the others",
                "14336": "belong to the rest",
                "3 * 24576": "MLP alone",
                "176128": "2 by the value",
                "59047": "kernels' speeds",
            },
        ),
        "exercise-design": (
            '{"seq_len": 32768, "pp": 2, "policy": "balanced"}',
            {
                '{"seq_len": 8192, "pp": 1, "policy": "balanced"}': "cut longer ones",
                '{"seq_len": 32768, "pp": 1, "policy": "balanced"}': "no room for the states",
                '{"seq_len": 32768, "pp": 2, "policy": "by work"}': "holds 40,960 tokens, with samples",
                '{"seq_len": 65536, "pp": 2, "policy": "balanced"}': "holds 65,536 tokens, and has room",
                '{"seq_len": 32768, "pp": 2, "policy": "as given"}': "times the shortest",
                '{"seq_len": 32768, "pp": 4, "policy": "balanced"}': "times the shortest",
                '{"seq_len": 131072, "pp": 1, "policy": "balanced"}': "do not go onto 32 ranks",
                '{"seq_len": 32768, "pp": 3, "policy": "balanced"}': "pp is one of 1, 2, 4, 8",
                '{"seq_len": 32768, "pp": 2, "policy": "greedy"}': "policy is one of",
                '{"seq_len": 32768}': "seq_len, pp and policy",
            },
        ),
    },
    "06_expert_parallel_communication": {
        "exercise-distinct": (
            "4 * (1 - (144 * 143 * 142 * 141) / (192 * 191 * 190 * 189))",
            {"4 * (1 - 0.75**4)": "choose one twice", "4": "on one node", "2.061": "its own counts too"},
        ),
        "exercise-busbw": (
            "'93.75 GB/s'",
            {"50": "busbw counts 15", "100": "algbw", "46.9": "8 of 16 parts of the buffer, not all"},
        ),
        "exercise-gather": ("7", {"6": "both send as much", "5": "still sends less"}),
        "exercise-wire": ("58 * 3 / 4", {"58": "never leave it", "29": "only where there are two nodes"}),
        "exercise-exposed": (
            "14 - 10 * 132 / 112",
            {"4": "hides more of it", "1.79": "how much longer", "14 - 10 * 112 / 132": "14 ms either way"},
        ),
        "exercise-design": (
            '{"ep": 16, "dispatcher": "alltoall_deredundency", "chunks": 4}',
            {
                '{"ep": 8, "dispatcher": "alltoall", "chunks": 4}': "holds 24 experts",
                '{"ep": 16, "dispatcher": "alltoall", "chunks": 4}': "times the quickest",
                '{"ep": 32, "dispatcher": "alltoall_deredundency", "chunks": 4}': "times the quickest",
                '{"ep": 16, "dispatcher": "alltoall_deredundency", "chunks": 16}': "times the quickest",
                '{"ep": 16, "dispatcher": "deepep", "chunks": 4}': "one of alltoall",
                '{"ep": 16, "chunks": 4}': "Write ep, dispatcher and chunks",
            },
        ),
    },
    "07_operator_fusion": {
        "exercise-bound": (
            "(2 + 1 + 1 + 1) / 3",
            {
                "2": "reads its row twice",
                "2.5": "three tensors, not two",
                "0.6": "share of bytes",
                "4 / 3": "neither is",
            },
        ),
        "exercise-least": (
            "78 * 2 / 4",
            {
                "78": "moves fewer bytes",
                "50": "not of the peak",
                "156": "more than all",
                "0.39": "a fraction",
            },
        ),
        "exercise-host": (
            "40 - 1546 * 4.58e-3",
            {
                "40 * 0.57": "the host decides",
                "35 * 0.57": "the host takes longer",
                "40": "1,546 of them are gone",
                "20": "copies and the rest stay",
            },
        ),
        "exercise-row": (
            "192 * 1024 / 12",
            {
                "192 * 1024 / 4": "held three times",
                "192 * 1024 / 8": "place of its own",
                "192 * 1024 / 3": "in fp32 has four",
                "192 * 1024 / 16": "one number a row",
            },
        ),
        "exercise-baseline": (
            "1.36 / 0.86",
            {"2.84 / 0.86": "over eager", "2.84 / 1.36": "baseline itself", "0.86 / 1.36": "other way round"},
        ),
        "exercise-design": (
            "[[2, 3, 4, 6, 7, 8, 9, 10], [12], [14, 15, 16], [18, 19]]",
            {
                "[[2, 3, 4, 6, 7, 8, 9, 10], [12], [14], [15, 16], [18], [19]]": "1.193 times as long",
                "[[2, 3, 4, 6, 7, 8, 9, 10], [12], [14, 16], [15], [18, 19]]": "1.050 times as long",
                "[[2, 3, 4, 6, 7, 8, 9, 10, 12], [14, 15, 16], [18, 19]]": "a core holds 64.00 KiB",
                "[[2, 3, 4, 6, 7, 8, 9, 10], [12, 14, 15, 16], [18, 19]]": "at most one matrix product",
                "[[2, 4, 6, 7, 8, 9, 10], [3], [14], [12, 15, 16], [18, 19]]": "wait for each other",
                "[[2, 3, 4]]": "in no group: 6, 7",
                "[[2, 3, 4, 5]]": "no operator: 5",
                "[[2, 3], [3, 4]]": "in no group",
                "7": "list of lists",
            },
        ),
    },
    "08_parallelization_framework": {
        "exercise-bubble": ("100 * 15 / 135", {"15 / 135": "a fraction or per cent", "12.5": "not it"}),
        "exercise-experts": (
            "16 * 3 * 7168 * 2048 * 2 / 2**30",
            {
                "16 * 3 * 7168 * 2048 * 2 / 1e9": "GB (1e9 bytes) is not GiB",
                "16 * 3 * 7168 * 2048 / 2**30": "bytes a number",
                "64 * 16 * 3 * 7168 * 2048 * 2 / 2**30": "Sixteen experts",
            },
        ),
        "exercise-objective": (
            "'depends'",
            {"'first'": "fills and drains", "'second'": "many micro-batches"},
        ),
        "exercise-design": (
            '{"pp": 2, "vpp": 4, "ep": 8}',
            {
                '{"tp": 3}': "must divide the attention heads",
                '{"tp": 1}': "It must fit",
                '{"tp": 8, "pp": 4, "ep": 2, "recompute": "full"}': "times the planner's best",
            },
        ),
    },
    "09_cluster_optimization": {
        "exercise-straggler": (
            "2",
            {"0": "for somebody else", "3": "its kernels take longest", "8": "one of the ranks 0 to 7"},
        ),
        "exercise-fuse": (
            "18e-3 / 12e-6",
            {"500": "that many must go", "2000": "there now", "2667": "the other way round"},
        ),
        "exercise-many": (
            "0.5 * 3.626",
            {
                "0.5 * 4.079": "it overstates",
                "0.5": "all wait for the slowest",
                "3.63": "in standard deviations",
                "0.5 * 2.344": "of 64 devices",
                "0.5 / 64": "shrink with the root",
            },
        ),
        "exercise-windows": (
            "(240 - 8) / 4 + 1",
            {
                "60": "must end there",
                "58": "the first one counts",
                "30": "windows overlap",
                "233": "not every second",
            },
        ),
        "exercise-flow": (
            '{"rank": 10, "cause": "not delivered"}',
            {
                '{"rank": 12, "cause": "not delivered"}': "it is the receiver",
                '{"rank": 14, "cause": "not delivered"}': "more chunks done than another one",
                '{"rank": 10, "cause": "not transmitted"}': "have been transmitted",
                '{"rank": 10, "cause": "waiting for GPU data"}': "all three were equal",
                '{"rank": 10, "cause": "not started"}': "all three were 0",
                "10": "Write",
            },
        ),
        "exercise-design": (
            '{"period_s": 1, "together": True, "captured": 0.45}',
            {
                '{"period_s": 60, "together": False, "captured": 0.45}': "too rare",
                '{"period_s": 1, "together": False, "captured": 0.45}': "monitor 1.00%",
                '{"period_s": 1, "together": True, "captured": 0.3}': "host 14.00%",
                '{"period_s": 0.5, "together": True, "captured": 0.45}': "monitor 1.20%",
                '{"period_s": 1, "together": True, "captured": 1}': "shapes change",
                '{"period_s": 1}': "Write period_s, together and captured",
            },
        ),
    },
    "10_results_and_scaling": {
        "exercise-kept": (
            "100 * 1466.8 / (4 * 433.6)",
            {
                "338.3": "four times as many",
                "238.3": "gain in speed",
                "15.4": "what is lost",
                "118.2": "upside down",
            },
        ),
        "exercise-lamb": (
            "75",
            {"87.5": "what the paper says", "93.75": "one four times as long", "25": "what is left"},
        ),
        "exercise-slow": (
            "10 * (1 - 0.995**64)",
            {
                "10": "slow for certain",
                "0.05": "wait for the slowest",
                "27.4": "the chance that one is slow",
                "3.2": "not twice as slow",
            },
        ),
        "exercise-recover": (
            "4.4",
            {"20.6": "since the last checkpoint", "18.6": "a tenth of", "3.95": "to first order"},
        ),
        "exercise-interval": (
            "(2 * 2 * 240) ** 0.5",
            {"21.9": "a 2 under the root", "4": "minutes and hours", "43.8": "not all of it"},
        ),
        "exercise-design": (
            '{"devices": 3072, "global_batch": 3072, "interval_min": 31}',
            {
                '{"devices": 2048, "global_batch": 3072, "interval_min": 31}': "Done within 10 days: it takes 12",
                '{"devices": 3072, "global_batch": 6144, "interval_min": 31}': "a step takes 6,144 sequences",
                '{"devices": 4096, "global_batch": 3072, "interval_min": 27}': "times the device-hours",
                '{"devices": 3072, "global_batch": 3072, "interval_min": 120}': "times the device-hours",
                '{"devices": 12288, "global_batch": 768, "interval_min": 31}': "It must run",
                '{"devices": 3000, "global_batch": 3072, "interval_min": 31}': "devices is one of",
                '{"devices": 3072}': "Write devices, global_batch and interval_min",
            },
        ),
    },
}

chapter = pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: p.stem)


@pytest.fixture(scope="module")
def ran():
    """Each notebook, run once unanswered."""
    return {path: run(read(path)) for path in NOTEBOOKS}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_runs_and_shows_only_what_reads_well(path, ran):
    for cell, value in ran[path].shown:
        if value is not None:
            assert "object at 0x" not in mime(value)["text/plain"], f"{cell.id} needs a __repr__"


@chapter
def test_unanswered_exercises_are_silent(path, ran):
    verdicts = ran[path].values("exercise")
    assert len(verdicts) == sum("exercise" in tags(c) for c in code_cells(read(path)))
    assert all(isinstance(v, Feedback) and v.ok is None for v in verdicts)


@chapter
def test_every_panel_follows_every_control_over_its_range(path, ran):
    panels = dict(ran[path].panels)
    assert panels
    for name, panel in panels.items():
        start = panel.values
        for key, control in panel.controls.items():
            for value in settings(control):
                panel.set(**{key: value})
                told = isinstance(panel.error, InputError) and "telekit-bad" in panel.text
                assert panel.error is None or told, f"{name}: {key}={value}: {panel.error!r}"
            panel.set(**start)
        assert panel.error is None and panel.rows, name


@chapter
def test_right_answers_pass(path):
    solutions = SOLUTIONS[path.stem]
    notebook = read(path)
    exercises = {c.id for c in code_cells(notebook) if "exercise" in tags(c)}
    assert exercises == set(solutions), "every exercise has a solution here"
    verdicts = run(notebook, {cell: right for cell, (right, _) in solutions.items()}).values("exercise")
    assert all(verdict.ok for verdict in verdicts), verdicts


@chapter
def test_wrong_answers_hear_their_slip(path, ran):
    for cell_id, (_, slips) in SOLUTIONS[path.stem].items():
        notebook = read(path)
        assert slips, f"{cell_id}: name a common slip"
        for answer, word in slips.items():
            verdict = answer_one(notebook, cell_id, answer, ran[path].space)
            assert verdict.ok is False and word in verdict.message, f"{cell_id}: {answer} -> {verdict}"


def answer_one(notebook, cell_id, answer, space):
    """Run one exercise's cell with an answer, in the namespace of a chapter that already ran."""
    cell = next(c for c in code_cells(notebook) if c.id == cell_id)
    return run(nbformat.v4.new_notebook(cells=[cell]), {cell_id: answer}, dict(space)).shown[0][1]
