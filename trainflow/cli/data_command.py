"""``trainflow data``: prepare what jobs train on.

Process: one, on its own.
"""

from typing import Annotated

import typer

data_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Prepare training data.")


@data_app.callback()
def data() -> None:
    """Prepare training data."""


@data_app.command()
def pack(
    source: Annotated[
        str, typer.Argument(help="A directory, file or glob; `stdlib` is Python's own library.")
    ],
    out: Annotated[str, typer.Option(help="Directory to write: a path or an fsspec URL.")],
    vocab_size: Annotated[int, typer.Option(help="Tokens in the vocabulary, at most.")] = 4096,
    sequence_length: Annotated[int, typer.Option(help="Tokens a sample.")] = 128,
    max_bytes: Annotated[
        int | None, typer.Option(help="Bytes of text to pack; all of it, but 8 MB of stdlib.")
    ] = None,
    held_out_every: Annotated[
        int, typer.Option(help="One sequence of this many is held out for validation.")
    ] = 100,
) -> None:
    """Turn text into a token corpus: train a tokenizer, encode, cut into sequences."""
    from trainflow.data.pack import PackOptions, pack_corpus  # noqa: PLC0415  loads pyarrow

    options = PackOptions(
        vocab_size=vocab_size,
        sequence_length=sequence_length,
        held_out_every=held_out_every,
        max_bytes=max_bytes,
    )
    summary = pack_corpus(source, out, options=options)
    typer.echo(
        f"packed {summary.num_documents} documents, {summary.num_source_bytes} bytes, "
        f"{summary.num_skipped_documents} skipped (not UTF-8 text)\n"
        f"{summary.num_train_samples} samples to train on, {summary.num_validation_samples} held "
        f"out, of {summary.sequence_length} tokens; {summary.vocab_size} tokens in the vocabulary\n"
        f"fingerprint {summary.fingerprint}, in {out}"
    )
