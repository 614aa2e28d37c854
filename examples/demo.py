"""From a folder of documents to a search and an honest number: `make demo`, or `.venv/bin/python examples/demo.py`.

The corpus is real: 445 clauses from terms of service, and 282 sentences that say in plain English what some of them
mean (examples/legal-summ; its README says where they come from). Nothing is fetched: the model is part of the package.
"""

import sys
import time
from pathlib import Path
from textwrap import shorten

import vicinal
from vicinal.evaluation import NULL, OWN

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "legal-summ"  # corpus.jsonl.gz, queries.jsonl, qrels/test.tsv
INDEX = HERE / "legal-summ.vicinal"  # beside it, as `vicinal index` would name it; git ignores it
MODEL = "granite-embedding-30m-english"
QUESTIONS = ["how old must I be?", "can I use a false name?"]
ROWS = {  # what is measured: words know no context
    "BM25": ("bm25", "null"),
    "start model": ("dense", "null"),
    "start model + own context": ("dense", "own"),
    "BM25 + start model": ("dense+bm25", "null"),
    "BM25 + start model + own context": ("dense+bm25", "own"),
}

# 1. A corpus is read from files as they are: JSON lines, CSV, Parquet, a folder of texts.
corpus = vicinal.Corpus.read(CORPUS)
print(f"1. Corpus: {corpus.counts}")

# 2. An encoder turns texts into vectors, and an index keeps them, with the words and the documents, in one folder.
#    Before, it is shown 128 documents of the corpus, its context: what they all share tells little about any of them.
#    fp32 prints the same figures on every machine; left out, bf16 is taken where the processor has it, and is faster.
start = time.perf_counter()
encoder = vicinal.load(MODEL, precision="fp32", max_document_tokens=192, max_query_tokens=64)
reader = encoder.with_context(encoder.context(corpus))
index = vicinal.Index.build(INDEX, reader, corpus, overwrite=True)  # nothing to do where it is there already
context = index.info()["context"]
print(f"2. Index: {len(index)} documents by {MODEL}, {time.perf_counter() - start:.1f} s")
print(f"   Own context: {context['documents']} of them; {context['effect']['top10']:.0%} of the ten best stay the same")

# 3. Search by words ("bm25"), by meaning ("dense"), or by both.
print("3. Search:")
for question in QUESTIONS:
    print(f"\n   {question}")
    for hit in index.search(question, k=3, mode="dense+bm25"):
        print(f"   {hit.score:6.2f}  {hit.id:5}  {shorten(hit.text, 96, placeholder=' ...')}")

# 4. A collection adds queries, and which documents answer them, so that a search can be measured.
start = time.perf_counter()
collection = vicinal.Collection.read(CORPUS)
result = vicinal.evaluate(collection, encoder, ["bm25", "dense", "dense+bm25"], contexts=[NULL, OWN])
print(f"\n4. How good is it? {len(collection.queries)} queries, {time.perf_counter() - start:.1f} s\n")
print(f"   {'nDCG@10 x 100':33} {collection.name}")
for name, (mode, shown) in ROWS.items():
    value = result.contexts[shown].modes[mode].measures["nDCG@10"]
    print(f"   {name:33} {100 * value:{len(collection.name)}.1f}")

# 5. Each of these steps is a command, too.
here = Path.cwd()
paths = Path(sys.executable).parent / "vicinal", INDEX
command, there = (path.relative_to(here) if path.is_relative_to(here) else path for path in paths)
print(f"""
5. Type next:

   {command} search {there} "may they change the price?" --mode dense+bm25
   {command} index YOUR_FILES     # .jsonl, .csv, .parquet, or a folder of texts; it says what to type then
   {command} --help""")
