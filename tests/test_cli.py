"""The command line's contract: verbs, flags, exit codes, what stands on which stream, the JSON that programs read."""

from __future__ import annotations

import io
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from pyarrow import parquet
from typer.testing import CliRunner, Result

import vicinal
from vicinal import cli, screen
from vicinal.errors import CorpusError, DamagedIndex, InternalError, MissingExtra
from vicinal.evaluation import MAX_DOCUMENT_TOKENS, MAX_QUERY_TOKENS
from vicinal.search import MODES

MODEL_FLAGS = {"--model", "--context", "--precision", "--device", "--max-document-tokens", "--max-query-tokens"}
MODEL_FLAGS |= {"--context-size", "--context-choice"}
CONTRACT = {
    "index": MODEL_FLAGS
    | {"--seed", "-o", "--engine", "--representations", "--no-text", "--overwrite", "--skip-bad-rows", "--language"}
    | {"--overflow", "--json", "--quiet"},
    "encode": MODEL_FLAGS | {"--seed", "-o", "--as", "--dim", "--overflow", "--skip-bad-rows", "--json", "--quiet"},
    "search": {"-k", "--mode", "--dim", "--json"},
    "evaluate": MODEL_FLAGS | {"--seeds", "--mode", "--dim", "--split", "--language", "--json", "--quiet"},
    "compare": {"--measure", "--json"},
    "info": {"--against", "--json", "--quiet"},
    "verify": {"--json", "--quiet"},
    "export": {"-o", "--json", "--quiet"},
    "check-data": {"--against", "--leave-out", "--skip-bad-rows", "--json", "--quiet"},
    "models": {"--json"},
    "batches show": {"--batch", "--size", "--order", "--seed", "--epoch", "--model", "--engine", "--plot"}
    | {"--json", "--quiet"},
    "train": {"-o", "--recipe", "--model", "--set", "--steps", "--seed", "--collection", "--leave-out", "--resume"}
    | {"--skip-bad-rows", "--json", "--quiet"},
    "selfcheck": {"--recipe", "--set", "--json"},
}
ROWS: list[dict[str, Any]] = [
    {"id": "cats", "title": "On cats", "text": "Cats purr when they are content.", "year": 1987},
    {"id": "stars", "text": "Stars shine at night, and by day nobody sees them.", "tags": ["sky", "été"]},
    {"id": "rent", "title": "Rent", "text": "The tenant pays the rent on the first day of a month."},
    {"id": "nothing", "text": "  "},
]
QUERIES = [{"_id": "q1", "text": "do cats purr"}, {"_id": "q2", "text": "who pays rent"}]
QRELS = "query-id\tcorpus-id\tscore\nq1\tcats\t1\nq2\trent\t1\n"


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def run(*words: object) -> Result:
    """Run a command line in this process."""
    return CliRunner().invoke(cli.app, [str(word) for word in words])


def run_well(*words: object) -> Result:
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result


def refusal(*words: object, exit_code: int = 2) -> str:
    """The one sentence on standard error that a command line is refused with."""
    result = run(*words)
    assert result.exit_code == exit_code, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), result.stderr
    return lines[0].removeprefix("error: ")


def start(*words: object) -> subprocess.Popen[bytes]:
    """Start the program itself; Ctrl-C reaches it also where the tests run in the background of a shell."""
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from vicinal.cli import main; main()"
    )
    command = [sys.executable, "-c", program, *(word if isinstance(word, bytes) else str(word) for word in words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "docs.jsonl", ROWS)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index that tests only read."""
    folder = tmp_path_factory.mktemp("built")
    run_well("index", write_jsonl(folder / "docs.jsonl", ROWS), "--model", "tiny", "--precision", "fp32")
    return folder / "docs.vicinal"


@pytest.fixture(scope="session")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pets")
    write_jsonl(folder / "corpus.jsonl", ROWS)
    write_jsonl(folder / "queries.jsonl", QUERIES)
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text(QRELS, encoding="utf-8")
    return folder


# --- Verbs and flags.

PAGE = (Path(__file__).parent.parent / "docs" / "cli.md").read_text(encoding="utf-8")


def flags_of(verb: str) -> set[str]:
    command: Any = typer.main.get_command(cli.app)
    for word in verb.split():
        command = command.commands[word]
    return {flag for p in command.params if p.param_type_name == "option" for flag in p.opts + p.secondary_opts}


def test_the_verbs_are_those_of_the_contract() -> None:
    verbs = dict(typer.main.get_command(cli.app).commands)  # type: ignore[attr-defined]
    groups = {name: verbs.pop(name).commands for name in [*verbs] if hasattr(verbs[name], "commands")}
    assert {*verbs, *(f"{group} {name}" for group, names in groups.items() for name in names)} == set(CONTRACT)


@pytest.mark.parametrize("verb", CONTRACT)
def test_the_flags_of_a_verb_are_those_of_the_contract(verb: str) -> None:
    assert flags_of(verb) - {"--help"} == CONTRACT[verb]


@pytest.mark.parametrize("verb", CONTRACT)
def test_the_help_of_a_verb_names_every_flag_and_gives_an_example(verb: str) -> None:
    told = run_well(*verb.split(), "--help").stdout
    assert not [flag for flag in CONTRACT[verb] if not re.search(rf"^ +{flag}\b", told, re.MULTILINE)]
    assert f"Example:  vicinal {verb}" in told


@pytest.mark.parametrize("verb", CONTRACT)
def test_the_page_has_a_section_for_each_verb_with_every_flag_and_an_example(verb: str) -> None:
    section = re.search(rf"^## {verb}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert section is not None
    assert not [flag for flag in CONTRACT[verb] if not re.search(rf"`{flag}[` ]", section[1])]
    assert f"$ vicinal {verb} " in section[1] or f"$ vicinal {verb}\n" in section[1]


def test_the_page_names_no_verb_and_no_flag_that_is_not_there() -> None:
    assert set(re.findall(r"^## ([\w -]+)$", PAGE, re.MULTILINE)) == set(CONTRACT)
    assert set(re.findall(r"(?<![\w-])--\w[\w-]*", PAGE)) <= set().union(*CONTRACT.values(), {"--help", "--version"})


def test_the_help_names_every_verb_in_a_whole_sentence() -> None:
    told = run_well("--help").stdout
    for verb in CONTRACT:
        assert re.search(rf"^  {verb.split()[0]} +[A-Z].*[^.]\.$", told, re.MULTILINE), verb


def test_the_modes_that_the_help_names_are_those_of_the_library() -> None:
    assert "|".join(MODES) == cli.MODE_NAMES


def test_the_version_is_told() -> None:
    assert run_well("--version").stdout == f"vicinal {vicinal.__version__}\n"


def test_what_does_not_exist_yet_never_pretends(built: Path) -> None:
    for words in (
        ["serve", built],
        ["search", built, "cats", "--rerank", "tiny"],
        ["search", built, "cats", "--funnel"],
        ["refresh", built],
        ["index", "docs.jsonl", "--refresh"],
        ["evaluate", built, "--funnel"],
        ["info", built, "--drift"],
    ):
        result = run(*words)
        assert result.exit_code == 2
        assert "No such" in result.stderr


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--engine", "hnsw"),
        ("--representations", "dense,sparse"),
        ("--precision", "int8"),
        ("--language", "klingon"),
        ("--device", "abacus"),
        ("--model", "nonesuch"),
        ("--max-document-tokens", "513"),
        ("--overflow", "spill"),
    ],
)
def test_a_value_that_no_flag_knows_is_refused_and_leaves_nothing(corpus: Path, flag: str, value: str) -> None:
    model = [] if flag == "--model" else ["--model", "tiny"]
    assert value.split(",")[-1] in refusal("index", corpus, *model, flag, value)
    assert list(corpus.parent.iterdir()) == [corpus] or not (corpus.parent / "docs.vicinal").exists()


def test_the_defaults_of_evaluate_are_those_of_the_protocol(collection: Path) -> None:
    result = json.loads(run_well("evaluate", collection, "--model", "tiny", "--json", "-").stdout)
    model = result["settings"]["model"]
    assert (model["max_document_tokens"], model["max_query_tokens"]) == (MAX_DOCUMENT_TOKENS, MAX_QUERY_TOKENS)
    assert tuple(result["settings"]["modes"]) == MODES


# --- index


def test_a_document_that_is_too_long_is_refused_where_that_is_asked_for(tmp_path: Path) -> None:
    rows = [*ROWS, {"id": "long", "text": "endless word " * 600}]
    corpus = write_jsonl(tmp_path / "docs.jsonl", rows)
    for verb, more in (("index", ()), ("encode", ("-o", tmp_path / "v.parquet"))):
        refused = refusal(verb, corpus, "--model", "tiny", "--overflow", "error", *more)
        assert "'endless word" in refused and "512 tokens" in refused and "--overflow truncate" in refused
    assert list(tmp_path.iterdir()) == [corpus]


def test_index_says_what_became_of_every_row(tmp_path: Path) -> None:
    rows = [*ROWS, {"text": "no id"}, {"id": "cats", "text": "word " * 600}, {"id": "bad", "text": 7}]
    corpus = write_jsonl(tmp_path / "docs.jsonl", rows)
    told = run_well("index", corpus, "--model", "tiny", "--skip-bad-rows").stdout
    assert "5 documents (1 empty) from 7 rows: 1 row replaced by a later one with the same id" in told
    assert "1 row without an id, known by number, 1 row skipped" in told
    assert "longer than 512 tokens: 1, " in told


def test_index_goes_beside_its_corpus_under_its_name(corpus: Path) -> None:
    run_well("index", corpus, "--model", "tiny")
    assert {path.name for path in corpus.parent.iterdir() if not path.name.startswith(".")} == {
        "docs.jsonl",
        "docs.vicinal",
    }


def test_the_same_again_says_so_and_something_else_needs_overwrite(corpus: Path) -> None:
    index = corpus.with_name("docs.vicinal")
    run_well("index", corpus, "--model", "tiny")
    before = (index / "manifest.json").read_bytes()
    assert "there already" in run_well("index", corpus, "--model", "tiny").stdout
    assert "--overwrite" in refusal("index", corpus, "--model", "tiny", "--max-query-tokens", "32")
    assert (index / "manifest.json").read_bytes() == before
    run_well("index", corpus, "--model", "tiny", "--max-query-tokens", "32", "--overwrite")
    assert json.loads(run_well("info", index, "--json", "-").stdout)["model"]["max_query_tokens"] == 32


def test_a_bad_row_refuses_the_corpus_by_its_line_and_leaves_nothing(tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "docs.jsonl", [*ROWS, {"id": "bad"}])
    said = refusal("index", corpus, "--model", "tiny")
    assert "line 5" in said and "--skip-bad-rows" in said
    assert not (tmp_path / "docs.vicinal").exists()


def test_quiet_says_nothing(corpus: Path) -> None:
    vectors = corpus.with_name("v.parquet")
    index = corpus.with_name("docs.vicinal")
    for words in (
        ["index", corpus, "--model", "tiny"],
        ["encode", corpus, "-o", vectors, "--model", "tiny"],
        ["export", index, "-o", corpus.with_name("out.jsonl")],
    ):
        assert run_well(*words, "--quiet").output == ""


def test_a_moved_index_gives_the_same_hits(built: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(built, tmp_path / "elsewhere")
    first, second = (run_well("search", index, "who pays rent", "--json", "-").stdout for index in (built, moved))
    assert first == second


def test_an_index_without_text_names_the_verbs_that_it_refuses(corpus: Path) -> None:
    index = corpus.with_name("docs.vicinal")
    run_well("index", corpus, "--model", "tiny", "--no-text")
    assert "not kept, so refused: export" in run_well("info", index).stdout
    assert "--no-text" in refusal("export", index, "-o", corpus.with_name("out.jsonl"))
    hit = json.loads(run_well("search", index, "do cats purr", "--mode", "bm25", "--json", "-").stdout)["hits"][0]
    assert (hit["id"], hit["title"], hit["text"], hit["metadata"]) == ("cats", "", "", {"year": 1987})
    assert b"purr when" not in b"".join(path.read_bytes() for path in index.rglob("*") if path.is_file())


# --- Contexts

CLAUSES = [
    {"id": f"c{n}", "text": f"{what} of the {whose} under this agreement, clause {n}"}
    for n, (what, whose) in enumerate(
        (what, whose)
        for what in ("termination", "payment", "liability", "privacy", "notice", "renewal")
        for whose in ("tenant", "landlord", "user", "service", "seller")
    )
]
TINY = ["--model", "tiny", "--precision", "fp32"]


@pytest.fixture(scope="session")
def clauses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection of thirty clauses."""
    folder = tmp_path_factory.mktemp("clauses")
    write_jsonl(folder / "corpus.jsonl", CLAUSES)
    write_jsonl(
        folder / "queries.jsonl", [{"_id": "a", "text": "may the tenant end it"}, {"_id": "b", "text": "notice"}]
    )
    (folder / "qrels").mkdir()
    judgments = "query-id\tcorpus-id\tscore\na\tc0\t1\nb\tc20\t1\nb\tc23\t1\n"
    (folder / "qrels" / "test.tsv").write_text(judgments, encoding="utf-8")
    return folder


def context_of(index: Path) -> Any:
    return json.loads(run_well("info", index, "--json", "-").stdout)["context"]


def test_index_shows_the_model_its_own_corpus_unless_told_otherwise(
    clauses: Path, tmp_path: Path, tiny: vicinal.Encoder
) -> None:
    corpus = vicinal.Corpus.read(clauses)
    for words, asked in (
        ([], {}),
        (["--context", "own", "--context-size", "7", "--seed", "3"], {"size": 7, "seed": 3}),
        (["--context-choice", "coverage", "--context-size", "5"], {"size": 5, "choice": "coverage"}),
    ):
        index = tmp_path / f"{len(words)}.vicinal"
        told = run_well("index", clauses, "-o", index, *TINY, *words).stdout
        context = tiny.context(corpus, **asked)
        assert context_of(index) | context.describe() == context_of(index)
        assert f"context   {len(context)} documents" in told, "its effect is said at once"
        hits = json.loads(run_well("search", index, "may the tenant end it", "--json", "-").stdout)
        assert hits["settings"]["context"] == context_of(index)
        reader = tiny.with_context(context)
        query = reader.encode_queries(["may the tenant end it"]).dense[0]
        best = (reader.encode_documents([row["text"] for row in CLAUSES]).dense @ query).max()
        assert hits["hits"][0]["score"] == pytest.approx(float(best), abs=1e-3)


def test_null_is_the_model_without_contexts_to_the_bit(clauses: Path, tmp_path: Path, tiny: vicinal.Encoder) -> None:
    run_well("index", clauses, "-o", tmp_path / "null.vicinal", *TINY, "--context", "null")
    vicinal.Index.build(tmp_path / "plain.vicinal", tiny, vicinal.Corpus.read(clauses)).close()
    one, two = (
        {
            path.relative_to(tmp_path / name).as_posix(): path.read_bytes()
            for path in (tmp_path / name).rglob("*.*")
            if path.is_file()
        }
        for name in ("null.vicinal", "plain.vicinal")
    )
    assert one == two and not [name for name in one if "context" in name]
    assert context_of(tmp_path / "null.vicinal") is None
    assert "context   null" in run_well("info", tmp_path / "null.vicinal").stdout
    run_well("encode", clauses, "-o", tmp_path / "v.parquet", *TINY, "--context", "null")
    _, vectors, about = read_vectors(tmp_path / "v.parquet")
    np.testing.assert_array_equal(vectors, tiny.encode_documents([row["text"] for row in CLAUSES]).dense)
    assert about["context"] is None


@pytest.mark.parametrize("kind", ["a saved context", "another corpus"])
def test_a_path_is_a_saved_context_or_another_corpus(
    clauses: Path, corpus: Path, tmp_path: Path, tiny: vicinal.Encoder, kind: str
) -> None:
    context = tiny.context(vicinal.Corpus.read(corpus), size=2, seed=1)
    context.save(tmp_path / "c.safetensors")
    shown = tmp_path / "c.safetensors" if kind == "a saved context" else corpus
    asked = ["--context", shown, *(["--context-size", 2, "--seed", 1] if shown is corpus else [])]
    run_well("index", clauses, "-o", tmp_path / "i.vicinal", *TINY, *asked)
    assert context_of(tmp_path / "i.vicinal")["fingerprint"] == context.fingerprint
    run_well("encode", clauses, "-o", tmp_path / "v.parquet", *TINY, *asked)
    _, vectors, about = read_vectors(tmp_path / "v.parquet")
    same = tiny.with_context(context).encode_documents([row["text"] for row in CLAUSES]).dense
    np.testing.assert_allclose(vectors, same, atol=1e-6)
    assert about["context"] == context.describe()
    words = [word for word in asked if word not in ("--seed", 1)]
    result = json.loads(run_well("evaluate", clauses, *TINY, "--mode", "dense", *words, "--json", "-").stdout)
    assert list(result["contexts"]) == [str(shown)]
    assert result["context"]["documents"] == 2
    assert (result["context"]["fingerprint"] == context.fingerprint) == (kind == "a saved context")  # or of seed 0


def test_a_saved_context_of_another_model_is_refused(corpus: Path, tmp_path: Path) -> None:
    from vicinal.context import Context

    made = Context.of([vicinal.Document("a", text="b")], lambda texts: torch.ones(1, 64), encoder="another")
    made.save(tmp_path / "c.safetensors")
    assert "another encoder" in refusal("index", corpus, *TINY, "--context", tmp_path / "c.safetensors")
    assert not corpus.with_name("docs.vicinal").exists()


def test_fewer_documents_than_were_asked_for_are_said_by_every_verb(corpus: Path, collection: Path) -> None:
    index, vectors = corpus.with_name("docs.vicinal"), corpus.with_name("v.parquet")
    for words in (
        ["index", corpus, *TINY],
        ["info", index],
        ["encode", corpus, "-o", vectors, *TINY],
        ["evaluate", collection, *TINY, "--mode", "dense"],
    ):
        assert "3 documents (128 were asked for)" in run_well(*words).stdout, words
    assert "asked for" not in run_well("evaluate", collection, *TINY, "--context-size", "3").stdout


def test_an_inert_context_is_told_at_once(clauses: Path, tmp_path: Path) -> None:
    run_well("index", clauses, "-o", tmp_path / "many.vicinal", *TINY)
    told = run_well("info", tmp_path / "many.vicinal").stdout
    assert re.search(r"^context .*against null: cosine 0\.\d+, \d+ % of the best 10 stay$", told, re.MULTILINE)
    one = write_jsonl(tmp_path / "one.jsonl", ROWS[:1])
    for told in (run_well("index", one, *TINY).stdout, run_well("info", tmp_path / "one.vicinal").stdout):
        assert re.search(r"1 document \(128 were asked for\).*100 % of the best 1 stay \(WARNING: .*inert\)", told)
    assert context_of(tmp_path / "one.vicinal")["effect"] == {"documents": 1, "cosine": 1.0, "top10": 1.0}


def test_info_measures_how_far_another_corpus_would_move_an_index(clauses: Path, corpus: Path, tmp_path: Path) -> None:
    index = tmp_path / "i.vicinal"
    run_well("index", clauses, "-o", index, *TINY)
    told = json.loads(run_well("info", index, "--against", corpus, "--json", "-").stdout)["against"]
    assert set(told) == {"corpus", "documents", "cosine", "top10"}
    assert told["corpus"] == str(corpus) and told["documents"] == 30
    assert 0 < told["cosine"] < 1 and told["top10"] < 1
    same = json.loads(run_well("info", index, "--against", clauses, "--json", "-").stdout)["against"]
    assert (same["cosine"], same["top10"]) == (1, 1), "the context of the same corpus is the same"
    assert re.search(
        rf"^against   {corpus}: cosine 0\.", run_well("info", index, "--against", corpus).stdout, re.MULTILINE
    )
    assert run_well("info", index, "--against", corpus, "--quiet").stderr == ""


def test_what_has_no_context_or_no_text_cannot_be_measured_against_another_corpus(
    clauses: Path, tmp_path: Path
) -> None:
    run_well("index", clauses, "-o", tmp_path / "null.vicinal", *TINY, "--context", "null")
    assert "without a context" in refusal("info", tmp_path / "null.vicinal", "--against", clauses)
    run_well("index", clauses, "-o", tmp_path / "mute.vicinal", *TINY, "--no-text")
    assert "--no-text" in refusal("info", tmp_path / "mute.vicinal", "--against", clauses)
    assert "nowhere" in refusal("info", tmp_path / "mute.vicinal", "--against", tmp_path / "nowhere.jsonl")


def test_evaluate_in_several_contexts_labels_each_and_gives_means_with_their_spread(
    clauses: Path, corpus: Path
) -> None:
    words = ["evaluate", clauses, *TINY, "--mode", "dense", "--mode", "bm25", "--context", "own", "--context", "null"]
    words += ["--context", corpus, "--context-size", "2", "--context-size", "3", "--seeds", "3"]
    result = json.loads(run_well(*words, "--json", "-").stdout)
    labels = ["own random 2", "own random 3", "null", f"{corpus} random 2", f"{corpus} random 3"]
    contexts = result["contexts"]
    assert set(contexts) == set(labels) and result["settings"]["contexts"] == labels
    for key in ("measures", "per_query", "modes", "context", "spread"):
        assert result[key] == contexts["own random 2"][key], "the first context's"
    assert result["measures"] == result["modes"]["dense"]["measures"]
    for label, size in zip(labels, (2, 3, 0, 2, 3), strict=True):
        draws, dense = contexts[label]["draws"], contexts[label]["modes"]["dense"]
        if label == "null":
            assert draws == [None] and "spread" not in dense
            continue
        assert [(draw["documents"], draw["seed"]) for draw in draws] == [(size, 0), (size, 1), (size, 2)]
        for name, (low, high) in dense["spread"].items():
            assert low <= dense["measures"][name] <= high
    assert len({draw["fingerprint"] for draw in contexts["own random 3"]["draws"]}) == 3, "seeds draw other documents"
    assert len({json.dumps(contexts[label]["modes"]["bm25"]["measures"]) for label in labels}) == 1
    told = run_well(*words).stdout
    assert len(re.findall(r"^bm25 ", told, re.MULTILINE)) == 1, "words know no context"
    for label in labels:
        assert len(re.findall(rf"^dense +{re.escape(label)} +\d+\.\d ", told, re.MULTILINE)) == 1
    assert "means over 3 draws" in told


def test_a_saved_context_is_measured_once_whatever_sizes_are_asked_for(
    clauses: Path, tmp_path: Path, tiny: vicinal.Encoder
) -> None:
    tiny.context(vicinal.Corpus.read(clauses), size=4).save(tmp_path / "c.safetensors")
    words = ["--context", tmp_path / "c.safetensors", "--context", "null", "--context-size", "2", "--context-size", "3"]
    result = json.loads(run_well("evaluate", clauses, *TINY, *words, "--seeds", "2", "--json", "-").stdout)
    assert {name: len(c["draws"]) for name, c in result["contexts"].items()} == {str(words[1]): 1, "null": 1}
    assert result["context"]["documents"] == 4


@pytest.mark.parametrize("context", ["own", "null"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--context-size", "0"], "a context of 0 documents"),
        (["--context-choice", "best"], "random, medoids, coverage, density"),
        (["--seed", "-1"], "the seed -1"),
        (["--seeds", "0"], "0 draws"),
    ],
)
def test_a_context_that_cannot_be_chosen_is_refused(
    clauses: Path, tmp_path: Path, context: str, words: list[str], said: str
) -> None:
    target = tmp_path / "target.parquet"
    verbs: list[list[object]] = [["evaluate", clauses]] if words[0] != "--seed" else []
    if words[0] != "--seeds":
        verbs += [["index", clauses, "-o", tmp_path / "i.vicinal"], ["encode", clauses, "-o", target]]
    for verb in verbs:
        assert said in refusal(*verb, *TINY, "--context", context, *words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("context", ["nowhere.jsonl", "nowhere.safetensors", "Own"])
def test_a_context_that_is_not_there_is_refused(clauses: Path, tmp_path: Path, context: str) -> None:
    for verb in (
        ["index", clauses, "-o", tmp_path / "i.vicinal"],
        ["encode", clauses, "-o", tmp_path / "v.parquet"],
        ["evaluate", clauses],
    ):
        assert context in refusal(*verb, *TINY, "--context", context)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [[], ["--context", "own"]])
def test_queries_have_no_context_of_their_own(corpus: Path, words: list[str]) -> None:
    target = corpus.with_name("v.parquet")
    said = refusal("encode", corpus, "-o", target, *TINY, "--as", "query", *words)
    assert "queries have no context of their own" in said and "--context CORPUS" in said
    assert not target.exists()


# --- search


def test_search_json_is_the_contract_s(built: Path) -> None:
    result = json.loads(run_well("search", built, "do cats purr", "-k", "2", "--json", "-").stdout)
    assert set(result) == {"query", "hits", "settings"}
    assert result["query"] == "do cats purr"
    assert len(result["hits"]) == 2
    first = result["hits"][0]
    assert set(first) == {"id", "score", "title", "text", "span", "metadata"}
    assert (first["id"], first["title"], first["metadata"]) == ("cats", "On cats", {"year": 1987})
    assert first["text"] == ROWS[0]["text"] and first["span"] == [0, len(ROWS[0]["text"])]
    assert result["settings"] | {"model": "tiny", "mode": "dense", "k": 2, "dim": 64} == result["settings"]


@pytest.mark.parametrize("mode", MODES)
def test_the_same_query_gives_the_same_bytes(built: Path, mode: str) -> None:
    words = ["search", built, "the day and the night", "--mode", mode, "--json", "-"]
    assert run_well(*words).stdout_bytes == run_well(*words).stdout_bytes


def test_the_command_line_finds_what_the_library_finds(built: Path) -> None:
    hits = json.loads(run_well("search", built, "rent", "--dim", "16", "--json", "-").stdout)["hits"]
    with vicinal.Index.open(built) as index:
        found = index.search("rent", dim=16)
    assert [(hit["id"], hit["score"]) for hit in hits] == [(hit.id, hit.score) for hit in found]


def test_an_empty_document_is_never_a_hit_and_more_hits_than_documents_are_no_mistake(built: Path) -> None:
    hits = json.loads(run_well("search", built, "anything", "-k", 10**12, "--json", "-").stdout)["hits"]
    assert {hit["id"] for hit in hits} == {"cats", "stars", "rent"}


def test_no_hits_are_no_mistake(built: Path) -> None:
    assert run_well("search", built, "xyzzy", "--mode", "bm25").stdout == "no hits\n"


@pytest.mark.parametrize("query", ["", "  \n", "\udcff"])
def test_a_query_that_is_no_text_is_refused(built: Path, query: str) -> None:
    for mode in MODES:
        assert "query" in refusal("search", built, query, "--mode", mode)


@pytest.mark.parametrize("query", ["cats\0purr", "\0", "purr " * 100_000, "\x1b[31m", "?", "🦇", "-- --"])
def test_an_odd_query_is_answered(built: Path, query: str) -> None:
    for mode in MODES:
        run_well("search", built, "--mode", mode, "--", query)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-k", "0"], "-k 0"),
        (["--dim", "65"], "--dim 65"),
        (["--dim", "16", "--mode", "bm25"], "--dim 16"),
        (["--mode", "sparse"], "dense, bm25, dense+bm25"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(built: Path, words: list[str], said: str) -> None:
    assert said in refusal("search", built, "cats", *words)


def test_documents_cannot_steer_the_terminal(tmp_path: Path) -> None:
    wicked = "\x1b]0;title\x07\x1b[2J [bold]x[/bold] \r\b\x9b31m \u202egnp.exe"
    rows = [{"id": f"id {wicked}", "title": f"title\n{wicked}", "text": f"text {wicked}", "key": wicked}]
    run_well("index", write_jsonl(tmp_path / "docs.jsonl", rows), "--model", "tiny")
    told = run_well("search", tmp_path / "docs.vicinal", "title").stdout
    assert "[bold]x[/bold]" in told
    assert len(told.splitlines()) == 2
    assert not [c for c in told if not c.isprintable() and c != "\n"]
    hit = json.loads(run_well("search", tmp_path / "docs.vicinal", "title", "--json", "-").stdout)["hits"][0]
    assert hit["id"] == rows[0]["id"], "JSON is for programs: it holds what the corpus holds"


def test_what_a_search_did_not_use_is_not_in_its_settings(built: Path) -> None:
    settings = json.loads(run_well("search", built, "cats", "--mode", "bm25", "--json", "-").stdout)["settings"]
    assert (settings["mode"], settings["model"], settings["dim"]) == ("bm25", None, None)


# --- encode and export


def read_vectors(path: Path) -> tuple[list[str], np.ndarray, dict[str, Any]]:
    table = parquet.read_table(path)
    vectors = np.array(table["vector"].to_pylist(), dtype=np.float32)
    return table["id"].to_pylist(), vectors, json.loads(table.schema.metadata[b"vicinal"])


@pytest.mark.parametrize("role", ["document", "query"])
def test_encode_writes_what_the_library_gives(corpus: Path, tiny: vicinal.Encoder, role: str) -> None:
    target = corpus.with_name("v.parquet")
    target.write_bytes(b"what stood there is replaced")
    words = ["encode", corpus, "-o", target, "--as", role, "--model", "tiny", "--precision", "fp32", "--dim", "16"]
    run_well(*words, "--context", "null")
    ids, vectors, about = read_vectors(target)
    texts = ["On cats Cats purr when they are content.", ROWS[1]["text"], f"Rent {ROWS[2]['text']}"]
    same = (tiny.encode_documents if role == "document" else tiny.encode_queries)(texts, dim=16).dense
    assert ids == ["cats", "stars", "rent", "nothing"]
    np.testing.assert_allclose(vectors[:3], same, atol=1e-6)
    assert not vectors[3].any(), "an empty document is never near anything"
    assert (about["role"], about["dim"], about["model"], about["context"]) == (role, 16, tiny.settings, None)
    run_well(*words, "--context", corpus)
    reader = tiny.with_context(tiny.context(vicinal.Corpus.read(corpus)))
    same = (reader.encode_documents if role == "document" else reader.encode_queries)(texts, dim=16).dense
    _, moved, about = read_vectors(target)
    np.testing.assert_allclose(moved[:3], same, atol=1e-6)
    assert np.abs(moved - vectors).max() > 1e-3
    assert reader.bound is not None and about["context"] == reader.bound.describe()


def test_encode_refuses_and_leaves_nothing(corpus: Path) -> None:
    target = corpus.with_name("v.parquet")
    assert "'answer'" in refusal("encode", corpus, "-o", target, "--model", "tiny", "--as", "answer")
    assert ".parquet" in refusal("encode", corpus, "-o", corpus.with_name("v.npy"), "--model", "tiny")
    assert "to be read and to be written" in refusal("encode", corpus, "-o", corpus, "--model", "tiny")
    assert list(corpus.parent.iterdir()) == [corpus]


def test_what_export_writes_is_the_same_corpus(built: Path, tmp_path: Path) -> None:
    run_well("export", built, "-o", tmp_path / "out.jsonl")
    original = vicinal.Corpus.read(built.with_name("docs.jsonl"))
    assert vicinal.Corpus.read(tmp_path / "out.jsonl").fingerprint() == original.fingerprint()


def test_exported_vectors_make_the_same_index(built: Path, tmp_path: Path, tiny: vicinal.Encoder) -> None:
    run_well("export", built, "-o", tmp_path / "out.parquet")
    ids, vectors, about = read_vectors(tmp_path / "out.parquet")
    assert ids == ["cats", "stars", "rent", "nothing"] and not vectors[3].any()
    np.testing.assert_allclose(np.linalg.norm(vectors[:3], axis=1), 1, atol=1e-6)
    assert about["model"] == tiny.settings
    row = parquet.read_table(tmp_path / "out.parquet").to_pylist()[0]
    assert (row["title"], row["text"], row["metadata"]) == ("On cats", ROWS[0]["text"], '{"year":1987}')
    reader = tiny.with_context(tiny.context(vicinal.Corpus.read(built.with_name("docs.jsonl"))))
    assert reader.bound is not None and about["context"] | reader.bound.describe() == about["context"]
    query = reader.encode_queries(["who pays rent"]).dense[0]
    with (
        vicinal.Index.from_vectors(tmp_path / "copy.vicinal", ids, vectors) as copy,
        vicinal.Index.open(built) as index,
    ):
        copied, found = copy.search_vector(query), index.search("who pays rent")
    assert [hit.id for hit in copied] == [hit.id for hit in found]
    np.testing.assert_allclose([h.score for h in copied], [h.score for h in found], atol=1e-3)


def test_nothing_is_exported_into_an_index(built: Path) -> None:
    assert "inside the index" in refusal("export", built, "-o", built / "out.jsonl")


# --- info, verify, models


def test_info_json_is_the_contract_s(built: Path) -> None:
    told = json.loads(run_well("info", built, "--json", "-").stdout)
    assert {"documents", "passages", "dim", "model", "context", "segments", "bytes", "format"} <= set(told)
    assert (told["documents"], told["passages"], told["dim"]) == (4, 3, 64)
    assert set(told["context"]) == {"fingerprint", "documents", "size", "choice", "seed", "effect", "made"}
    assert set(told["context"]["made"]) == {"precision", "device", "vicinal", "torch"}
    assert set(told["context"]["effect"]) == {"documents", "cosine", "top10"}
    assert [segment["context"] for segment in told["segments"]] == [told["context"]]
    assert told["model"]["name"] == "tiny"
    text = run_well("info", built).stdout
    assert "4 documents (1 empty)" in text and "tiny (64 dimensions, fp32)" in text


def test_verify_says_that_an_index_is_whole_and_names_strangers(built: Path, tmp_path: Path) -> None:
    index = shutil.copytree(built, tmp_path / "copy")
    (index / "stranger.txt").write_text("not ours", encoding="utf-8")
    told = run_well("verify", index).stdout
    assert "is whole" in told and "stranger.txt is not part of the index" in told
    result = json.loads(run_well("verify", index, "--json", "-").stdout)
    assert result["whole"] and result["problems"] == [] and result["strangers"] == [str(index / "stranger.txt")]


def test_verify_says_a_sentence_for_each_damaged_file(built: Path, tmp_path: Path) -> None:
    index = shutil.copytree(built, tmp_path / "copy")
    documents, rows = (next(index.rglob(name)) for name in ("documents.sqlite", "dense-000000.safetensors"))
    documents.unlink()
    content = bytearray(rows.read_bytes())
    content[-1] ^= 1
    rows.write_bytes(content)
    result = run("verify", index, "--json", "-")
    assert result.exit_code == 2
    assert not json.loads(result.stdout)["whole"]
    lines = result.stderr.splitlines()
    assert len(lines) == 2 and all(line.startswith("error: ") for line in lines)
    assert {name for name in ("documents.sqlite", "dense-000000.safetensors") for line in lines if name in line} == {
        "documents.sqlite",
        "dense-000000.safetensors",
    }


@pytest.mark.parametrize("verb", ["info", "verify", "search", "export"])
def test_what_is_no_index_is_refused_by_every_verb(tmp_path: Path, verb: str) -> None:
    more = {"search": ["cats"], "export": ["-o", tmp_path / "out.jsonl"]}.get(verb, [])
    assert "there is no index" in refusal(verb, tmp_path / "nowhere", *more)


def test_models_lists_the_default_and_every_shipped_one() -> None:
    told = json.loads(run_well("models", "--json", "-").stdout)
    assert {model["name"] for model in told["models"]} >= {told["default"], "tiny"}
    assert all(set(model) == {"name", "license", "bytes", "about"} for model in told["models"])
    assert cli.DEFAULT_MODEL in run_well("models").stdout


# --- training


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pairs and a model that was trained on them for three steps."""
    folder = tmp_path_factory.mktemp("trained")
    rows = [{"query": f"what is clause {n}", "document": f"Clause {n} says {n * n}."} for n in range(40)]
    write_jsonl(folder / "pairs.jsonl", [*rows, {"query": "q", "document": "d", "domain": "dnd_srd"}])
    told = run_well("train", folder / "pairs.jsonl", "-o", folder / "model", *SHORT)
    assert "left out" in told.stdout and "loss " in told.stdout
    assert f"next: vicinal evaluate COLLECTION --model {folder / 'model'}" in told.stdout
    return folder


SHORT = ("--recipe", "tiny_cpu", "--steps", "3", "--set", "meeting.pairs=8", "--set", "shown=4")


def test_a_trained_model_serves_every_verb(trained: Path, collection: Path, tmp_path: Path) -> None:
    model = ("--model", trained / "model", "--precision", "fp32")
    run_well("index", collection, "-o", tmp_path / "i.vicinal", *model)
    assert "attention" in run_well("info", tmp_path / "i.vicinal").stdout
    assert json.loads(run_well("search", tmp_path / "i.vicinal", "do cats purr", "--json", "-").stdout)["hits"]
    result = json.loads(run_well("evaluate", collection, "--mode", "dense", *model, "--json", "-").stdout)
    assert 0 <= result["measures"]["nDCG@10"] <= 1


def test_train_refuses_what_it_cannot_do_and_resumes_what_it_can(trained: Path, tmp_path: Path) -> None:
    words = ("train", trained / "pairs.jsonl", "-o", trained / "model", *SHORT)
    assert "go on with --resume" in refusal(*words)
    told = json.loads(run_well(*words, "--resume", "--json", "-").stdout)
    assert told["steps"] == 3 and told["run"]["meeting"]["pairs"] == 8 and told["pairs"]["rows"] == 40
    assert "did you mean 'learning_rate'" in refusal(*words[:3], tmp_path / "m", "--set", "learning_rat=1")
    assert "expected field=value" in refusal(*words[:3], tmp_path / "m", "--set", "learning_rate")
    assert "did you mean 'tiny_cpu'" in refusal(*words[:3], tmp_path / "m", "--recipe", "tiny")
    assert list(tmp_path.iterdir()) == []


def test_batches_show_a_batch_and_plot_how_hard_they_are(trained: Path, tmp_path: Path) -> None:
    words = ("batches", "show", trained / "pairs.jsonl", "--size", 8, "--engine", "torch")
    told = run_well(*words, "--batch", 2, "--plot", tmp_path / "hard.png").stdout
    assert told.startswith("batch 2 of 5: 8 pairs of pairs\n") and told.count("Clause ") == 8
    assert (tmp_path / "hard.png").read_bytes().startswith(b"\x89PNG")
    seen = json.loads(run_well(*words, "--json", "-").stdout)
    assert seen["batch"] == 0 and len(seen["pairs"]) == 8
    assert "an epoch has 5 batches" in refusal(*words, "--batch", 5)


def test_selfcheck_shows_what_it_found_and_fails_where_gradients_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    result = json.loads(run_well("selfcheck", "--set", "attention=two-way", "--json", "-").stdout)
    assert result["held"] and result["encoder"]["attention"] == "two-way"
    monkeypatch.setattr("vicinal.chunked.Chunks.replay", lambda self, gradient: None)
    failed = run("selfcheck")
    assert failed.exit_code == 2 and "do not train with this configuration" in failed.stderr


# --- check-data

PAIRS = [
    {"query": "do cats purr", "document": "Cats purr when they are content, and now and then when they are not."},
    {"query": "do cats purr", "document": "Nobody knows why they do.", "negatives": ["Dogs bark."], "scores": [1, 0]},
    {
        "query": "who pays the rent",
        "document": "The tenant pays the rent on the first day of a month.",
        "domain": "law",
    },
    {"query": "", "document": "nobody asked", "domain": "law"},
]


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "pets.jsonl", PAIRS)


def test_check_data_json_is_the_report_of_the_library(pairs: Path, collection: Path) -> None:
    from vicinal.index.words import detect
    from vicinal.pairs import Pairs, check, texts_of

    result = json.loads(run_well("check-data", pairs, "--against", collection, "--json", "-").stdout)
    language = {"none": None}
    against = {collection.name: texts_of(collection)}
    same = check(Pairs.read(pairs), against, language_of=lambda text: language.get(found := detect([text]), found))
    assert result == same
    assert set(result) == {"name", "fingerprint", "counts", "all", "domains", "against", "examples"}
    assert list(result["domains"]) == ["law", "pets"] and result["all"]["pairs"] == 3
    assert result["all"]["leaks"]["collections"][collection.name]["pairs"] == 1


def test_check_data_shows_a_row_for_each_domain_and_says_what_it_found(pairs: Path, collection: Path) -> None:
    told = run_well("check-data", pairs, "--against", collection).stdout
    assert "3 pairs in 2 domains from 4 rows: 1 row with an empty query or document left out; 1 with negatives" in told
    assert re.search(r"^domain +language +pairs ", told, re.MULTILINE)
    assert re.search(r"^law +english 100 % +1 +4 +12 +12 +1 +0 +0 +0 +1$", told, re.MULTILINE)
    assert re.search(r"^all +english 100 % +3 .* 1$", told, re.MULTILINE)
    assert f"leaks: 1 pair (33.33 %) share words with {collection.name}, 0 by the query and 1 by the document" in told
    assert "row 0, document: the tenant pays the rent on the first" in told
    assert run_well("check-data", pairs, "--quiet").output == ""


def test_check_data_leaves_out_what_is_asked_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "pairs").mkdir()
    for domain in ("code_ruby", "pets", "law"):
        write_jsonl(tmp_path / "pairs" / f"{domain}.jsonl", PAIRS[:1])
    told = json.loads(run_well("check-data", tmp_path / "pairs", "--json", "-").stdout)
    assert list(told["domains"]) == ["code_ruby", "law", "pets"], "not even what is kept for choosing"
    words = ["--leave-out", "code_ruby", "--leave-out", "law"]
    told = json.loads(run_well("check-data", tmp_path / "pairs", *words, "--json", "-").stdout)
    assert list(told["domains"]) == ["pets"] and told["counts"]["left_out"] == {"code_ruby": 1, "law": 1}


def test_collections_of_one_name_are_told_apart_by_their_paths(pairs: Path, collection: Path, tmp_path: Path) -> None:
    other = shutil.copytree(collection, tmp_path / "other" / collection.name)
    words = ["--against", collection, "--against", other, "--json", "-"]
    assert set(json.loads(run_well("check-data", pairs, *words).stdout)["against"]) == {str(collection), str(other)}


# --- evaluate and compare


def test_evaluate_json_is_the_contract_s(collection: Path) -> None:
    words = ["evaluate", collection, "--model", "tiny", "--mode", "bm25", "--mode", "dense", "--json", "-"]
    result = json.loads(run_well(*words).stdout)
    assert {"measures", "modes", "per_query", "context", "seconds", "settings"} <= set(result)
    assert list(result["modes"]) == ["bm25", "dense"]
    assert result["measures"] == result["modes"]["bm25"]["measures"], "the first mode's"
    assert result["measures"]["nDCG@10"] == 1.0, "a fraction of 1"
    assert result["per_query"]["nDCG@10"] == {"q1": 1.0, "q2": 1.0}


def test_evaluate_shows_a_table_of_hundredths(collection: Path) -> None:
    told = run_well("evaluate", collection, "--model", "tiny").stdout
    assert re.search(r"^x 100 +context +nDCG@10 +MRR@10", told, re.MULTILINE)
    assert re.search(r"^dense +own +\d+\.\d ", told, re.MULTILINE)
    assert re.search(r"^bm25 +100\.0 ", told, re.MULTILINE), "words know no context"
    assert "2 queries, 4 documents (1 empty)" in told and "seconds: " in told


def test_words_alone_need_no_model(collection: Path) -> None:
    run_well("evaluate", collection, "--mode", "bm25", "--model", "nonesuch")


def test_compare_json_is_the_contract_s(collection: Path, tmp_path: Path) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    run_well("evaluate", collection, "--mode", "bm25", "--json", a)
    run_well("evaluate", collection, "--mode", "dense", "--model", "tiny", "--json", b)
    result = json.loads(run_well("compare", a, b, "--measure", "map", "--json", "-").stdout)
    assert result["measure"] == "MAP"
    (pair,) = result["pairs"]
    assert {"a", "b", "difference", "p", "queries"} <= set(pair)
    assert (pair["a"], pair["b"], pair["queries"]) == (str(a), str(b), 2)
    assert "95 % interval" in run_well("compare", a, b).stdout


def test_compare_refuses_what_is_no_result(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("{", encoding="utf-8")
    assert "not JSON" in refusal("compare", path)
    assert "was given twice" in refusal("compare", path, path)
    path.write_text("[]", encoding="utf-8")
    assert "vicinal evaluate" in refusal("compare", path)
    for other in (tmp_path / "nowhere.json", tmp_path):
        assert f"{other} cannot be read" in refusal("compare", other)


# --- --json


def test_json_to_a_file_replaces_it_and_leaves_the_screen_to_people(built: Path, tmp_path: Path) -> None:
    target = tmp_path / "hits.json"
    target.write_text("old", encoding="utf-8")
    told = run_well("search", built, "cats", "--json", target).stdout
    assert "On cats" in told
    assert target.read_text(encoding="utf-8") == run_well("search", built, "cats", "--json", "-").stdout
    assert list(tmp_path.iterdir()) == [target]


def test_verbs_that_write_files_report_what_they_wrote(corpus: Path) -> None:
    index, vectors, out = (corpus.with_name(name) for name in ("docs.vicinal", "v.parquet", "out.jsonl"))
    told = json.loads(run_well("index", corpus, "--model", "tiny", "--json", "-").stdout)
    assert {"index", "is_new", "seconds"} <= set(told) and told["counts"]["empty"] == 1
    assert (told["index"], told["is_new"]) == (str(index), True)
    told = json.loads(run_well("encode", corpus, "-o", vectors, "--model", "tiny", "--dim", "8", "--json", "-").stdout)
    assert set(told) == {"vectors", "role", "model", "context", "counts"}
    assert (told["vectors"], told["model"]["dim"], told["counts"]["documents"]) == (str(vectors), 8, 4)
    told = json.loads(run_well("export", index, "-o", out, "--json", "-").stdout)
    assert told == {"file": str(out), "documents": 4}


def test_json_that_could_not_be_written_is_refused_before_any_work(built: Path, tmp_path: Path) -> None:
    for target in (tmp_path, tmp_path / "no folder" / "hits.json", Path("/dev/null")):
        if target.exists() or not target.parent.exists():
            result = run("search", built, "cats", "--json", target)
            assert result.exit_code == 2 and "--json" in result.stderr and not result.stdout


def test_json_keeps_every_letter_whatever_the_terminal_can_show(built: Path) -> None:
    runner = CliRunner(charset="latin-1")
    result = runner.invoke(cli.app, ["search", str(built), "night", "--mode", "bm25", "--json", "-"])
    assert json.loads(result.stdout_bytes.decode("utf-8"))["hits"][0]["metadata"] == {"tags": ["sky", "été"]}


# --- Progress


def test_progress_is_told_on_standard_error_and_quiet_silences_it(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen, "LINE_SECONDS", 0)
    result = run_well("index", corpus, "--model", "tiny")
    assert re.search(r"^encoding: 4 of 4, 0 s left$", result.stderr, re.MULTILINE)
    assert "encoding" not in result.stdout
    assert run_well("verify", corpus.with_name("docs.vicinal"), "--quiet").stderr == ""


def test_a_bar_is_drawn_on_a_terminal_and_wiped_off(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with screen.progress_on_stderr()("encoding", 10) as advance:
        advance(5)
        time.sleep(0.2)
    assert "encoding" in terminal.getvalue() and "50 %" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2K"), "the last thing it does is to clear its line"


# --- How it ends.


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (CorpusError("one sentence"), 2, "error: one sentence"),
        (DamagedIndex("restore it"), 2, "error: restore it"),
        (MissingExtra("ann", "a graph"), 2, "error: a graph needs the extra 'ann'"),
        (OSError(28, "No space left on device"), 2, "error: the disk is full"),
        (PermissionError(13, "Permission denied", "x"), 2, "error: no permission"),
        (KeyboardInterrupt(), 130, "interrupted; run the same command again to go on"),
        (cli.Terminated(), 143, "interrupted"),
        (BrokenPipeError(), 141, ""),
        (MemoryError("12 TiB"), 2, "error: the memory is full"),
        (InternalError("broken promise"), 1, "a bug of vicinal"),
        (ZeroDivisionError("division by zero"), 1, "a bug of vicinal"),
    ],
)
def test_every_ending_has_its_exit_code(
    error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as stop, cli.ended():
        raise error
    told = capsys.readouterr().err
    assert stop.value.exit_code == code
    assert said in told and bool(told) == bool(said)
    assert ("Traceback" in told) == (code == 1)


def test_errors_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), cli.ended():
        raise CorpusError("a\x1b[2Jb\nerror: forged")
    assert capsys.readouterr().err == "error: a�[2Jb error: forged\n"


def test_bytes_that_are_no_text_are_refused_in_a_sentence() -> None:
    program = start("search", "docs.vicinal", b"\xff\xfe")
    out, err = program.communicate(timeout=60)
    assert program.returncode == 2 and not out
    assert err.startswith(b"error: argument 3") and err.count(b"\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_index_goes_on_when_run_again(tmp_path: Path, number: signal.Signals, code: int) -> None:
    rows = [{"text": f"document {n} " + "about this and that " * 4} for n in range(2000)]
    words = ["index", write_jsonl(tmp_path / "docs.jsonl", rows), "--model", "tiny", "--precision", "fp32"]
    program = start(*words)
    partial = tmp_path / ".docs.vicinal.partial"
    while not (partial / "index").exists():  # from here on, there is something to take up
        assert program.poll() is None, program.communicate()
        time.sleep(0.01)
    program.send_signal(number)
    _, err = program.communicate(timeout=120)
    assert (program.returncode, err) == (
        code,
        b"interrupted; run the same command again to go on (train: with --resume)\n",
    )
    assert not (tmp_path / "docs.vicinal").exists() and partial.exists()
    assert "2,000 documents" in run_well(*words).stdout
    run_well("verify", tmp_path / "docs.vicinal")
    assert not partial.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="pipes and /dev/full are POSIX's")
def test_a_closed_pipe_is_quiet_and_a_full_disk_is_said() -> None:
    with start("models") as program:
        assert program.stdout is not None and program.stderr is not None
        program.stdout.close()
        assert (program.stderr.read(), program.wait(timeout=60)) == (b"", 141)
    if Path("/dev/full").exists():
        command = [sys.executable, "-m", "vicinal", "models"]
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
        assert (
            done.returncode == 2
            and done.stderr.startswith(b"error: the disk is full")
            and done.stderr.count(b"\n") == 1
        )


def test_help_is_there_at_once(record_property: Any) -> None:
    def seconds() -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "vicinal", "--help"], stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - began

    best = min(seconds() for _ in range(3))
    record_property("help_seconds", round(best, 3))
    assert best < 0.5, f"{best:.2f} s"
