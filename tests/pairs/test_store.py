"""What pairs promise, whatever they lie in. What becomes of broken files is in test_threats.py."""

from __future__ import annotations

import dataclasses
import gc
import gzip
import io
import json
import random
import subprocess
import sys
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vicinal.errors import InputError, PairsError
from vicinal.pairs import KEPT_FOR_CHOOSING, Pair, PairCounts, Pairs, pair_of, store

Row = dict[str, Any]

ROWS: list[Row] = [
    {
        "query": "do cats purr",
        "document": "Cats purr.",
        "domain": "pets",
        "negatives": ["Dogs bark."],
        "scores": [9, 0.5],
    },
    {
        "query": "who pays",
        "document": "lines\none\r\ntwo\u2028three \0 🦇",
        "domain": "law",
        "negatives": [],
        "scores": None,
    },
    {"query": "do dogs bark", "document": "ﬁ Dogs bark.", "domain": "pets", "negatives": None, "scores": [1.5]},
    {"query": " ", "document": "Nobody asked.", "domain": "law", "negatives": None, "scores": None},
    {"query": "an answer?", "document": None, "domain": "pets", "negatives": None, "scores": None},
    {"query": "of no domain", "document": "d", "domain": None, "negatives": ["a", "b"], "scores": None},
]


def as_jsonl(rows: Iterable[Row]) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def as_parquet(rows: Iterable[Row], **options: Any) -> bytes:
    sink = io.BytesIO()
    schema = pyarrow.schema([*store.SCHEMA, ("domain", pyarrow.string())])
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=schema), sink, **options)
    return sink.getvalue()


def as_zst(content: bytes) -> bytes:
    return bytes(pyarrow.compress(content, codec="zstd", asbytes=True))


CONTAINERS: dict[str, Callable[[Iterable[Row]], bytes]] = {
    "train.jsonl": as_jsonl,
    "train.ndjson": as_jsonl,
    "train.json": as_jsonl,
    "train.jsonl.gz": lambda rows: gzip.compress(as_jsonl(rows)),
    "train.jsonl.zst": lambda rows: as_zst(as_jsonl(rows)),
    "train.parquet": as_parquet,
    "train.PARQUET": lambda rows: as_parquet(rows, row_group_size=2),
}


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def expected(rows: Iterable[Row], domain: str = "") -> list[Pair]:
    """The policy, written out: what is empty is left out, domains go by name, and inside of each rows keep order."""
    pairs = [
        Pair(
            row["query"],
            row["document"],
            tuple(row.get("negatives") or ()),
            tuple(map(float, row.get("scores") or ())),
            row.get("domain") or domain,
        )
        for row in rows
        if (row["query"] or "").strip() and (row["document"] or "").strip()
    ]
    return sorted(pairs, key=lambda pair: pair.domain)


# --- The same rows are the same pairs.


@pytest.mark.parametrize("name", CONTAINERS)
def test_the_same_rows_are_the_same_pairs_and_fingerprint_in_every_container(name: str, tmp_path: Path) -> None:
    pairs = Pairs.read(written(tmp_path / name, CONTAINERS[name](ROWS)))
    assert list(pairs) == expected(ROWS, "train")
    named = [row | {"domain": row["domain"] or "train"} for row in ROWS]
    assert pairs.fingerprint == Pairs.read(named).fingerprint == Pairs.read(expected(named)).fingerprint
    assert pairs.domains == {"law": range(1), "pets": range(1, 3), "train": range(3, 4)}


@pytest.mark.parametrize("source", [iter(ROWS), (row for row in ROWS), tuple(ROWS), expected(ROWS)], ids=range(4))
def test_the_same_rows_are_the_same_pairs_without_a_file(source: Iterable[Any]) -> None:
    pairs = Pairs.read(source)
    assert list(pairs) == list(pairs) == expected(ROWS)
    assert pairs.fingerprint == Pairs.read(ROWS).fingerprint


def test_a_hugging_face_dataset_is_read_as_its_rows() -> None:
    datasets = pytest.importorskip("datasets")
    for dataset in (datasets.Dataset.from_list(ROWS), datasets.Dataset.from_list(ROWS).to_iterable_dataset()):
        assert list(Pairs.read(dataset)) == expected(ROWS)
    with pytest.raises(PairsError, match=r"one mapping was given .with 'train'.: .* one split"):
        Pairs.read(datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS)))


TEXT = st.text(max_size=12)
FULL = TEXT.filter(str.strip)


@st.composite
def row_of(draw: Callable[..., Any]) -> Row:
    negatives = draw(st.none() | st.lists(FULL, max_size=3))
    number = st.floats(allow_nan=False, allow_infinity=False)
    count = 1 + len(negatives or ())
    return {
        "query": draw(st.none() | TEXT),
        "document": draw(TEXT),
        "negatives": negatives,
        "scores": draw(st.none() | st.lists(number, min_size=count, max_size=count)),
        "domain": draw(st.none() | st.sampled_from(["", "a", "b", "été"])),
    }


@settings(max_examples=40, deadline=None)
@given(st.lists(row_of(), max_size=8).map(lambda rows: [*rows, ROWS[0]]), st.sampled_from(sorted(CONTAINERS)))
def test_what_is_written_is_read_back(rows: list[Row], name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pairs = Pairs.read(written(Path(folder) / name, CONTAINERS[name](rows)))
        wanted = expected(rows, "train")
        assert list(pairs) == wanted
        assert pairs.fingerprint == Pairs.read(wanted).fingerprint
        assert len(pairs) == len(wanted) == sum(map(len, pairs.domains.values()))


def test_a_folder_is_its_files_each_a_domain_by_its_name_unless_a_row_says_otherwise(tmp_path: Path) -> None:
    written(tmp_path / "b.jsonl.gz", gzip.compress(as_jsonl([{"query": "1", "document": "b"}])))
    written(
        tmp_path / "a.parquet",
        as_parquet([{"query": "2", "document": "a"}, {"query": "3", "document": "a", "domain": "b"}]),
    )
    written(tmp_path / "a.jsonl", as_jsonl([{"query": "4", "document": "a"}]))
    written(tmp_path / ".c.jsonl", b"{")
    written(tmp_path / "README.md", b"what it is")
    (tmp_path / "d.jsonl").mkdir()
    pairs = Pairs.read(tmp_path)
    assert [(pair.domain, pair.query) for pair in pairs] == [("a", "4"), ("a", "2"), ("b", "3"), ("b", "1")]
    assert pairs.counts.ignored_files == 2


def test_a_single_file_is_a_domain_of_its_name(tmp_path: Path) -> None:
    path = written(tmp_path / "covid.faq.jsonl.zst", as_zst(as_jsonl([{"query": "q", "document": "d"}])))
    assert list(Pairs.read(path).domains) == list(Pairs.read(str(path)).domains) == ["covid.faq"]


def test_in_which_order_domains_come_changes_nothing() -> None:
    rows = [{"query": f"q{n}", "document": f"d{n}", "domain": "abc"[n % 3]} for n in range(30)]
    grouped = sorted(rows, key=lambda row: row["domain"], reverse=True)
    assert Pairs.read(rows).fingerprint == Pairs.read(grouped).fingerprint
    assert list(Pairs.read(rows)) == list(Pairs.read(grouped))


def test_the_fingerprint_tells_everything_apart_that_went_in() -> None:
    pair = Pair("q", "d", ("n", "m"), (1.0, 0.5, 0.25), "x")
    others = [
        [pair, pair],
        [dataclasses.replace(pair, query="qd", document="d")],
        [dataclasses.replace(pair, query="q", document="dd")],
        [dataclasses.replace(pair, query="qd", document="n", negatives=("m", "d"))],
        [dataclasses.replace(pair, negatives=("nm",), scores=(1.0, 0.5))],
        [dataclasses.replace(pair, negatives=("m", "n"))],
        [dataclasses.replace(pair, scores=(1.0, 0.5, 0.5))],
        [dataclasses.replace(pair, scores=())],
        [dataclasses.replace(pair, domain="y")],
    ]
    prints = [Pairs.read([pair, *other]).fingerprint for other in others]
    assert len({Pairs.read([pair]).fingerprint, *prints}) == len(others) + 1
    one, two = dataclasses.replace(pair, query="other"), pair
    assert Pairs.read([one, two]).fingerprint != Pairs.read([two, one]).fingerprint, "order counts inside a domain"


# --- Any rows, at once.


@pytest.mark.parametrize("characters", [1, 500, 1 << 20])
def test_any_rows_are_taken_in_the_order_given(characters: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BATCH_CHARACTERS", characters)
    monkeypatch.setattr(store, "BLOCK_ROWS", 7)
    noise = random.Random(0)
    rows = [{"query": f"q{n}", "document": f"d{n} " * 9, "domain": noise.choice("cab")} for n in range(200)]
    pairs, all_rows = Pairs.read(rows), expected(rows)
    assert list(pairs) == all_rows
    asked = noise.choices(range(200), k=300)
    for some in (asked, np.array(asked, dtype=np.uint8), tuple(asked), range(199, -1, -3), []):
        assert pairs.take(some) == [all_rows[row] for row in some]
        assert pairs.column("query", some) == [all_rows[row].query for row in some]
        assert pairs.column("document", some) == [all_rows[row].document for row in some]
    for domain, numbers in pairs.domains.items():
        assert {pair.domain for pair in pairs.take(numbers)} == {domain}
    assert list(pairs.domains) == ["a", "b", "c"] and len(pairs) == 200


@pytest.mark.parametrize("row", [-1, 4, 2**40])
def test_a_row_that_is_not_there_is_refused(row: int) -> None:
    pairs = Pairs.read(ROWS)
    with pytest.raises(IndexError, match=rf"there is no row {row}: the list holds 4 pairs"):
        pairs.take([0, row])
    with pytest.raises(IndexError, match="no row"):
        pairs.column("query", [row])
    with pytest.raises(TypeError, match="float64"):
        pairs.take([0.0])  # type: ignore[list-item]


# --- The shuffle.


def many(count: int) -> Pairs:
    return Pairs.read({"query": str(n), "document": "d"} for n in range(count))


def test_a_shuffle_is_a_permutation_and_each_epoch_and_seed_has_its_own() -> None:
    pairs = many(2000)
    orders = [pairs.shuffled(seed, epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0), (11, 0), (1, 10))]
    for order in orders:
        assert sorted(order.tolist()) == list(range(2000))
    for number, one in enumerate(orders):
        for two in orders[:number]:
            assert (one == two).sum() < 12  # of which 1 is expected
    assert pairs.shuffled(0, 1).tolist() == orders[1].tolist()


def test_a_shuffle_is_fair() -> None:
    pairs = many(10)
    places = np.zeros((10, 10))
    for epoch in range(2000):
        places[pairs.shuffled(3, epoch), range(10)] += 1
    assert np.abs(places - 200).max() < 65  # 4.8 standard deviations of a fair one
    followed = Counter(tuple(pairs.shuffled(4, epoch)[:2].tolist()) for epoch in range(2000))
    assert len(followed) == 90 and max(followed.values()) < 50  # of 22 expected


def test_a_shuffle_is_the_same_in_another_process_and_for_ever() -> None:
    program = (
        "from vicinal.pairs import Pairs\n"
        "print(Pairs.read({'query': str(n), 'document': 'd'} for n in range(12)).shuffled(5, 2).tolist())"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    # By the definition of SplitMix64, in Python's own integers.
    start, mask = store.hash64("5 2"), 2**64 - 1
    numbers = []
    for row in range(1, 13):
        z = (start + row * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        numbers.append(z ^ (z >> 31))
    assert json.loads(told) == many(12).shuffled(5, 2).tolist() == sorted(range(12), key=numbers.__getitem__)


def test_training_goes_on_from_any_place_of_a_shuffle() -> None:
    pairs = many(50)
    whole = [pair.query for pair in pairs.take(pairs.shuffled(0, 3))]
    for place in (0, 1, 17, 49, 50):
        rest = many(50)
        assert [pair.query for pair in rest.take(rest.shuffled(0, 3)[place:])] == whole[place:]


# --- What is counted, left out and refused.


def test_every_row_is_counted_once() -> None:
    rows: list[Any] = [*ROWS, {"query": 5}, {"query": "q", "document": "d", "domain": "kept"}]
    pairs = Pairs.read(rows, leave_out=["kept", "not there"], skip_bad_rows=True)
    counts = pairs.counts
    assert counts == PairCounts(
        rows=8,
        pairs=4,
        domains=3,
        empty={"law": 1, "pets": 1},
        skipped=1,
        left_out={"kept": 1},
        with_negatives=2,
        with_scores=2,
    )
    assert counts.rows == counts.pairs + counts.skipped + sum(counts.empty.values()) + sum(counts.left_out.values())
    assert str(counts) == (
        "4 pairs in 3 domains from 8 rows: 2 rows with an empty query or document left out, 1 row skipped, "
        "1 row of kept left out; 2 with negatives; 2 with scores"
    )
    assert counts.as_dict()["left_out"] == {"kept": 1}


def test_what_is_left_out_changes_nothing_else() -> None:
    without = [row for row in ROWS if row["domain"] != "pets"]
    assert Pairs.read(ROWS, leave_out={"pets"}).fingerprint == Pairs.read(without).fingerprint
    assert list(Pairs.read(ROWS, leave_out={"pets"})) == expected(without)


def test_a_name_to_leave_out_that_is_misspelt_can_be_refused() -> None:
    pairs = Pairs.read(ROWS, leave_out=["law", "pet"])
    pairs.check_left_out(["law"])
    with pytest.raises(PairsError, match=r"no domain 'pet' to leave out: did you mean 'pets'\?"):
        pairs.check_left_out(["law", "pet"])
    with pytest.raises(PairsError, match="its domains are '', 'pets'"):
        pairs.check_left_out(["zoology"])
    with pytest.raises(InputError, match="one text was given to leave out"):
        Pairs.read(ROWS, leave_out="pets")


def test_ten_domains_are_kept_for_choosing_under_the_names_that_they_have(test_data: Path) -> None:
    there = {path.stem for path in (test_data / "data" / "pairs").glob("*.parquet")}
    assert len(set(KEPT_FOR_CHOOSING) & there) == len(KEPT_FOR_CHOOSING) == 10


GOOD = {"query": "q", "document": "d"}


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("pairs.jsonl", r'is of type str where an object such as \{"query": "...", "document": "..."\} was expected'),
        ({"query": "q", "text": "d"}, r"has no 'document' \(but 'query', 'text'\)"),
        ({}, r"has no 'query' \(but nothing\)"),
        (GOOD | {"query": 5}, "holds a value of type int under 'query' where text was expected"),
        (GOOD | {"document": ["d"]}, "holds a value of type list under 'document'"),
        (GOOD | {"document": "\ud800"}, "holds bytes or escapes under 'document' that are no text in UTF-8"),
        (GOOD | {"domain": 3}, "holds a value of type int under 'domain'"),
        (GOOD | {"negatives": "n"}, "holds a value of type str under 'negatives' where a list was expected"),
        (GOOD | {"negatives": [3]}, "holds a value of type int under 'negatives' where text was expected"),
        (GOOD | {"negatives": ["n", " "]}, "holds an empty text among its 'negatives'"),
        (GOOD | {"negatives": [None]}, "holds an empty text among its 'negatives'"),
        (GOOD | {"negative": ["n"]}, "holds a value of type list under 'negative' where text was expected"),
        (GOOD | {"negative": "n", "negatives": ["m"]}, "has both 'negative' and 'negatives'"),
        (GOOD | {"scores": 1.0}, "holds a value of type float under 'scores' where a list was expected"),
        (GOOD | {"scores": ["1"]}, "holds a value of type str among its 'scores' where a number was expected"),
        (GOOD | {"scores": [True]}, "holds a value of type bool among its 'scores'"),
        (GOOD | {"scores": [float("nan")]}, "holds nan among its 'scores', which no teacher gives"),
        (GOOD | {"scores": [10**400]}, "holds a number among its 'scores' that is beyond all floats"),
        (GOOD | {"scores": [1, 2]}, "holds 2 scores where 1 was expected: the document's, then .* 0 negatives"),
        (GOOD | {"negatives": ["n"], "scores": [1]}, "holds 1 score where 2 were expected: .* 1 negative:"),
        (Pair("q", "d", scores=(1.0, 2.0)), "holds 2 scores where 1 was expected"),
    ],
    ids=lambda part: part if isinstance(part, str) else type(part).__name__,
)
def test_a_row_that_is_no_pair_is_refused_or_skipped(row: Any, why: str) -> None:
    rows = [GOOD, row, GOOD]
    with pytest.raises(PairsError, match=rf"the list, row 1 \(counted from 0\) {why}.*--skip-bad-rows"):
        Pairs.read(rows)
    pairs = Pairs.read(rows, skip_bad_rows=True)
    assert (len(pairs), pairs.counts.rows, pairs.counts.skipped) == (2, 3, 1)


def test_one_negative_may_stand_under_its_own_name_and_nothing_is_no_negative() -> None:
    assert pair_of(GOOD | {"negative": "n"}).negatives == ("n",)
    for nothing in ({"negative": None}, {"negative": " "}, {"negatives": []}, {"negatives": None, "scores": []}):
        assert pair_of(GOOD | nothing) == Pair("q", "d")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (GOOD, "one mapping was given"),
        (Pair("q", "d"), "a Pair was given: expected a path, or rows"),
        (b"pairs.jsonl", "a bytes was given"),
        (5, "a int was given"),
        (None, "a NoneType was given"),
        ("", "an empty path was given"),
    ],
    ids=repr,
)
def test_what_is_neither_a_path_nor_rows_is_refused_at_the_door(source: Any, why: str) -> None:
    with pytest.raises(PairsError, match=why):
        Pairs.read(source)


@pytest.mark.parametrize(
    ("rows", "how", "why"),
    [
        ([], {}, "0 pairs in 0 domains from 0 rows"),
        ([GOOD | {"query": ""}], {}, "1 row with an empty query or document left out"),
        ([{}], {"skip_bad_rows": True}, "1 row skipped, the first bad one: row 0 .counted from 0. has no 'query'"),
        ([GOOD | {"domain": "a"}], {"leave_out": ["a"]}, "1 row of a left out"),
    ],
)
def test_no_pairs_are_refused_with_the_reason(rows: list[Row], how: dict[str, Any], why: str) -> None:
    with pytest.raises(PairsError, match=f"the list holds no pairs .*{why}.*: give at least one"):
        Pairs.read(rows, **how)


# --- The file behind it.


def test_what_was_read_needs_its_source_no_more(tmp_path: Path) -> None:
    path = written(tmp_path / "train.jsonl", as_jsonl(ROWS))
    pairs = Pairs.read(path)
    path.unlink()
    assert list(pairs) == expected(ROWS, "train")


def test_the_temporary_file_goes_with_the_pairs_and_not_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pairs = Pairs.read(ROWS)
    left: Iterator[Pair] = iter(pairs)
    del pairs
    gc.collect()
    assert [path.name for path in tmp_path.rglob("*.arrow")] == ["pairs.arrow"]
    assert list(left) == expected(ROWS)
    del left
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_a_failed_reading_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def rows() -> Iterator[Row]:
        yield GOOD
        raise OSError("the network is gone")

    for source in ([GOOD, {}], rows(), []):
        with pytest.raises((PairsError, OSError)):
            Pairs.read(source)
        assert not list(tmp_path.iterdir())


def test_an_error_of_the_rows_own_is_passed_on() -> None:
    def rows() -> Iterator[Row]:
        yield GOOD
        raise OSError("the network is gone")

    with pytest.raises(OSError, match="the network is gone") as caught:
        Pairs.read(rows())
    assert not isinstance(caught.value, PairsError)


@pytest.mark.parametrize("kind", ["generator", "train.jsonl.gz", "train.parquet"])
def test_memory_is_flat(kind: str, tmp_path: Path) -> None:
    noise = random.Random(0)
    rows: Iterable[Row] = (
        {"query": f"q{n}", "document": f"{noise.getrandbits(10_000):x}", "domain": f"d{n % 50}"} for n in range(8_000)
    )  # 20 MB in 50 domains, one row of each after another
    source = rows if kind == "generator" else written(tmp_path / kind, CONTAINERS[kind](rows))
    gc.collect()
    arrow = pyarrow.total_allocated_bytes()
    tracemalloc.start()
    pairs = Pairs.read(source)
    for start in range(0, len(pairs), 500):
        pairs.take(pairs.shuffled(0, 0)[start : start + 500])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6_000_000
    assert pyarrow.total_allocated_bytes() - arrow < 4_000_000, "what lies in the file is mapped, and not copied"


def test_a_full_disk_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    opened = store.ipc.new_file
    monkeypatch.setattr(store.ipc, "new_file", lambda path, schema: opened("/dev/full", schema))
    with pytest.raises(OSError, match="No space left") as caught:
        Pairs.read({"query": "q", "document": "d" * 10_000} for _ in range(3_000))
    assert caught.value.errno == 28 and not isinstance(caught.value, PairsError)
