"""Which tensor of target belongs to which of golden: by name, by order, fuzzily; over frameworks and recomputation."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from telekit.accuracy.compared import BACKWARD, FORWARD, OPTIMIZER, PARAMETERS_GRAD
from telekit.accuracy.comparing.mapping import Mapping, hints
from telekit.accuracy.readers.named import NamedTensor
from telekit.errors import bad

MATCHES = ("name", "order", "fuzzy")
Key = tuple[str, str, int, bool, str]
Pair = tuple[NamedTensor | None, NamedTensor | None, tuple[str, ...]]

_WRAPPERS = frozenset(["module", "network", "network_with_loss", "_backbone", "_orig_mod"])
# One operator under the names that PyTorch, torch_npu and MindSpore give it; the left one is telekit's own.
_OPERATORS = {
    "or": ("__or__", "logical_or"), "and": ("__and__", "logical_and"), "not": ("__invert__", "logical_not"),
    "add": ("__add__", "__radd__"), "sub": ("__sub__",), "mul": ("__mul__", "__rmul__"),
    "div": ("__truediv__", "true_divide"), "matmul": ("__matmul__", "BatchMatMul", "MatMul"),
    "rms_norm": ("npu_rms_norm", "RmsNorm"), "swiglu": ("npu_swiglu", "Swiglu"),
    "rotary": ("npu_rotary_mul", "rotary_position_embedding"),
    "attention": ("npu_fusion_attention", "flash_attention_score", "FlashAttentionScore"),
}  # fmt: skip
_SHORT = {name: ours for ours, names in _OPERATORS.items() for name in names}
_FAMILIES = frozenset(
    ["Functional", "Tensor", "Torch", "Mint", "MintFunctional", "NPU", "Primitive", "Aten", "VF"]
)
_ARGUMENTS = {
    "atten_mask": "attn_mask", "pre_tockens": "pre_tokens", "next_tockens": "next_tokens", "scale": "scalar_value",
    "dim": "axis", "epsilon": "eps",
}  # fmt: skip


@dataclass(frozen=True)
class Call:
    """An operator's or module's name in a dump, taken apart.

    Attributes
    ----------
    base : str
        Without call number and phase.
    phase : str
        ``forward``, ``backward`` or empty.
    number : int
        Which call, as written; 0 where nothing says it.
    """

    base: str
    phase: str
    number: int


@dataclass(frozen=True)
class Pairing:
    """Every tensor of both sides once, in pairs as far as they go.

    Attributes
    ----------
    pairs : tuple of (NamedTensor or None, NamedTensor or None, tuple of str)
        Target, golden and notes; golden's order, target's own ones after their predecessor.
    hints : tuple of str
        What a mapping file could say of those left over.
    """

    pairs: tuple[Pair, ...]
    hints: tuple[str, ...]


def read_call(api: str) -> Call:
    """Take apart ``Functional.conv2d.0.forward``, ``Module.fc.Linear.backward.2``, ``Module.fc.parameters_grad``.

    Examples
    --------
    >>> read_call("Functional.conv2d.3.forward")
    Call(base='Functional.conv2d', phase='forward', number=3)
    """
    words = api.split(".")
    for at, other in ((-1, -2), (-2, -1)):
        if len(words) >= 3 and words[at] in (FORWARD, BACKWARD) and words[other].isdecimal():
            return Call(".".join(words[:-2]), words[at], int(words[other][:15]))
    if PARAMETERS_GRAD in words[-2:]:
        return Call(".".join(words[: len(words) - 1 - words[::-1].index(PARAMETERS_GRAD)]), BACKWARD, 0)
    if words[-1] in (FORWARD, BACKWARD):
        return Call(".".join(words[:-1]), words[-1], 0)
    return Call(api, "", 0)


_GRADIENT = re.compile(r"(^|[._])(main_)?grads?($|[._])")
_STATE = re.compile(r"(^|\.)(exp_avg|exp_avg_sq|adam_m|adam_v|momentum|optimizer)($|\.)")


def phase_of(tensor: NamedTensor) -> str:
    """Return forward, backward, optimizer, or nothing where neither the operator nor the name says it."""
    if tensor.part == PARAMETERS_GRAD:
        return BACKWARD
    if tensor.api:
        return read_call(tensor.api).phase
    if _STATE.search(tensor.name):
        return OPTIMIZER
    return BACKWARD if is_gradient(tensor) else ""


def is_gradient(tensor: NamedTensor) -> bool:
    """Whether a tensor is a parameter's gradient, by its part or its name."""
    return tensor.part == PARAMETERS_GRAD or bool(_GRADIENT.search(tensor.name))


def canonical(base: str) -> str:
    """Return one name for what PyTorch, torch_npu and MindSpore call differently.

    A module loses its head (``Cell``, ``Module``), wrappers and its class; an operator its family. Call numbers and
    phases are not part of it.
    """
    words = base.split(".")
    if words[0] in ("Cell", "Module"):
        inner = words[1:-1] if len(words) > 2 else words[1:]
        while inner and inner[0] in _WRAPPERS:
            inner = inner[1:]
        return ".".join(["Module", *inner])
    if words[0] in _FAMILIES and len(words) > 1:
        return f"Operator.{_SHORT.get(words[-1], words[-1].strip('_').lower())}"
    while len(words) > 1 and words[0] in _WRAPPERS:
        words = words[1:]
    return ".".join(words)


def pair_tensors(
    target: Sequence[NamedTensor],
    golden: Sequence[NamedTensor],
    *,
    match: str = "name",
    mapping: Mapping | None = None,
) -> Pairing:
    """Pair the tensors of one step and rank.

    Names come first. A recomputed forward is paired with a recomputed one only, and does not shift the call numbers
    of others. What is left over is tried under names common to all frameworks, with ``fuzzy`` also without call
    numbers and by the longest common end of the name among equal shapes.

    Parameters
    ----------
    target, golden : sequence of NamedTensor
        In graph order.
    match : {"name", "order", "fuzzy"}
        ``order`` pairs by place alone.
    mapping : Mapping, optional
        Target's words for golden's; fused tensors are joined before (:meth:`Mapping.joined`).

    Raises
    ------
    InputError
        No such way to match.
    """
    if match not in MATCHES:
        raise bad("match", match, f"must be one of {', '.join(MATCHES)}")
    mapping = mapping or Mapping()
    if match == "order":
        found: dict[int, tuple[int, str]] = {
            i: (i, "paired by order") for i in range(min(len(target), len(golden)))
        }
    else:
        found = _by_keys(target, golden, mapping, match == "fuzzy")
    pairs = _in_order(target, golden, found)
    left = ([t.name for t, g, _ in pairs if t and not g], [g.name for t, g, _ in pairs if g and not t])
    return Pairing(pairs, hints(*left))


def _by_keys(
    target: Sequence[NamedTensor], golden: Sequence[NamedTensor], mapping: Mapping, fuzzy: bool
) -> dict[int, tuple[int, str]]:
    """Return golden's place, and how it was found, for each place of target; surest rules first."""
    found: dict[int, tuple[int, str]] = {}
    taken: set[int] = set()
    exact = {t.name: i for i, t in enumerate(golden)}
    for i, tensor in enumerate(target):
        wanted = mapping.exact.get(tensor.name)
        if wanted in exact and exact[wanted] not in taken:
            found[i] = (exact[wanted], "paired by the mapping")
            taken.add(exact[wanted])
    ways: list[tuple[str, Callable[[str], str], bool]] = [("", str, False)]
    ways.append(("paired by a name common to the frameworks", canonical, False))
    if fuzzy:
        ways += [
            ("paired without its call number", str, True),
            ("paired without its call number", canonical, True),
        ]
    for note, name, by_place in ways:
        recomputed = _recomputed(target, mapping.translate, name) | _recomputed(golden, str, name)
        theirs: dict[Key, list[int]] = defaultdict(list)
        for j, key in enumerate(_keys(golden, str, name, recomputed, by_place)):
            if j not in taken:
                theirs[key].append(j)
        for i, key in enumerate(_keys(target, mapping.translate, name, recomputed, by_place)):
            if i not in found and theirs[key]:
                j = theirs[key].pop(0)
                said = note or ("" if golden[j].name == target[i].name else "paired under another name")
                found[i] = (j, said)
                taken.add(j)
    if fuzzy:
        _by_ending(target, golden, found, taken)
    return found


def _recomputed(
    tensors: Iterable[NamedTensor], translate: Callable[[str], str], name: Callable[[str], str]
) -> set[str]:
    return {name(translate(read_call(t.api).base)) for t in tensors if t.is_recompute}


def _keys(
    tensors: Sequence[NamedTensor],
    translate: Callable[[str], str],
    name: Callable[[str], str],
    recomputed: set[str],
    by_place: bool,
) -> list[Key]:
    """Return what identifies each tensor: base, phase, which call, whether recomputed, and the place in the call.

    Where calls were recomputed, calls are counted as they come: the numbers written count the recomputed ones too.
    """
    keys: list[Key] = []
    seen: dict[tuple[str, str, bool], dict[str, int]] = defaultdict(dict)
    for tensor in tensors:
        if not tensor.api:
            keys.append((name(translate(tensor.name)), "", 0, False, ""))
            continue
        call = read_call(tensor.api)
        base = name(translate(call.base))
        calls = seen[base, call.phase, tensor.is_recompute]
        nth = calls.setdefault(tensor.api, len(calls))
        number = nth if by_place or base in recomputed else call.number
        keys.append((base, call.phase, number, tensor.is_recompute, _inner(tensor, name is canonical)))
    return keys


def _inner(tensor: NamedTensor, common: bool) -> str:
    """Return part and argument (``input.0``); the argument under a common name if wanted."""
    inner = tensor.name.removeprefix(f"{tensor.api}.") if tensor.name != tensor.api else tensor.part
    if not common:
        return inner
    return ".".join(_ARGUMENTS.get(word, word) for word in inner.split("."))


def _by_ending(
    target: Sequence[NamedTensor],
    golden: Sequence[NamedTensor],
    found: dict[int, tuple[int, str]],
    taken: set[int],
) -> None:
    """Pair by the longest common end of the names, shapes equal, where exactly one other fits best."""
    left = [j for j in range(len(golden)) if j not in taken]
    for i in (i for i in range(len(target)) if i not in found):
        mine = target[i]
        scores = sorted(
            ((_common_end(mine.name, golden[j].name), j) for j in left if golden[j].shape == mine.shape),
            reverse=True,
        )
        if scores and scores[0][0] and (len(scores) == 1 or scores[0][0] > scores[1][0]):
            j = scores[0][1]
            found[i] = (j, "paired by the end of its name and its shape")
            left.remove(j)


def _common_end(a: str, b: str) -> int:
    count = 0
    for x, y in zip(reversed(a.split(".")), reversed(b.split(".")), strict=False):
        if x != y:
            break
        count += 1
    return count


def _in_order(
    target: Sequence[NamedTensor], golden: Sequence[NamedTensor], found: dict[int, tuple[int, str]]
) -> tuple[Pair, ...]:
    """Return pairs in golden's order; a tensor that only target has follows its predecessor in target."""
    after: dict[int, list[NamedTensor]] = defaultdict(list)
    mine: dict[int, tuple[int, str]] = {}
    last = -1
    for i, tensor in enumerate(target):
        if i in found:
            last = found[i][0]
            mine[last] = (i, found[i][1])
        else:
            after[last].append(tensor)
    pairs: list[Pair] = [(t, None, ("golden has no such tensor",)) for t in after[-1]]
    for j, tensor in enumerate(golden):
        if j in mine:
            i, note = mine[j]
            pairs.append((target[i], tensor, (note,) if note else ()))
        else:
            pairs.append((None, tensor, ("target has no such tensor",)))
        pairs += [(t, None, ("golden has no such tensor",)) for t in after[j]]
    return tuple(pairs)
