"""The command line: each verb parses, calls one function of the library, and prints what came back.

    index  encode  search  evaluate  compare  info  verify  export  models
    check-data  batches show  train  selfcheck

What is heavy is imported inside a verb, so that help and refusals are there at once. How a verb may end is decided in
one place, `ended`: 0; 2 for a mistake of the user or damaged data, with one sentence on standard error; 130 after
Ctrl-C; 1 for our own bug. Results are printed to standard output, or written by `--json`, never both to one place.
"""

from __future__ import annotations

import io
import json as json_format
import os
import shlex
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, ParamSpec

import typer

from . import __version__, files
from .errors import InputError, InternalError, VicinalError
from .screen import LINE_SECONDS, complain, duration, progress_on_stderr, say, say_beginning, table

DEFAULT_MODEL = "granite-embedding-30m-english"
STDOUT = Path("-")  # as --json takes it

Given = ParamSpec("Given")

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 100},
)


def main() -> None:
    """The program: what concerns the whole process is done here, and `app` does the rest."""
    signal.signal(signal.SIGTERM, _terminate)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a letter is no reason to fail
    if not sys.warnoptions:
        warnings.filterwarnings("ignore")  # libraries talk to programmers
        warnings.filterwarnings("default", module="vicinal")
        warnings.showwarning = lambda message, *_: complain(f"warning: {message}")
    for number, argument in enumerate(sys.argv):
        if any("\ud800" <= character <= "\udfff" for character in argument):
            complain(f"error: argument {number} ({argument}) is no text in UTF-8: rename the file, or correct the text")
            sys.exit(2)
        if not argument:
            complain(f"error: argument {number} is empty: give a path or a text (was a variable not set?)")
            sys.exit(2)
    app(prog_name="vicinal")


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a verb as Ctrl-C does: whatever is half-written is tidied up first."""


def _terminate(signal_number: int, frame: FrameType | None) -> None:
    raise Terminated


@contextmanager
def ended() -> Iterator[None]:
    """Turn every way in which a verb may end into an exit code, and a sentence where it is not 0."""
    try:
        yield
        sys.stdout.flush()
    except typer.Exit:
        raise
    except KeyboardInterrupt as stop:
        complain("interrupted; run the same command again to go on (train: with --resume)")
        raise typer.Exit(143 if isinstance(stop, Terminated) else 130) from None
    except BrokenPipeError:
        _let_go_of_stdout()
        raise typer.Exit(141) from None  # as SIGPIPE ends other programs, `| head` being no mistake of anybody's
    except Exception as error:
        _let_go_of_stdout()
        if sentence := _sentence(error):
            complain(f"error: {sentence}")
            raise typer.Exit(2) from None
        for line in traceback.format_exc().splitlines():
            complain(line)
        complain(f"error: this is a bug of vicinal {__version__}, not yours: please report it with the lines above")
        raise typer.Exit(1) from None


def _sentence(error: Exception) -> str:
    """What a user can do about an error; nothing where it is a bug."""
    if isinstance(error, OSError):
        return files.explain(error)
    if isinstance(error, MemoryError):
        return f"the memory is full ({error}): end other programs, or take a machine that has more"
    return str(error) if isinstance(error, VicinalError) and not isinstance(error, InternalError) else ""


def _let_go_of_stdout() -> None:
    """Where writing failed once, the interpreter's own last flush would fail again, and say so."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def verb(function: Callable[Given, None], under: typer.Typer = app, name: str | None = None) -> Callable[Given, None]:
    """Make a function a verb of the command line."""

    @wraps(function)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> None:
        with ended():
            _check_outputs(kwargs)
            function(*args, **kwargs)

    return under.command(name)(run)


def _version(asked: bool) -> None:
    if asked:
        print(f"vicinal {__version__}")
        raise typer.Exit


@app.callback()
def _vicinal(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Embeddings and search that know the corpus they live in.

    Begin with:  vicinal index docs.jsonl

    and go on:   vicinal search docs.vicinal "a question"
    """


# --- Arguments and options, those that several verbs share.


def _check_outputs(given: Mapping[str, Any]) -> None:
    """Refuse to write over what is read, over another output, or into an index, where nothing is ever written."""
    outputs = {name: given[name] for name in ("target", "json", "plot") if given.get(name) not in (None, STDOUT)}
    texts = [text for text in _each(given.get("context")) if text not in ("own", "null")]
    inputs = [value for name, part in given.items() if name not in outputs for value in _each(part)]
    read = [path for path in inputs if isinstance(path, Path) and path != STDOUT] + [Path(text) for text in texts]
    places = [Path(os.path.realpath(path)) for path in outputs.values()]
    for output, place in zip(outputs.values(), places, strict=True):
        if any(place == Path(os.path.realpath(path)) for path in read):
            raise InputError(f"{output} is to be read and to be written: choose another name for what is written")
        if places.count(place) > 1 or any(other in place.parents for other in places):
            raise InputError(f"{output} would be written twice, or into what is written: choose another name")
        for folder in place.parents:
            if (folder / "manifest.json").is_file() and (folder / "segments").is_dir():
                raise InputError(f"{output} lies inside the index {folder}, where nothing is written: choose another")


def _each(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value] if value is not None else []


def _file_to_write(path: Path | None) -> Path | None:
    """Refuse now what could not be written after hours of work."""
    if path is not None and path != STDOUT:
        if not path.parent.is_dir():
            raise typer.BadParameter(f"there is no folder {path.parent} to write {path.name} into: make it first")
        if path.exists() and not path.is_file():
            raise typer.BadParameter(f"{path} is no ordinary file: give the name of one")
    return path


Pairs = Annotated[
    Path, typer.Argument(metavar="PAIRS", help="Training pairs: .jsonl, .parquet, or a folder of such files.")
]
Recipe = Annotated[
    str,
    typer.Option("--recipe", metavar="NAME", help="tiny_cpu, small_gpu, paper_small, paper_large (docs/training.md)."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Change a field of the recipe; may be repeated."),
]
IndexFolder = Annotated[Path, typer.Argument(metavar="INDEX", help="An index: the folder that `index` wrote.")]
Model = Annotated[
    str,
    typer.Option("--model", metavar="M", help="A shipped name (see `models`), a folder, or owner/name on the hub."),
]
CONTEXT_HELP = "The documents that the model is shown: own, some of CORPUS; null, none; a saved one, or another corpus."
Context = Annotated[str, typer.Option("--context", metavar="own|null|PATH", help=CONTEXT_HELP)]
ContextSize = Annotated[
    int | None,
    typer.Option("--context-size", metavar="N", show_default="128", help="How many documents the model is shown."),
]
CHOICE_NAMES = "random|medoids|coverage|density"
ContextChoice = Annotated[str, typer.Option("--context-choice", metavar=CHOICE_NAMES, help="How they are chosen.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Which draw.")]
Precision = Annotated[
    str,
    typer.Option(
        "--precision", metavar="auto|fp32|bf16", help="auto is bf16 where the device computes in it natively."
    ),
]
Device = Annotated[str, typer.Option("--device", metavar="D", help="auto, cpu, cuda, mps.")]
DocumentTokens = Annotated[
    int | None,
    typer.Option(
        "--max-document-tokens", metavar="N", show_default="all it can", help="How much of a document the model reads."
    ),
]
QueryTokens = Annotated[
    int | None,
    typer.Option(
        "--max-query-tokens", metavar="N", show_default="all it can", help="How much of a query the model reads."
    ),
]
Overflow = Annotated[
    str, typer.Option("--overflow", metavar="truncate|error", help="What becomes of a text that is longer than that.")
]
Dim = Annotated[int | None, typer.Option("--dim", metavar="N", show_default="all", help="Use the first N dimensions.")]
MODE_NAMES = "dense|bm25|dense+bm25"
Language = Annotated[
    str, typer.Option("--language", metavar="L", help="How words are stemmed: auto, none, english, german, ...")
]
SkipBadRows = Annotated[
    bool, typer.Option("--skip-bad-rows", help="Count and leave out rows that cannot be read, rather than refuse.")
]
Json = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", callback=_file_to_write, help="Write the result as JSON; - is stdout."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no summary: only results and errors.")]


def _only(flag: str, given: str, known: str) -> None:
    """Refuse what a flag will take one day."""
    if given != known:
        raise InputError(f"{flag} {given} was asked for, but {known} is all that this version knows: leave {flag} out")


def _report(result: Any, json: Path | None) -> bool:
    """Write a result as JSON where that was asked for; False says that standard output is taken by it."""
    if json == STDOUT:
        sys.stdout.buffer.write(files.canonical_json(result).encode())
    elif json is not None:
        files.write_json(json, result)
    return json != STDOUT


# --- The verbs.


@verb
def index(
    corpus: Annotated[
        Path, typer.Argument(metavar="CORPUS", help=".jsonl, .csv, .tsv, .parquet, or a folder of texts or BEIR's.")
    ],
    target: Annotated[
        Path | None,
        typer.Option("-o", metavar="INDEX", show_default="beside CORPUS: docs.jsonl -> docs.vicinal", help="Where to."),
    ] = None,
    model: Model = DEFAULT_MODEL,
    context: Context = "own",
    context_size: ContextSize = None,
    context_choice: ContextChoice = "random",
    seed: Seed = 0,
    engine: Annotated[str, typer.Option("--engine", metavar="exact", help="How vectors are searched.")] = "exact",
    representations: Annotated[
        str, typer.Option("--representations", metavar="dense", help="What is kept of documents beside their words.")
    ] = "dense",
    precision: Precision = "auto",
    device: Device = "auto",
    max_document_tokens: DocumentTokens = None,
    max_query_tokens: QueryTokens = None,
    overflow: Overflow = "truncate",
    no_text: Annotated[bool, typer.Option("--no-text", help="Keep ids and metadata, no titles and texts.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another index that stands there.")] = False,
    skip_bad_rows: SkipBadRows = False,
    language: Language = "auto",
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Make a folder that can be searched out of a corpus.

    The same corpus and settings onto an existing index do nothing; an interrupted run goes on where it stopped.

    Example:  vicinal index docs.jsonl --skip-bad-rows
    """
    from .corpus import Corpus, default_index_name
    from .encoder import load
    from .index.build import check_target
    from .search import Index

    _only("--engine", engine, "exact")
    _only("--representations", representations, "dense")
    target = target or default_index_name(corpus)
    check_target(target)
    source = Corpus.read(corpus, skip_bad_rows=skip_bad_rows)
    encoder = load(
        model,
        precision=precision,
        device=device,
        max_document_tokens=max_document_tokens,
        max_query_tokens=max_query_tokens,
        overflow=overflow,
    )
    start, progress = time.monotonic(), progress_on_stderr(quiet)
    with Index.build(
        target,
        encoder.in_context(context, source, context_size, context_choice, seed, progress),
        source,
        overwrite=overwrite,
        keep_text=not no_text,
        language=language,
        progress=progress,
    ) as built:
        seconds = round(time.monotonic() - start, 3)
        is_new, found = built.is_new, built.info()
    if not _report({"index": str(target), "is_new": is_new, "seconds": seconds, **found}, json) or quiet:
        return
    if is_new:
        _say_counts(found["counts"], encoder.max_document_tokens)
        say(_context(found["context"]))
        say((str(target), "bold"), f": {_size(found['bytes'])}, {_model(found['model'])}, {duration(seconds)}")
    else:
        say((str(target), "bold"), " is there already, of the same corpus and settings: nothing to do")
    say(f'next: vicinal search {shlex.quote(str(target))} "a question"')


@verb
def encode(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A corpus of any kind that `index` takes.")],
    target: Annotated[
        Path, typer.Option("-o", metavar="VECTORS.parquet", callback=_file_to_write, help="The file to write.")
    ],
    role: Annotated[str, typer.Option("--as", metavar="document|query", help="What the texts are.")] = "document",
    model: Model = DEFAULT_MODEL,
    context: Context = "own",
    context_size: ContextSize = None,
    context_choice: ContextChoice = "random",
    seed: Seed = 0,
    dim: Dim = None,
    precision: Precision = "auto",
    device: Device = "auto",
    max_document_tokens: DocumentTokens = None,
    max_query_tokens: QueryTokens = None,
    overflow: Overflow = "truncate",
    skip_bad_rows: SkipBadRows = False,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Write the vectors of a file's texts to a Parquet file.

    A row per document with its id and its vector, truncated and normalised; an empty document's vector is all zeros.

    Example:  vicinal encode questions.jsonl -o questions.parquet --as query --context docs.jsonl
    """
    from .corpus import Corpus
    from .encoder import load
    from .index import tables

    if role == "query" and context == "own":
        raise InputError(
            "queries have no context of their own: give the one of the documents that they are asked of "
            "(--context CORPUS, or a saved one), or --context null"
        )
    source = Corpus.read(file, skip_bad_rows=skip_bad_rows)
    encoder = load(
        model,
        precision=precision,
        device=device,
        max_document_tokens=max_document_tokens,
        max_query_tokens=max_query_tokens,
        overflow=overflow,
    )
    progress = progress_on_stderr(quiet)
    reader = encoder.in_context(context, source, context_size, context_choice, seed, progress)
    counts = tables.encode(target, reader, source, role, dim=dim, progress=progress)
    settings = encoder.settings | {"dim": dim or encoder.dim}
    described = reader.bound and reader.bound.describe()
    result = {"vectors": str(target), "role": role, "model": settings, "context": described, "counts": counts}
    if _report(result, json) and not quiet:
        _say_counts(counts, settings[f"max_{role}_tokens"])
        say(f"context   {_documents(described) if described else 'null'}")
        say((str(target), "bold"), f": {_model(settings)}")


@verb
def search(
    index: IndexFolder,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What to look for.")],
    k: Annotated[int, typer.Option("-k", metavar="K", help="How many hits.")] = 10,
    mode: Annotated[str, typer.Option("--mode", metavar=MODE_NAMES, help="What scores a document.")] = "dense",
    dim: Dim = None,
    json: Json = None,
) -> None:
    """Find the documents that answer a query best.

    Example:  vicinal search docs.vicinal "who pays the rent" -k 3
    """
    from .search import Index, as_json

    settings: dict[str, Any] = {"k": k, "mode": mode, "model": None, "dim": None, "context": None}
    with Index.open(index) as opened:
        hits = opened.search(query, k, mode, dim)
        if "dense" in mode:
            settings |= {"model": opened.encoder.name, "dim": dim or opened.encoder.dim, "context": opened.context}
    if not _report({"query": query, "hits": [as_json(hit) for hit in hits], "settings": settings}, json):
        return
    for rank, hit in enumerate(hits, 1):
        say((f"{rank:>3}  {hit.score:.4f}  ", "dim"), (f"{hit.id}  {hit.title}".rstrip(), "bold"))
        say_beginning(hit.text, indent=5)
    if not hits:
        say("no hits")


@verb
def evaluate(
    collection: Annotated[Path, typer.Argument(metavar="COLLECTION", help="A folder in BEIR's layout.")],
    model: Model = DEFAULT_MODEL,
    mode: Annotated[
        list[str] | None,
        typer.Option(
            "--mode", metavar=MODE_NAMES, show_default="each of them", help="What scores a document; may be repeated."
        ),
    ] = None,
    dim: Dim = None,
    context: Annotated[
        list[str] | None,
        typer.Option("--context", metavar="own|null|PATH", show_default="own", help=CONTEXT_HELP + " May be repeated."),
    ] = None,
    context_size: Annotated[
        list[int] | None,
        typer.Option(
            "--context-size", metavar="N", show_default="128", help="How many documents it is shown; may be repeated."
        ),
    ] = None,
    context_choice: Annotated[
        list[str] | None,
        typer.Option(
            "--context-choice",
            metavar=CHOICE_NAMES,
            show_default="random",
            help="How they are chosen; may be repeated.",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="N", help="How many contexts are drawn; measures are means over them.")
    ] = 1,
    max_document_tokens: Annotated[
        int, typer.Option("--max-document-tokens", metavar="N", help="How much of a document the model reads.")
    ] = 192,
    max_query_tokens: Annotated[
        int, typer.Option("--max-query-tokens", metavar="N", help="How much of a query the model reads.")
    ] = 64,
    split: Annotated[str, typer.Option("--split", metavar="S", help="Which judgments: qrels/S.tsv.")] = "test",
    precision: Precision = "auto",
    device: Device = "auto",
    language: Language = "auto",
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Measure search on a collection: nDCG@10 and its kin.

    The whole corpus is searched, exactly. Vectors are kept on disk: a second run is quick, an interrupted one goes on.

    Example:  vicinal evaluate scifact --mode dense --mode bm25 --json scifact.json
    """
    from .encoder import load
    from .evaluation import Collection, Shown
    from .evaluation import evaluate as measured
    from .search import MODES

    modes = mode or MODES
    sizes: Sequence[int | None] = context_size or [None]
    asked_for = [
        Shown.of(asked, size, choice)
        for asked in context or ["own"]
        for size in sizes
        for choice in context_choice or ["random"]
    ]
    contexts = list({(shown.name, shown.size, shown.choice): shown for shown in asked_for}.values())
    judged = Collection.read(collection, split)
    encoder = None
    if any("dense" in name for name in modes):
        encoder = load(
            model,
            precision=precision,
            device=device,
            max_document_tokens=max_document_tokens,
            max_query_tokens=max_query_tokens,
        )
    progress = progress_on_stderr(quiet)
    found = measured(
        judged, encoder, modes, contexts=contexts, seeds=seeds, dim=dim, language=language, progress=progress
    )
    result = found.as_json()
    if not _report(result, json):
        return
    say((judged.name, "bold"), f", {split}: {_queries_and_documents(found.counts, max_document_tokens)}")
    if encoder is not None:
        say(_model(encoder.settings | {"dim": dim or encoder.dim}))
    for name, reached in found.contexts.items():
        drawn = reached.draws[0]
        if drawn is not None and drawn["documents"] < drawn["size"]:
            say(f"{name}: {_documents(drawn)}")
    say()
    rows = [
        [mode, name if "dense" in mode else "", *(f"{100 * value:.1f}" for value in r.measures.values())]
        for name, reached in found.contexts.items()
        for mode, r in reached.modes.items()
        if "dense" in mode or name == next(iter(found.contexts))  # words know no context
    ]
    table(["x 100", "context", *result["measures"]], rows, text=2)
    say()
    if seeds > 1:
        say(f"means over {seeds} draws of each context that is chosen")
    say("seconds: " + ", ".join(f"{what.replace('_', ' ')} {took:.1f}" for what, took in found.seconds.items()))


@verb
def compare(
    results: Annotated[
        list[Path], typer.Argument(metavar="RESULT.json", help="What `evaluate --json` wrote, one or more.")
    ],
    measure: Annotated[
        str, typer.Option("--measure", metavar="M", help="One of those that `evaluate` shows.")
    ] = "nDCG@10",
    json: Json = None,
) -> None:
    """Tell whether results differ by more than chance.

    Every pair is compared query by query (paired randomisation test); one file alone has its modes compared.

    Example:  vicinal compare before.json after.json
    """
    from .evaluation import compare as compared

    if len(set(results)) < len(results):
        raise InputError(f"{next(path for path in results if results.count(path) > 1)} was given twice: give each once")
    result = compared({str(path): _read_result(path) for path in results}, measure)
    if _report(result, json):
        rows = [
            [
                f"{pair['a']} - {pair['b']}",
                f"{100 * pair['difference']:+.1f}",
                f"{100 * pair['low']:+.1f} to {100 * pair['high']:+.1f}",
                f"{pair['p']:.4f}",
                f"{pair['p_holm']:.4f}",
                f"{pair['queries']:,}",
            ]
            for pair in result["pairs"]
        ]
        table([f"{result['measure']} x 100", "difference", "95 % interval", "p", "p (Holm)", "queries"], rows)


def _read_result(path: Path) -> Any:
    try:
        return json_format.loads(path.read_bytes())
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}): expected a result that `vicinal evaluate --json FILE` wrote"
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is not JSON ({error}): expected a result that `vicinal evaluate --json FILE` wrote"
        ) from None


@verb
def info(
    index: IndexFolder,
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="CORPUS", help="Measure how far the context of this corpus would move it."),
    ] = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Show what an index holds, and how it was made.

    Example:  vicinal info docs.vicinal
    """
    from .corpus import Corpus
    from .search import Index

    with Index.open(index) as opened:
        found = opened.info()
        if against is not None:
            moved = opened.against(Corpus.read(against), progress=progress_on_stderr(quiet))
            found["against"] = {"corpus": str(against), **moved}
    if not _report(found, json):
        return
    model = found["model"]
    say((str(index), "bold"), f": {_size(found['bytes'])}, format {found['format']}")
    _say_counts(found["counts"], model and model["max_document_tokens"])
    say(f"passages  {found['passages']:,}")
    say(f"model     {_model(model) if model else 'of another library: its vectors were handed in'}")
    if model:
        say(f"tokens    {model['max_document_tokens']} of a document, {model['max_query_tokens']} of a query at most")
    say(_context(found["context"]))
    if found["context"] and (attention := found["context"].get("attention")):
        order = ", and the order of its documents matters" if attention["order_matters"] else ""
        say(f"attention {_size(attention['cache_bytes'])} of memory{order}")
    if "against" in found:
        say(f"against   {found['against']['corpus']}: {_effect(found['against'])}")
    say(f"words     {found['lexical'] or 'none to search by'}")
    say(f"text      {'not kept, so refused: ' + ', '.join(found['refused']) if found['refused'] else 'kept'}")


@verb
def verify(index: IndexFolder, json: Json = None, quiet: Quiet = False) -> None:
    """Read every byte of an index, and name what was changed.

    Exit code 0 says that it is whole; 2 that it is not, with a sentence for each damaged or missing file.

    Example:  vicinal verify docs.vicinal
    """
    from .index import segments

    problems = segments.verify(index, progress_on_stderr(quiet))
    strangers = [] if problems else segments.strangers(index, segments.Manifest.read(index))
    names = [str(path) for path in strangers]
    result = {"index": str(index), "whole": not problems, "problems": problems, "strangers": names}
    if _report(result, json) and not problems:
        say((str(index), "bold"), " is whole: every byte is as it was written")
        for name in names:
            say(f"{name} is not part of the index: it is never read, and may be removed")
    for problem in problems:
        complain(f"error: {problem}")
    if problems:
        raise typer.Exit(2)


@verb
def export(
    index: IndexFolder,
    target: Annotated[
        Path, typer.Option("-o", metavar="FILE", callback=_file_to_write, help="FILE.jsonl, or FILE.parquet.")
    ],
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Write the documents of an index to a file.

    .jsonl is a corpus again; .parquet holds their vectors too, truncated and normalised, as they are compared.

    Example:  vicinal export docs.vicinal -o docs.parquet
    """
    from .documents import plural
    from .search import Index

    with Index.open(index) as opened:
        documents = opened.export(target, progress=progress_on_stderr(quiet))
    if _report({"file": str(target), "documents": documents}, json) and not quiet:
        say((str(target), "bold"), f": {plural(documents, 'document')}")


@verb
def check_data(
    source: Pairs,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            "--against", metavar="COLLECTION", help="Test data to look for in the pairs: a corpus; may be repeated."
        ),
    ] = None,
    leave_out: Annotated[
        list[str] | None,
        typer.Option("--leave-out", metavar="DOMAIN", help="A domain that is not to be read; may be repeated."),
    ] = None,
    skip_bad_rows: SkipBadRows = False,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Say what may be wrong with training pairs.

    Leaks of test data, duplicates, empty rows, lengths, languages, negatives: for each domain, and in all.

    Example:  vicinal check-data pairs --against scifact --leave-out code_ruby
    """
    from .index.words import detect
    from .pairs import Pairs, check, findings, texts_of

    def language_of(text: str) -> str | None:
        language = detect([text])
        return None if language == "none" else language

    progress = progress_on_stderr(quiet)
    names = [path.resolve().name for path in against or []]
    collections = {
        name if names.count(name) == 1 else str(path): texts_of(path)
        for name, path in zip(names, against or [], strict=True)
    }
    pairs = Pairs.read(source, leave_out=leave_out or (), skip_bad_rows=skip_bad_rows, progress=progress)
    pairs.check_left_out(leave_out or ())
    report = check(pairs, collections, language_of=language_of, progress=progress)
    if not _report(report, json) or quiet:
        return
    say((str(source), "bold"), f": {pairs.counts}")
    say()
    _say_domains(report)
    say()
    for sentence in findings(report):
        say(sentence)


batches = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(batches, name="batches", help="Look at which pairs meet in a batch.")


@partial(verb, under=batches, name="show")
def batches_show(
    source: Pairs,
    batch: Annotated[int, typer.Option("--batch", metavar="N", help="Which one of the epoch, from 0.")] = 0,
    size: Annotated[int, typer.Option("--size", metavar="N", help="Pairs in a batch.")] = 512,
    order: Annotated[str, typer.Option("--order", metavar="random|tour", help="How clusters are merged.")] = "tour",
    seed: Seed = 0,
    epoch: Annotated[int, typer.Option("--epoch", metavar="N", help="From 0; every epoch has other batches.")] = 0,
    model: Annotated[
        str, typer.Option("--model", metavar="tfidf|bm25|M", help="What tells who is near: words, or a model.")
    ] = "tfidf",
    engine: Annotated[str, typer.Option("--engine", metavar="faiss|torch", help="What clusters.")] = "faiss",
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", metavar="FILE.png", callback=_file_to_write, help="How hard batches are, beside random ones."
        ),
    ] = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Show the texts of one training batch, the clusters that it was made of, and how hard it is.

    Example:  vicinal batches show pairs --batch 3 --size 64 --plot difficulty.png
    """
    from .batches.cluster import KMeans
    from .batches.show import show
    from .batches.surrogate import surrogate_of
    from .encoder import load
    from .pairs import Pairs

    seen = show(
        Pairs.read(source, progress=progress_on_stderr(quiet)),
        surrogate_of(model, load),
        batch=batch,
        size=size,
        order=order,
        seed=seed,
        epoch=epoch,
        kmeans=KMeans(seed=seed, engine=engine),
        plot=plot,
        progress=progress_on_stderr(quiet),
    )
    if not _report(seen.record(), json) or quiet:
        return
    say((f"batch {seen.batch} of {seen.batches}", "bold"), f": {len(seen.rows)} pairs of {seen.domain}")
    say(f"from clusters {', '.join(f'{number} ({count})' for number, count in seen.clusters.items())}")
    say(f"a query's similarity to other documents: mean {seen.mean:.3f}, highest {seen.highest:.3f}")
    for query, document in zip(seen.queries, seen.documents, strict=True):
        say()
        say_beginning(query, indent=2)
        say_beginning(document, indent=5)


@verb
def train(
    source: Pairs,
    target: Annotated[Path, typer.Option("-o", metavar="MODEL", help="The folder to write.")],
    recipe: Recipe = "small_gpu",
    model: Annotated[
        str | None, typer.Option("--model", metavar="M", show_default="the recipe's", help="What to start from.")
    ] = None,
    settings: Settings = None,
    steps: Annotated[
        int | None, typer.Option("--steps", metavar="N", show_default="the recipe's", help="How long.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", show_default="the recipe's", help="Which draw.")
    ] = None,
    collection: Annotated[
        list[Path] | None,
        typer.Option("--collection", metavar="COLLECTION", help="What the best step is chosen by; may be repeated."),
    ] = None,
    leave_out: Annotated[
        list[str] | None,
        typer.Option(
            "--leave-out", metavar="DOMAIN", help="A domain that is not trained on, beside ten; may be repeated."
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")] = False,
    skip_bad_rows: SkipBadRows = False,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Train a model on pairs.

    Ten domains that are kept for choosing are left out by name (docs/pairs.md). Under torchrun all processes share each
    batch. What was stopped goes on with --resume, to the same weights.

    Example:  vicinal train pairs -o model --recipe tiny_cpu --set learning_rate=1e-3
    """
    from . import train as training
    from .evaluation import Collection
    from .losses.gather import world
    from .pairs import KEPT_FOR_CHOOSING, Pairs
    from .recipes import recipe as recipe_of

    given = dict(_setting(text) for text in settings or [])
    flags = {"seed": seed, "steps": steps, "model": model}
    given |= {name: str(value) for name, value in flags.items() if value is not None}
    run = recipe_of(recipe).changed(given)
    collections = [Collection.read(path) for path in collection or []]
    with training.joined():
        quiet = quiet or world()[1] > 0
        progress = progress_on_stderr(quiet)
        left_out = [*KEPT_FOR_CHOOSING, *(leave_out or [])]
        pairs = Pairs.read(source, leave_out=left_out, skip_bad_rows=skip_bad_rows, progress=progress)
        pairs.check_left_out(leave_out or ())
        is_first = world()[1] == 0
        result = training.train(
            pairs,
            target,
            run,
            collections=collections,
            resume=resume,
            progress=progress,
            tell=(lambda record: None) if quiet else _tell_of_steps(run.steps),
        )
    if not is_first or not _report(result, json) or quiet:
        return
    say((str(source), "bold"), f": {pairs.counts}")
    loss = result["loss"]
    took = duration(result["seconds"])
    say((str(target), "bold"), f": {result['steps']:,} steps, {result['tokens']:,} tokens, {took}")
    say(f"loss {loss['first']:.4f} -> {loss['last']:.4f}")
    if result["best"]:
        names, best = ", ".join(each.name for each in collections), result["best"]
        say(f"best by {names}: step {best['step']:,}, nDCG@10 x 100 {100 * best['own']:.1f} in own context")
    say(f"next: vicinal evaluate COLLECTION --model {shlex.quote(str(target))}")


@verb
def selfcheck(
    recipe: Recipe = "tiny_cpu",
    settings: Settings = None,
    json: Json = None,
) -> None:
    """Check that gradients by chunks are those of the graph kept.

    On random texts, with the recipe's own model, loss and dropouts. Exit code 2 says that they differ.

    Example:  vicinal selfcheck --recipe small_gpu --set attention=two-way
    """
    from .recipes import recipe as recipe_of
    from .train.selfcheck import selfcheck as checked

    result = checked(recipe_of(recipe).changed(dict(_setting(text) for text in settings or [])))
    if _report(result, json):
        rows = [[n, f"{g['difference']:.1e}", f"{g['limit']:.0e}"] for n, g in result["gradients"].items()]
        table(["gradients", "difference", "allowed"], rows)
    if not result["held"]:
        complain("error: gradients by chunks differ from those of the graph kept: do not train with this configuration")
        raise typer.Exit(2)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--set {text} was given: expected field=value, such as learning_rate=1e-4")
    return name, value


def _tell_of_steps(steps: int) -> Callable[[Mapping[str, Any]], None]:
    """A line about the loss now and then, and one whenever retrieval was measured."""
    said = time.monotonic()

    def tell(record: Mapping[str, Any]) -> None:
        nonlocal said
        retrieval = (record.get("retrieval") or {}).get("mean", {})
        if not retrieval and time.monotonic() - said < LINE_SECONDS:
            return
        said = time.monotonic()
        reached = "".join(f", {kind} {100 * value:.1f}" for kind, value in retrieval.items())
        pace = f"{record['tokens_per_second']:,} tokens/s"
        complain(f"step {record['step']:,} of {steps:,}: loss {record['loss']:.4f}, {pace}{reached}")

    return tell


@verb
def models(json: Json = None) -> None:
    """List the models that work without a network.

    Example:  vicinal models
    """
    from .encoder import shipped

    found = shipped()
    listed = [{"name": m.name, "license": m.license, "bytes": m.bytes, "about": m.about} for m in found]
    if _report({"models": listed, "default": DEFAULT_MODEL}, json):
        table(
            ["name", "licence", "size", "about"], [[m.name, m.license, _size(m.bytes), m.about] for m in found], text=4
        )


# --- How things are said.


def _say_counts(counts: Mapping[str, Any], max_tokens: int | None) -> None:
    """What became of the rows of a corpus, by the counts that an index keeps."""
    from .documents import Counts

    names = ("documents", "empty", "duplicated", "numbered", "skipped", "ignored_files")
    rows = counts["documents"] + counts["duplicated"] + counts["skipped"]
    say(str(Counts(rows=rows, **{name: counts[name] for name in names})))
    if counts["cut"]:
        say(f"longer than {max_tokens} tokens: {counts['cut']:,}, of which only the beginning is read")
    if counts.get("uncorrected"):  # indexes of the first version have no such count
        say(f"kept as the model gives them: {counts['uncorrected']:,}, of which the context would leave nothing")


def _say_domains(report: Mapping[str, Any]) -> None:
    """A row for each domain of pairs, and one for all of them."""

    def row(name: str, part: Mapping[str, Any]) -> list[str]:
        languages = [f"{language} {100 * share:.0f} %" for language, share in part["languages"].items()]
        lengths = (
            part["queries"]["words"]["p50"],
            part["documents"]["words"]["p50"],
            part["documents"]["words"]["p95"],
        )
        counts = (part["empty"], part["duplicates"]["pairs"], part["negatives"]["pairs"], part["scores"]["pairs"])
        leaks = f"{part['leaks']['pairs']:,}" if report["against"] else "-"
        return [name or "''", languages[0], *(f"{n:,}" for n in (part["pairs"], *lengths, *counts)), leaks]

    domains = [row(name, part) for name, part in report["domains"].items()]
    columns = "domain, language, pairs, query words, document, 95 %, empty, repeated, negatives, scores, leaks"
    table(columns.split(", "), [*domains, row("all", report["all"])], text=2)


def _queries_and_documents(counts: Mapping[str, int], max_tokens: int) -> str:
    def noted(*remarks: tuple[str, str]) -> str:
        said = [f"{counts[name]:,} {what}" for name, what in remarks if counts.get(name)]
        return f" ({', '.join(said)})" if said else ""

    left_out = "queries_empty", "queries_unjudged", "queries_without_positive"
    queries = noted(*((name, name.removeprefix("queries_").replace("_", " ") + " left out") for name in left_out))
    documents = noted(
        ("empty", "empty"), ("cut", f"longer than {max_tokens} tokens"), ("judged_documents_absent", "absent")
    )
    asked = "query" if counts["queries"] == 1 else "queries"
    held = "document" if counts["documents"] == 1 else "documents"
    return f"{counts['queries']:,} {asked}{queries}, {counts['documents']:,} {held}{documents}"


def _model(settings: Mapping[str, Any]) -> str:
    return f"{settings['name']} ({settings['dim']} dimensions, {settings['precision']})"


def _context(context: Mapping[str, Any] | None) -> str:
    if context is None:
        return "context   null"
    return f"context   {_documents(context)}; against null: {_effect(context['effect'], is_own=True)}"


def _documents(context: Mapping[str, Any]) -> str:
    count = context["documents"]
    fewer = f" ({context['size']:,} were asked for)" if count < context["size"] else ""
    return f"{count:,} document{'' if count == 1 else 's'}{fewer}, {context['choice']}, seed {context['seed']}"


def _effect(effect: Mapping[str, Any] | None, *, is_own: bool = False) -> str:
    from .encoder.effect import INERT, depth_of

    if effect is None:
        return "the model has none to compare with"
    best = depth_of(effect["documents"])
    told = f"cosine {effect['cosine']:.3f}, {100 * effect['top10']:.0f} % of the best {best} stay"
    is_inert = is_own and effect["top10"] >= INERT
    return told + (" (WARNING: that is noise, so this context is inert)" if is_inert else "")


def _size(count: int) -> str:
    from rich.filesize import decimal

    return decimal(count)
