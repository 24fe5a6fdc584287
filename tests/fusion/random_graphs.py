"""Random graphs, random partitions of them, and how far rounding may take a fused run from an unfused one."""

from math import prod

import numpy as np
from hypothesis import strategies as st

from telekit.errors import InputError
from telekit.fusion.compute import UFUNCS
from telekit.fusion.graph import Graph
from telekit.fusion.kernels import plan
from telekit.fusion.ops import FLOATS, OPS, numpy_dtype, scalar

# NumPy's own results of these depend on strides, in the last bit or two (measured with NumPy 2.4): a power on whether
# an operand is stretched, the others on whether it is contiguous.
STRIDES = {("exp", "f8"), ("log", "f8"), ("exp", "f2"), ("cos", "f2")}

UNARY = ["neg", "exp", "log", "sqrt", "tanh", "abs", "square", "reciprocal", "sin", "cos"]
UNARY += ["rsqrt", "relu", "sigmoid", "silu", "gelu"]
BINARY = ["add", "sub", "mul", "div", "pow", "maximum", "minimum"]
SIZES = [1, 2, 3, 5, 8, 13, 40]


@st.composite
def cases(draw, empty=True):
    """A graph, sizes, inputs."""
    names = {name: draw(st.sampled_from([0, *SIZES] if empty else SIZES)) for name in "ABC"}
    graph = Graph("random")
    dtype = draw(st.sampled_from(FLOATS))
    dims = st.sampled_from(["A", "B", "C", 1, 4])
    values = [
        graph.input(f"x{i}", draw(st.lists(dims, max_size=3)), dtype) for i in range(draw(st.integers(1, 3)))
    ]
    index = graph.input("index", draw(st.sampled_from([("A",), (3,), (), ("A", 2)])), "int64")
    for _ in range(draw(st.integers(1, 12))):
        values += grow(draw, graph, values, index)
    read = {i for node in graph.nodes for i in node.inputs}
    leaves = [v for v in values if v.index not in read and v.index in graph.operators]
    more = draw(st.lists(st.sampled_from(values), max_size=2))
    for place, value in enumerate(dict.fromkeys([*leaves, *more])):
        graph.output(value, f"y{place}")
    return graph, names, make_inputs(draw, graph, names)


def grow(draw, graph, values, index):
    """Up to one more value; nothing where the drawn operator does not fit the drawn operands."""
    kinds = ["unary", "binary", "binary", "scalar", "reduce", "reduce", "transpose", "matmul", "gather"]
    kinds += ["broadcast", "cast"]
    kind = draw(st.sampled_from(kinds))
    x = draw(st.sampled_from(values))
    try:
        match kind:
            case "unary":
                return [graph.apply(draw(st.sampled_from(UNARY)), x)]
            case "binary":
                fits = [v for v in values if v.dtype == x.dtype]
                return [graph.apply(draw(st.sampled_from(BINARY)), x, draw(st.sampled_from(fits)))]
            case "scalar":
                number = draw(st.sampled_from([-0.0, 0.5, 1.0, -2.25, 3]))
                return [graph.apply(draw(st.sampled_from(BINARY)), *draw(st.permutations([x, number])))]
            case "reduce":
                axes = draw(st.lists(st.sampled_from(range(len(x.shape))), unique=True)) if x.shape else []
                op = draw(st.sampled_from(["sum", "mean", "max", "min"]))
                return [graph.apply(op, x, axes=axes or None, keepdims=draw(st.booleans()))]
            case "transpose":
                return [x.transpose(draw(st.permutations(range(len(x.shape)))))]
            case "matmul":
                other = draw(st.sampled_from([v for v in values if v.dtype == x.dtype]))
                return [graph.matmul(x, draw(st.sampled_from([other, other.transpose()])))]
            case "gather":
                return [graph.gather(x, index, draw(st.sampled_from(range(len(x.shape) or 1))))]
            case "broadcast":
                grown = tuple(draw(st.sampled_from(["A", 4])) if d == 1 else d for d in x.shape)
                return [x.broadcast((*draw(st.sampled_from([(), ("B",), (2,)])), *grown))]
            case _:
                return [x.cast(draw(st.sampled_from(FLOATS)))]
    except InputError:
        return []


def make_inputs(draw, graph, names):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shapes, made = graph.bind(names), {}
    for name, node in graph.inputs.items():
        shape = shapes[node.index]
        if name == "index":
            lengths = [shapes[n.inputs[0]][n.attrs["axis"]] for n in graph.nodes if n.op == "gather"]
            made[name] = rng.integers(0, max(1, min(lengths, default=1)), shape, np.int64)
            continue
        made[name] = strided(
            rng.uniform(-2, 2, shape).astype(numpy_dtype(node.dtype)), draw(st.integers(0, 3))
        )
    return made


def strided(array, how):
    """The same elements, otherwise in memory: as it is, transposed, every second one, backwards."""
    if how == 1:
        return np.asfortranarray(array)
    if how == 2 and array.ndim:
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    if how == 3 and array.ndim:
        return np.ascontiguousarray(array[..., ::-1])[..., ::-1]
    return array


@st.composite
def partitions(draw, graph):
    """Runs of the topological order; one that cannot be a kernel falls apart into its operators."""
    groups, current = [], []
    for index in [i for i in graph.operators if i in graph.live()]:
        if current and draw(st.integers(0, 4)) == 0:
            groups.append(current)
            current = []
        current.append(index)
    groups += [current] if current else []
    made = []
    for group in groups:
        made += [tuple(group)] if legal(graph, group) else [(i,) for i in group]
    return made


def legal(graph, group):
    try:
        plan(graph, group)
    except InputError:
        return False
    return True


def bounds(graph, names, inputs):
    """Value of each node, and how far another order of the same sums may be from it (0: the same to the last bit)."""
    shapes = graph.bind(names)
    values, errors = {}, {}
    moved = any(not a.flags.c_contiguous for a in inputs.values())
    moved = moved or any(n.op in ("transpose", "broadcast") for n in graph.nodes)
    with np.errstate(all="ignore"):
        for node in (graph.nodes[i] for i in sorted(graph.live())):
            xs, es = [values[i] for i in node.inputs], [errors[i] for i in node.inputs]
            dtype = numpy_dtype(node.dtype)
            if node.op in ("input", "constant"):
                values[node.index] = inputs[node.name] if node.op == "input" else node.attrs["value"]
                errors[node.index] = np.zeros(shapes[node.index])
                continue
            made, error = step(node, xs, es, dtype, shapes[node.index], moved)
            values[node.index], errors[node.index] = np.asarray(made).astype(dtype), np.asarray(error, float)
    return values, errors


def step(node, xs, es, dtype, shape, moved):
    match node.kind:
        case "element" if node.op == "cast":
            made = xs[0].astype(dtype)
            return made, rounded(es[0], made, dtype)
        case "element":
            known = []
            for ufunc, names in OPS[node.op].calls:
                pick = lambda n: known[n] if isinstance(n, int) else ("xy".index(n),)  # noqa: E731
                pairs = [
                    (scalar(n, node.dtype), np.zeros(())) if isinstance(n, float) else pick(n) for n in names
                ]
                pairs = [(xs[p[0]], es[p[0]]) if len(p) == 1 else p for p in pairs]
                made = UFUNCS[ufunc](*(p[0] for p in pairs))
                error = spread(ufunc, made, pairs)
                if ufunc == "power" or (moved and (ufunc, dtype.str[1:]) in STRIDES):
                    error = error + finfo(dtype).tiny
                known.append((made, rounded(error, made, dtype)))
            return known[-1]
        case "broadcast":
            return np.broadcast_to(xs[0], shape), np.broadcast_to(es[0], shape)
        case "transpose":
            return xs[0].transpose(node.attrs["axes"]), es[0].transpose(node.attrs["axes"])
        case "gather":
            return [np.take(a, xs[1], axis=node.attrs["axis"]) for a in (xs[0], es[0])]
        case "reduce":
            return reduction(node, xs[0], es[0], dtype)
        case _:
            a, b = (x.astype(float) for x in xs)
            made, size = a @ b, np.abs(a) @ np.abs(b)
            spoilt = es[0] @ np.abs(b) + np.abs(a) @ es[1] + es[0] @ es[1]
            return made, rounded(2 * a.shape[-1] * wide_eps(dtype) * size + spoilt, made, dtype)


def reduction(node, x, e, dtype):
    axes, keep = node.attrs["axes"], node.attrs["keepdims"]
    wide = x.astype(float)
    if node.op in ("max", "min"):
        nothing = -np.inf if node.op == "max" else np.inf
        made = getattr(np, node.op)(wide, axis=axes, keepdims=keep, initial=nothing)
        return made, np.max(e, axis=axes, keepdims=keep, initial=0.0)
    count = prod(x.shape[i] for i in axes)
    made, size = wide.sum(axis=axes, keepdims=keep), np.abs(wide).sum(axis=axes, keepdims=keep)
    error = e.sum(axis=axes, keepdims=keep) + 2 * count * wide_eps(dtype) * size
    if node.op == "mean":
        made, error = made / count, error / count
    return made, rounded(error, made, dtype)


def spread(ufunc, made, pairs):
    """How far apart two results may be whose operands are as far apart as is said."""
    (a, ea), (b, eb) = ((np.asarray(v, float), e) for v, e in (*pairs, pairs[-1])[:2])
    out = np.asarray(made, float)
    match ufunc:
        case "add" | "subtract":
            return ea + eb
        case "multiply":
            return np.abs(a) * eb + np.abs(b) * ea + ea * eb
        case "divide":
            return np.where(eb < np.abs(b), (ea + np.abs(out) * eb) / (np.abs(b) - eb), np.inf)
        case "square":
            return 2 * np.abs(a) * ea + ea * ea
        case "reciprocal":
            return np.where(ea < np.abs(a), np.abs(out) * ea / (np.abs(a) - ea), np.inf)
        case "exp":
            return out * np.expm1(ea)
        case "log" | "sqrt":
            slope = 1 / (a - ea) if ufunc == "log" else 1 / (2 * np.sqrt(a - ea))
            return np.where(ea < a, ea * slope, np.inf)
        case "maximum" | "minimum":
            return np.maximum(ea, eb)
        case "power":
            return np.where((ea == 0) & (eb == 0), 0.0, np.inf)
        case _:  # negative, absolute, tanh, sin, cos: none is steeper than 1
            return ea + 0.0


def rounded(error, made, dtype):
    """With the rounding of a result whose operands were not the same to the last bit: a few ulp."""
    limits = finfo(dtype)
    error = np.where(np.isnan(error), np.inf, error)
    return np.where(error == 0, 0.0, error + 8 * limits.eps * np.abs(np.asarray(made, float)) + limits.tiny)


def wide_eps(dtype):
    return float(max(finfo(dtype).eps, 2**-52)) if dtype.itemsize > 2 else 2**-23


def finfo(dtype):
    import ml_dtypes

    found = ml_dtypes.finfo(dtype)
    return type("Limits", (), {"eps": float(found.eps), "tiny": 2 * float(found.tiny)})
