"""The rules of the house that no room can hold alone: who imports whom, what is never called, what must agree."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import vicinal

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "vicinal"

# In the order that data walks through them (CONTRIBUTING.md): a file imports only from rooms above its own.
ROOMS = (
    "errors",
    "files",
    "progress",
    "documents",
    "corpus",
    "pairs",
    "tokens",
    "vectors",
    "context",
    "encoder",
    "index",
    "search",
    "evaluation",
    "losses",
    "batches",
    "chunked",
    "train",
    "recipes",
    "screen",
    "cli",
)
DOORS = ("__init__", "__main__")  # of the house: they may open every room

MODULES = {path.relative_to(SRC).as_posix(): ast.parse(path.read_text("utf-8")) for path in sorted(SRC.rglob("*.py"))}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PAGES = [path for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md") for path in sorted(ROOT.glob(pattern))]
WRITTEN_BY_HAND = [
    *PAGES,
    *(ROOT / name for name in ("Makefile", ".ci/run", "pyproject.toml", "constraints.txt")),
    *(path for folder in ("src", "tests", "examples", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))),
]


def room_of(module: str) -> str:
    return module.split("/")[0].removesuffix(".py")


def imports(module: str) -> Iterator[tuple[str, ...]]:
    """The full dotted names that a module imports anywhere, in functions too; relative ones are resolved."""
    package = ("vicinal", *module.split("/")[:-1])
    for node in ast.walk(MODULES[module]):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            start = (*base, *(node.module.split(".") if node.module else ()))
            yield from ((*start, alias.name) for alias in node.names)


def test_a_file_imports_only_from_rooms_above_its_own() -> None:
    wrong = []
    for module in MODULES:
        here = room_of(module)
        if here in DOORS:
            continue
        for name in imports(module):
            if name[0] == "vicinal" and name[1:] != ("__version__",):
                there = name[1] if len(name) > 1 else "vicinal itself"
                if there not in ROOMS or ROOMS.index(there) > ROOMS.index(here):
                    wrong.append(f"{module} imports {'.'.join(name)}")
    assert not wrong


def test_every_file_belongs_to_a_room_and_every_room_is_there() -> None:
    assert {room_of(module) for module in MODULES} - set(DOORS) == set(ROOMS)


def test_no_file_is_a_drawer_for_everything() -> None:
    assert not [m for m in MODULES if re.search(r"(^|[/_])(util|utils|helper|helpers|common|misc|shared)(_|\.py|/)", m)]


def test_the_library_stands_without_the_libraries_of_its_extras() -> None:
    never, only_when_needed = {"sentence_transformers", "datasets", "pytest"}, {"faiss", "matplotlib", "tensorboard"}
    assert not [(module, name) for module in MODULES for name in imports(module) if name[0] in never]
    at_once = [
        (module, name)
        for module, tree in MODULES.items()
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (alias.name for alias in node.names)
        if (getattr(node, "module", None) or name).split(".")[0] in only_when_needed
    ]
    assert not at_once


def test_nothing_that_could_run_code_from_a_file_is_imported_or_called() -> None:
    banned_modules = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml"}
    banned_calls = {"eval", "exec", "compile", "__import__", "torch.load", "os.system", "os.popen"}
    banned_flags = {"allow_pickle", "trust_remote_code", "shell"}  # allowed only as False
    found = []
    for module, tree in MODULES.items():
        found += [f"{module} imports {name[0]}" for name in imports(module) if name[0] in banned_modules]
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if ast.unparse(call.func) in banned_calls:
                found.append(f"{module}:{call.lineno} calls {ast.unparse(call.func)}")
            for keyword in call.keywords:
                if keyword.arg in banned_flags and ast.unparse(keyword.value) != "False":
                    found.append(f"{module}:{call.lineno} sets {keyword.arg}")
    assert not found


def definitions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    """Public functions and classes, and the public methods of those classes."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from definitions(node, f"{node.name}.")


def test_every_module_says_what_it_is_for() -> None:
    assert not [module for module, tree in MODULES.items() if not ast.get_docstring(tree)]


def test_what_a_newcomer_meets_first_has_a_docstring() -> None:
    assert not [name for name in vicinal.__all__ if name != "__version__" and not getattr(vicinal, name).__doc__]


def test_a_docstring_has_an_example_or_is_short() -> None:
    long = [
        f"{module}: {name}"
        for module, tree in MODULES.items()
        for name, node in definitions(tree)
        if (text := ast.get_docstring(node)) and ">>>" not in text and len(text) > 480
    ]
    assert not long


def test_every_field_of_a_record_is_read_somewhere() -> None:
    fields, read = {}, set()
    for module, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(d) for d in node.decorator_list):
                for part in node.body:
                    if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                        fields[f"{module}: {node.name}.{part.target.id}"] = part.target.id
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                read.add(node.attr)
            elif isinstance(node, ast.Call) and node.args and ast.unparse(node.func).endswith(".get"):
                read.add(ast.unparse(node.args[0]).strip("'"))
    provenance = {
        "index/segments.py: Manifest.vicinal"
    }  # the version that wrote an index: for people, and for bug reports
    assert {where for where, name in fields.items() if name not in read} <= provenance


HEAVY = ("torch", "transformers", "numpy", "rich", "typer", "pyarrow", "bm25s", "tokenizers", "huggingface_hub")


def test_importing_costs_nothing() -> None:
    probe = (
        "import sys, time; start = time.perf_counter(); import vicinal; seconds = time.perf_counter() - start;"
        f"print(seconds, *[name for name in {HEAVY} if name in sys.modules])"
    )
    told = [subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True) for _ in range(3)]
    best = min((run.stdout.split() for run in told), key=lambda words: float(words[0]))
    assert not best[1:], "these were imported with it"
    assert float(best[0]) < 0.3


def pinned() -> dict[str, str]:
    lines = (line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines())
    return {normal(name): version for name, _, version in (line.partition("==") for line in lines if line)}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_direct_dependency_is_pinned_and_nothing_else_is() -> None:
    project = PROJECT["project"]
    asked = [*project["dependencies"], *PROJECT["build-system"]["requires"]]
    asked += [line for lines in project["optional-dependencies"].values() for line in lines]
    names = {normal(re.split(r"[^A-Za-z0-9_.-]", line)[0]) for line in asked}
    assert names - {"vicinal"} == set(pinned())
    assert all(pinned().values()), "a pin is written name==version"


def test_extras_keep_the_core_light() -> None:
    core = {normal(re.split(r"[^A-Za-z0-9_.-]", line)[0]) for line in PROJECT["project"]["dependencies"]}
    assert not core & {"sentence-transformers", "datasets", "faiss-cpu", "pytest", "matplotlib", "openvino"}


def test_the_version_is_one() -> None:
    assert vicinal.__version__ == PROJECT["project"]["version"]
    assert f"## [{vicinal.__version__}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_warnings_are_errors() -> None:
    assert PROJECT["tool"]["pytest"]["ini_options"]["filterwarnings"] == ["error"]


def test_all_weights_together_stay_below_40_mib() -> None:
    assert sum(path.stat().st_size for path in (SRC / "weights").rglob("*") if path.is_file()) <= 40 << 20


def test_every_shipped_model_says_its_licence() -> None:
    for model in sorted((SRC / "weights").iterdir()):
        assert (model / "shipped.json").is_file(), f"{model.name} is not listed by `vicinal models`"
    granite = SRC / "weights" / "granite-embedding-30m-english"
    assert (granite / "LICENSE").is_file() and (granite / "NOTICE.md").is_file()


@pytest.mark.parametrize("path", WRITTEN_BY_HAND, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nothing_names_one_machine(path: Path) -> None:
    # Written so that this file does not find itself.
    places = [f"/{folder}/" for folder in ("home", "root", "work", "opt", "Users")]
    hosts = [f"{name}[.]{rest}" for name, rest in (("pypi", "org"), ("files", "pythonhosted"), ("download", "pytorch"))]
    assert not re.findall(rf"(?<![\w.])(?:{'|'.join(places)})|{'|'.join(hosts)}", path.read_text("utf-8"))


def test_only_the_optional_test_data_lies_outside_the_project() -> None:
    outside = "../" + "shared"
    known = {"tests/conftest.py", ".ci/run", "CONTRIBUTING.md"}
    found = {path.relative_to(ROOT).as_posix() for path in WRITTEN_BY_HAND if outside in path.read_text("utf-8")}
    assert found <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_between_pages_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text("utf-8"))
    assert not [link for link in links if "://" not in link and not (page.parent / link).exists()]


def test_the_index_of_the_docs_names_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    assert not [
        path.name for path in (ROOT / "docs").glob("*.md") if path.name != "index.md" and path.name not in index
    ]


def test_the_map_names_every_room() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert not [room for room in ROOMS if f"`{room}" not in text]
