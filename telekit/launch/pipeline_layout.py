"""A job as Megatron-LM's ``--pipeline-model-parallel-layout``, and chunks by the older option beside it.

The grammar is :mod:`telekit.layout.pipeline_string`'s, as a job may be written with such a string too.
"""

from __future__ import annotations

from telekit.errors import bad
from telekit.job import Job
from telekit.launch.parts import mtp_modules, parts
from telekit.layout.pipeline_string import LayoutPart as LayoutPart
from telekit.layout.pipeline_string import read_layout as read_layout
from telekit.layout.pipeline_string import write_layout
from telekit.layout.repairs import nearest_divisor
from telekit.layout.stages import even_split
from telekit.layout.stages import stages_of as stages_of


def layout_string(job: Job) -> str:
    """Write where the layers of a job stand.

    Raises
    ------
    InputError
        Every rule the layout breaks.
    """
    return write_layout([part.layers for part in parts(job)], mtp_modules(job))


def chunks_of(num_layers: int, pp: int, layers_per_chunk: int) -> int:
    """Chunks a stage (``vpp``) that ``--num-layers-per-virtual-pipeline-stage`` makes of a model.

    Raises
    ------
    InputError
        Where the layers do not divide: older releases of Megatron-LM drop the rest without a word (issues 468, 1304).
    """
    field = "num-layers-per-virtual-pipeline-stage"
    if pp < 1 or layers_per_chunk < 1:
        raise bad(field, layers_per_chunk, f"must be at least 1, as must pp ({pp})", "1 works")
    chunks, lost = divmod(num_layers, pp * layers_per_chunk)
    if lost == 0:
        return chunks
    rule = (
        f"{num_layers} layers are not whole rounds of pp {pp} * {layers_per_chunk} = {pp * layers_per_chunk}: "
        f"{num_layers - lost} would be trained and {lost} lost"
    )
    if num_layers < pp:
        hint = f"pp {num_layers} at most"
    elif num_layers % pp == 0:
        hint = f"{nearest_divisor(num_layers // pp, layers_per_chunk)} works"
    else:
        uneven = write_layout(even_split(num_layers, pp * max(chunks, 1)), 0)
        hint = f"--pipeline-model-parallel-layout {uneven!r} works"
    raise bad(field, layers_per_chunk, rule, hint)
