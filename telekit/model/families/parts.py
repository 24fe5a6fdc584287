"""Parts that the families' adapters share: reading a trunk, attention and feed-forward blocks from a config.

An adapter is one short function from :class:`~telekit.model.fields.Fields` to :class:`Parts`: plain values,
each checked, not yet built. Absent fields follow the family's configuration class in Hugging Face transformers,
where that class derives them from others or turns something off; sizes that it would guess are required here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from telekit.model.config import LayerKind, ModelConfig
from telekit.model.fields import LARGEST, MOST_LAYERS, Fields

ACTIVATIONS = (
    "silu", "swish", "swiglu", "fusedswiglu", "gelu", "gelu_new", "gelu_fast", "gelu_python",
    "gelu_pytorch_tanh", "quick_gelu", "relu", "relu2", "tanh",
)  # fmt: skip

Window = int | None
Raw = dict[str, Any]
"""Fields of one part; ``kind`` names its class where that is not grouped-query attention or a dense block."""

NOTHING: Raw = {"kind": "none"}
"""A block's part that is not there."""


@dataclass(frozen=True)
class Trunk:
    """What every decoder has: blocks, width, vocabulary, and whether the head is the embedding."""

    layers: int
    hidden_size: int
    vocab_size: int
    tied_embeddings: bool


@dataclass(frozen=True)
class Block:
    """One layer as an adapter read it."""

    attention: Raw
    mlp: Raw
    norms: int = 2
    output_scale: bool = False

    def build(self, name: str) -> dict[str, Any]:
        """Fields of its :class:`~telekit.model.config.LayerKind`."""
        attention, mlp = {"kind": "gqa", **self.attention}, {"kind": "dense", **self.mlp}
        more = {"norms": self.norms, "output_scale": self.output_scale}
        return {"name": name, "attention": attention, "mlp": mlp, **more}

    @property
    def name(self) -> str:
        """Words for it: its feed-forward part, and its attention where that is not the common one."""
        mixer, mlp = self.attention.get("kind", "gqa"), self.mlp.get("kind", "dense")
        extra = mixer if mixer not in ("gqa", "mla", "none") else ""
        if mixer == "compressed":
            extra = (
                f"compressed-{self.attention['compress_ratio']}"
                if self.attention["compress_ratio"]
                else "window"
            )
        elif self.attention.get("window"):
            extra = "window"
        elif self.attention.get("chunk"):
            extra = "chunk"
        if mlp == "none":
            return extra or ("attention" if mixer != "none" else "nothing")
        return f"{mlp}-{extra}" if extra else mlp


@dataclass(frozen=True)
class Parts:
    """What an adapter read: the trunk, one block a layer, further fields of the model by their names.

    ``mtp`` is the block of a multi-token-prediction module, where it is not the last layer's.
    """

    trunk: Trunk
    blocks: Sequence[Block]
    extra: Raw = field(default_factory=dict)
    mtp: Block | None = None

    def build(self, name: str, source: str) -> ModelConfig:
        """Make the model: one kind for each distinct block, in the order they appear."""
        found: dict[str, int] = {}
        places: dict[tuple[int, ...], int] = {}
        kinds: list[Block] = []
        pattern = []
        for block in self.blocks:
            same = (id(block.attention), id(block.mlp), block.norms, block.output_scale)
            if same not in places:  # adapters share what is alike: few blocks need a closer look
                places[same] = found.setdefault(repr(block), len(kinds))
                kinds += [block] * (places[same] == len(kinds))
            pattern.append(places[same])
        return ModelConfig(
            name=name,
            source=source,
            hidden_size=self.trunk.hidden_size,
            vocab_size=self.trunk.vocab_size,
            kinds=tuple(
                LayerKind.model_validate(b.build(n)) for b, n in zip(kinds, _names(kinds), strict=True)
            ),
            pattern=tuple(pattern),
            tied_embeddings=self.trunk.tied_embeddings,
            mtp_kind=LayerKind.model_validate(self.mtp.build("mtp")) if self.mtp else None,
            **self.extra,
        )


def _names(kinds: Sequence[Block]) -> list[str]:
    """Name each block; alike names are numbered from the second on."""
    used: dict[str, int] = {}
    names = []
    for block in kinds:
        used[block.name] = used.get(block.name, 0) + 1
        names.append(block.name if used[block.name] == 1 else f"{block.name}-{used[block.name]}")
    return names


@dataclass(frozen=True)
class Family:
    """One family: its adapter, and the classes that its ``architectures`` may name."""

    read: Callable[[Fields], Parts]
    architectures: tuple[str, ...]


# --- parts of a config --------------------------------------------------------------------------------------


def trunk(f: Fields, *, layers: str = "num_hidden_layers", hidden: str = "hidden_size",
          tied: bool | None = False) -> Trunk:  # fmt: skip
    """Blocks, width, vocabulary; ``tied`` is the family's default (None: the file must say)."""
    return Trunk(
        f.count(layers, most=MOST_LAYERS),
        f.count(hidden),
        f.count("vocab_size"),
        f.flag("tie_word_embeddings", tied),
    )


def grouped_query(f: Fields, t: Trunk, *, heads: str = "num_attention_heads",
                  kv_heads: str = "num_key_value_heads", hidden: str = "hidden_size", head_dim: str = "head_dim",
                  kv_required: bool = False, kv_number: bool = False, dim_required: bool = False,
                  **more: Any) -> Raw:  # fmt: skip
    """Query heads and key/value heads; null key/value heads are as many as query heads, but for ``kv_number``.

    An absent ``head_dim`` is ``hidden_size / num_attention_heads``, unless the family's class defaults to something
    else (``dim_required``): there null is no answer either.
    """
    count = f.count(heads)
    groups = f.count(kv_heads) if kv_number else f.optional(kv_heads, key_required=kv_required)
    if groups is None:
        groups = f.fill(kv_heads, count)
    f.divides(kv_heads, groups, heads, count)
    width = f.count(head_dim) if dim_required else f.optional(head_dim)
    if width is None:
        f.divides(heads, count, hidden, t.hidden_size, f" where {head_dim} is not given")
        width = f.fill(head_dim, max(t.hidden_size // count, 1))
    return {"heads": count, "kv_heads": groups, "head_dim": width, **more}


def attention_bias(f: Fields, default: bool = False, name: str = "attention_bias") -> Raw:
    """One flag for the biases of all four projections."""
    bias = f.flag(name, default)
    return {"qkv_bias": bias, "output_bias": bias}


def feed_forward(
    f: Fields, width: str = "intermediate_size", *, activation: str = "hidden_act", **more: Any
) -> Raw:
    """Gated dense block."""
    f.choice(activation, ACTIVATIONS, "silu")
    return {"ffn_hidden_size": f.count(width), **more}


def experts(f: Fields, count: str, width: str, *, top_k: str = "num_experts_per_tok", **more: Any) -> Raw:
    """Routed experts."""
    number, chosen = f.count(count), f.count(top_k)
    if f.clean(count, top_k) and chosen > number:
        f.refuse(top_k, f"must not exceed {count}={number}", f"for example {number}")
    return {
        "kind": "moe",
        "num_experts": number,
        "top_k": chosen,
        "expert_ffn_hidden_size": f.count(width),
        **more,
    }


def expert_groups(f: Fields, moe: Raw, count: str, top_k: str) -> Raw:
    """Blocks of the experts, and how many of them a token may visit, as DeepSeek's routers have them."""
    groups = f.count("n_group", 1)
    limit = f.count("topk_group", groups)
    if groups == 1 or not f.clean("n_group", "topk_group", count, top_k):
        return {}
    number, chosen = moe["num_experts"], moe["top_k"]
    f.divides("n_group", groups, count, number)
    least = -(-chosen * groups // number)
    if not least <= limit <= groups:
        rule = f"must be from {least}, which hold {top_k}={chosen} experts, to n_group={groups}"
        f.refuse("topk_group", rule, f"for example {min(max(least, groups // 2), groups)}")
    return {"groups": groups, "group_limit": limit}


def layer_types(f: Fields, t: Trunk, known: Iterable[str], default: Callable[[int], str],
                name: str = "layer_types") -> list[str]:  # fmt: skip
    """Kind of each layer from ``layer_types``; where that is absent, ``default`` says it."""
    words = set(known)
    kinds = f.entries(name, str, t.layers if f.clean("num_hidden_layers") else None)
    unknown = sorted(set(kinds or ()) - words)
    if unknown:
        rule = f"not modelled yet: layers of this type; known: {', '.join(sorted(words))}"
        f.refuse(name, rule, value=", ".join(unknown))
    if unknown or kinds is None or len(kinds) != t.layers:
        return [default(i) for i in range(t.layers)]
    return kinds


def layer_windows(f: Fields, t: Trunk, sliding: Callable[[int], bool] | None = None) -> tuple[Window, ...]:
    """Window of each layer from ``layer_types``; where that is absent, ``sliding`` says which have one."""

    def default(i: int) -> str:
        return "sliding_attention" if sliding and sliding(i) else "full_attention"

    kinds = layer_types(f, t, ("full_attention", "sliding_attention"), default)
    has_window = [kind == "sliding_attention" for kind in kinds]
    window = f.optional("sliding_window") if sliding or any(has_window) else None
    if any(has_window) and window is None:
        window = f.count("sliding_window")  # says that it is missing
    return tuple(window if has else None for has in has_window)


def per_layer_config(
    f: Fields, t: Trunk, kinds: Sequence[str], kind: str, names: Iterable[str]
) -> dict[str, int]:
    """Return what all layers of one ``kind`` have in place of the model's own sizes, of these ``names``.

    Transformers says so since 5.24: an object from the number of a layer to what differs there. Empty where it is
    absent.
    """
    field, sizes = "per_layer_config", set(names)
    f.skip(field)
    if field not in f.config:
        return {}
    value = f.config[field]  # null is no answer: the classes then make all layers alike
    layers = [i for i, word in enumerate(kinds[: t.layers]) if word == kind]
    if not isinstance(value, Mapping) or not all(isinstance(entry, Mapping) for entry in value.values()):
        f.refuse(field, "must be an object from layers to objects of their fields")
    elif sorted(str(key).zfill(9) for key in value) != [str(i).zfill(9) for i in layers]:
        f.refuse(field, f"must name the layers of {kind}, and no other", f"layers {layers}")
    elif len({repr(sorted(entry.items())) for entry in value.values()}) > 1:
        f.refuse(field, f"not modelled yet: layers of {kind} that differ")
    elif value:
        found = dict(next(iter(value.values())))
        if set(found) <= sizes and all(type(n) is int and 1 <= n <= LARGEST for n in found.values()):
            return found
        f.refuse(field, f"not modelled yet: other fields there than whole {', '.join(sorted(sizes))}")
    return {}


def fixed(f: Fields, name: str, value: int, rule: str) -> int:
    """Read a number of which a family's code knows one value only."""
    if f.count(name, value, least=0) != value:
        f.refuse(name, rule, f"only {value} is modelled")
    return value


def sparse_layers(f: Fields, t: Trunk, first: str, freq: str, default: int | None = None,
                  ahead: int = 0) -> frozenset[int]:  # fmt: skip
    """Layers with experts, and ``ahead`` MTP modules behind them: every ``freq``-th from layer ``first`` on."""
    start, every = f.count(first, default, least=0), f.count(freq, 1)
    if f.clean(first, "num_hidden_layers") and start > t.layers:
        f.refuse(first, f"must not exceed num_hidden_layers={t.layers}", "for example 1")
    return frozenset(i for i in range(t.layers + ahead) if i >= start and i % every == 0)


def sparse_types(f: Fields, t: Trunk, first: str, freq: str, default: int, ahead: int = 0) -> frozenset[int]:
    """Layers with experts as above, or those that ``mlp_layer_types`` calls sparse, and then all MTP modules."""
    numbered = sparse_layers(f, t, first, freq, default, ahead)
    if not f.has("mlp_layer_types"):
        return numbered
    f.expect(freq, 1, "must be 1 beside mlp_layer_types")
    kinds = layer_types(f, t, ("dense", "sparse"), lambda _: "dense", "mlp_layer_types")
    return frozenset(i for i in range(t.layers + ahead) if i >= t.layers or kinds[i] == "sparse")


def sparse_from(
    f: Fields, t: Trunk, name: str = "first_k_dense_replace", default: int | None = None
) -> range:
    """Layers with experts: all from the one that the field names."""
    first = f.count(name, default, least=0)
    if f.clean(name, "num_hidden_layers") and first > t.layers:
        f.refuse(name, f"must not exceed num_hidden_layers={t.layers}", "for example 1")
    return range(first, t.layers)


def listed_layers(f: Fields, t: Trunk, name: str) -> list[int] | None:
    """Layers that a list names by their number; None where it is absent."""
    listed = f.entries(name, int)
    if listed and f.clean("num_hidden_layers") and any(not 0 <= i < t.layers for i in listed):
        f.refuse(name, f"its entries must be layers, from 0 to {t.layers - 1}", "for example []")
    return listed


def head_dim_follows(f: Fields, t: Trunk, attention: Raw) -> None:
    """Refuse a width of heads that the family's code does not read: it divides the hidden width by the heads."""
    heads = attention["heads"]
    if f.clean("head_dim", "num_attention_heads") and heads * attention["head_dim"] != t.hidden_size:
        rule = f"must be hidden_size / num_attention_heads ({t.hidden_size} / {heads})"
        f.refuse("head_dim", rule, "leave it out")


def blocks(t: Trunk, attention: Raw, dense: Raw | None = None, moe: Raw | None = None,
           sparse: Iterable[int] = (), windows: Sequence[Window] = (), norms: int = 2) -> list[Block]:  # fmt: skip
    """One block a layer where layers differ in two things only: experts or not, and their window."""
    some = frozenset(sparse)
    found = []
    for i in range(t.layers):
        mixer = attention | {"window": windows[i]} if windows and windows[i] else attention
        found.append(Block(mixer, (moe if i in some else dense) or NOTHING, norms))
    return found
