"""The command on packed documents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from telekit.cli.output import JsonFlag, paragraphs, show
from telekit.errors import InputError, Problem, bad


def pack(
    lengths: Annotated[
        str,
        typer.Argument(help="File of document lengths (npy, parquet, csv, txt, jsonl), or a distribution."),
    ],
    seq_len: Annotated[int, typer.Option(help="Tokens of a sample.")],
    dp: Annotated[int, typer.Option(help="Data-parallel ranks.")],
    micro_batches: Annotated[int, typer.Option(help="Micro-batches of a rank.")],
    cp: Annotated[int | None, typer.Option(help="Context-parallel ranks; else the job's, or 1.")] = None,
    job: Annotated[
        Path | None, typer.Option(help="Job that says what things cost; else causal pairs are counted.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Who takes which sample (a wrong one lists all); alike where the job's ranks meet in every layer, "
            "else balanced."
        ),
    ] = None,
    packer: Annotated[
        str, typer.Option("--pack", help="How documents become samples; a wrong one lists all.")
    ] = "concatenate",
    cut: Annotated[
        bool, typer.Option("--cut", help="Cut documents longer than a sample, and do not refuse them.")
    ] = False,
    field: Annotated[str | None, typer.Option(help="Column or key of a file's lengths.")] = None,
    samples: Annotated[
        int | None, typer.Option(help="Samples to draw from a distribution; else one global batch.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="What a distribution is drawn with; else 0.", min=0)
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Pack documents into samples and balance one global batch over ranks."""
    from telekit.packing.batch import balance_batch, checked_counts
    from telekit.training.documents import load_lengths

    checked_counts(seq_len=seq_len, dp=dp, micro_batches=micro_batches, cp=1 if cp is None else cp)
    setting = None
    if job is not None:
        setting = _setting(job, seq_len, dp, micro_batches, cp)
    from_file = _is_file(lengths)
    _check_options(from_file, field=field, samples=samples, seed=seed)
    size = dp * micro_batches * (setting.micro_batch if setting else 1)
    if from_file:
        documents = load_lengths(lengths, field)
    else:
        documents = _drawn(lengths, seq_len, size if samples is None else samples, seed or 0)
        cut = True  # a distribution knows nothing of samples
    found = balance_batch(documents, seq_len, dp, micro_batches, cp or 1, policy, packer, cut, setting)
    show(as_json, found.to_dict(), lambda: paragraphs(found.text().splitlines()))


def _setting(path: Path, seq_len: int, dp: int, micro_batches: int, cp: int | None) -> Any:
    """Read a job, its sequence, batch, data and context parallelism as the options say, its devices as they follow."""
    from telekit.cost.packing_gain import resized, setting_of
    from telekit.job import load_job

    return setting_of(resized(load_job(path), seq_len, dp, micro_batches, cp))


def _is_file(name: str) -> bool:
    """Tell a file's name from a distribution's."""
    from telekit.training.documents import DISTRIBUTIONS

    if name in DISTRIBUTIONS:
        return False
    try:
        there = bool(Path(name).suffix) or Path(name).exists()
    except OSError:  # longer than a file's name can be
        there = False
    if not there:
        raise bad("lengths", name, f"neither a file nor one of {', '.join(DISTRIBUTIONS)}")
    return True


def _check_options(from_file: bool, field: str | None, samples: int | None, seed: int | None) -> None:
    """Refuse options that would do nothing."""
    drawing = {"samples": samples, "seed": seed}
    useless = drawing if from_file else {"field": field}
    rule = (
        "is for a distribution; a file is read whole"
        if from_file
        else "is for a file; this is a distribution"
    )
    problems = [
        Problem(name, value, rule, f"leave --{name} out")
        for name, value in useless.items()
        if value is not None
    ]
    if problems:
        raise InputError(problems)


def _drawn(name: str, seq_len: int, samples: int, seed: int) -> Any:
    """Draw documents that fill so many samples."""
    from telekit.training.documents import MAX_DOCUMENTS, distribution

    if samples < 1 or seq_len < 1:
        raise bad("samples", samples, "must be 1 or more samples of 1 or more tokens", "--samples 64 works")
    source = distribution(name)
    count = int(samples * seq_len / source.mean * 1.05) + 64
    while True:
        if count > MAX_DOCUMENTS:
            raise bad("samples", samples, f"take more than {MAX_DOCUMENTS:,} documents", "fewer samples")
        found = source.sample(count, seed)
        if found.sum() >= samples * seq_len:
            return found[: int(found.cumsum().searchsorted(samples * seq_len)) + 1]
        count *= 2
