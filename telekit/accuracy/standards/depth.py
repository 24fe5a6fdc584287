"""A bound on the error of a gradient that grows with the layers it has come through."""

from __future__ import annotations

from telekit.accuracy.measures.pairs import format_of
from telekit.errors import InputError, Problem

LAYERS, GROWTH = 32, 1.03


def depth_bound(
    layer: int,
    dtype: str = "bfloat16",
    *,
    layers: int = LAYERS,
    constant: float = 4.0,
    growth: float = GROWTH,
) -> float:
    """Bound of ``|g' - g| / |g|`` (Frobenius norms) for a layer's gradient: ``k * C**(L + 1 - l) * eps``.

    Parameters
    ----------
    layer : int
        ``l``, 0 (the embedding) to ``layers``: the earlier, the more layers the gradient has come through.
    dtype : str
        Arithmetic's type, as numpy and ml_dtypes name it. The 8-bit types take bfloat16's epsilon, 2**-7, since
        the test this follows uses it for FP8 too.
    layers : int
        ``L``.
    constant : float
        ``k``: 4 in Megatron's test, 5 in BioNeMo's.
    growth : float
        ``C``.

    Raises
    ------
    InputError
        If the layer is outside the model, or a number is not above zero.

    Notes
    -----
    Theorem 5.3 of TTrace's theory as implemented in NVIDIA/Megatron-LM,
    ``tests/functional_tests/python_test_utils/test_optimizer_grads_match.py``.

    Examples
    --------
    >>> round(depth_bound(0), 5)
    0.08289
    """
    problems = []
    if layers < 1:
        problems.append(Problem("layers", layers, "must be at least 1", "32"))
    if not 0 <= layer <= max(layers, 0):
        problems.append(Problem("layer", layer, f"must be from 0 to {layers}", "0"))
    for name, value in (("constant", constant), ("growth", growth)):
        if not value > 0:
            problems.append(Problem(name, value, "must be above 0", "4" if name == "constant" else "1.03"))
    if problems:
        raise InputError(problems)
    form = format_of("bfloat16" if dtype.startswith("float8") else dtype)
    return float(constant * growth ** (layers + 1 - layer) * form.epsilon)


def in_epsilons(relative_error: float, dtype: str = "bfloat16") -> float:
    """Express a relative error in machine epsilons, as TTrace reports it."""
    return relative_error / format_of(dtype).epsilon
