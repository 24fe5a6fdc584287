import pytest

from telekit import catalog
from telekit.errors import InputError
from telekit.fusion.layer import from_operators, head_stretches
from telekit.fusion.savings import library_kernels, owned_elements, savings
from telekit.fusion.search import search
from telekit.fusion.subgraphs import SUBGRAPHS, subgraph
from telekit.fusion.traffic import Target
from telekit.job import Job
from telekit.model.tensors import Tensor
from telekit.operators.layer import layer_operators

STEP_S = 1.5


@pytest.fixture(scope="module")
def job():
    return Job.read(catalog.record("jobs", "telechat3-105b-910b-256")["job"])


@pytest.fixture(scope="module")
def found(job):
    return savings(job, STEP_S)


def test_fused_stretches_move_what_the_list_of_operators_says(job):
    """Two independent counts of one kernel's bytes: of its graph, and by hand in the layer's list (no weights)."""
    target = Target.of(job.cluster.device)
    for kind in job.model.kinds:
        operators = {o.name: o for o in layer_operators(job.model, kind, job.train, job.layout)}
        stretches, left_out = from_operators(job.model, kind, job.train, job.layout)
        assert set(left_out) <= {"top_k"}
        compared = 0
        for stretch in stretches:
            operator = operators.get(stretch.name)
            if operator is None or operator.kind != "memory" or "permute" in stretch.name:
                continue
            forward = search(stretch.forward, stretch.sizes, target, "merging").cost
            assert forward.launches == 1
            # the layer's list has the residual sum apart from its norm: written, then read once more
            apart = 5 / 4 if stretch.name in ("input_norm", "pre_mlp_norm") else 1
            assert apart * forward.moved_bytes == pytest.approx(operator.forward_bytes, rel=0.01)
            compared += 1
        assert compared >= 5


def test_what_no_graph_is_known_for_is_named(job):
    recurrent = Job.read(
        {
            "model": "qwen3-next-80b-a3b",
            "cluster": {"device": "h100", "nodes": 1},
            "train": {},
            "layout": {"ep": 8},
        }
    )
    names = [
        from_operators(recurrent.model, k, recurrent.train, recurrent.layout)[1]
        for k in recurrent.model.kinds
    ]
    assert any(names)


def test_the_head_is_a_norm_and_the_loss(job):
    assert [s.name for s in head_stretches(job.model, job.train, job.layout)] == [
        "final_norm",
        *(("cross_entropy_largest", "cross_entropy_sum") if job.layout.tp > 1 else ()),
        "cross_entropy",
    ]
    assert job.layout.tp > 1  # then two all-reduces lie between, which no kernel spans


def test_launches_are_counted_by_hand(found):
    """44 MoE blocks, a dense one and the MTP module's; 8 stages, 8 micro-batches: 46 runs a device, forward twice."""
    parts = {p.name: p for p in found.parts}
    assert parts["input_norm"].runs == 2 * 46 and parts["input_norm backward"].runs == 46
    assert parts["expert_activation"].runs == 2 * 45 and parts["activation"].runs == 2
    norm = parts["input_norm"]  # add, cast, square, mean, + epsilon, rsqrt, times, cast, times
    assert (norm.operators.launches, norm.library.launches, norm.fused.launches) == (9, 2, 1)
    for saving, baseline in ((found.low, "library"), (found.high, "operators")):
        want = sum(p.runs * (getattr(p, baseline).launches - p.fused.launches) for p in found.parts)
        assert saving.launches == pytest.approx(want)


def test_the_bubble_and_the_shares(found):
    """15/8 of what the micro-batches save (8 stages, 8 micro-batches); AdamW has no bubble."""
    parts = [p for p in found.parts if p.name != "adamw"]
    step = sum(p.runs * (p.operators.device_s - p.fused.device_s) for p in parts) * 15 / 8
    step += sum(p.runs * (p.operators.device_s - p.fused.device_s) for p in found.parts if p.name == "adamw")
    assert found.high.device_s == pytest.approx(step)
    assert found.high.share == pytest.approx(step / (STEP_S + step))


def test_the_range_of_telechat3(found):
    """Against a library of fused kernels under 2 % of the step, against one kernel an operator over 10 %."""
    assert 0 < found.low.share < 0.02 < 0.1 < found.high.share < 0.3
    assert found.low.launches < found.high.launches / 5
    assert found.high.moved_bytes > found.fused_bytes
    assert found.left_out == ("top_k",), "no graph is known for the choice of experts"
    assert any("host issues" in line for line in found.assumptions)


def test_adam_runs_over_what_a_device_owns(job, found):
    split = Tensor("w", "mlp", (8, 16), split=True)
    whole = Tensor("w", "norms", (16,))
    experts = Tensor("e", "experts", (8, 16), split=True, copies=192)
    assert owned_elements(split, job.layout) == 8 * 16 / 8 / 4
    assert owned_elements(whole, job.layout) == 16 / 4
    assert owned_elements(experts, job.layout) == 192 * 8 * 16 / 8 / 4
    elements = sum(p.runs * p.fused.written_bytes / 14 for p in found.parts if p.name == "adamw")
    assert elements == pytest.approx(107e9 / 256, rel=0.05)  # 105 B parameters and the MTP module, all spread


def test_library_kernels_cover_every_operator():
    for name in SUBGRAPHS:
        if name != "feed-forward":
            graph = subgraph(name)
            groups = library_kernels(graph).groups
            assert sorted(i for group in groups for i in group) == [
                i for i in graph.operators if i in graph.live()
            ]
    assert len(library_kernels(subgraph("residual-rms-norm")).groups) == 2
    assert len(library_kernels(subgraph("swiglu")).groups) == 1


def test_a_step_is_a_positive_time(job):
    with pytest.raises(InputError, match="positive"):
        savings(job, 0.0)
