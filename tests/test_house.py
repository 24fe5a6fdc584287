"""What holds for the whole house: floors, imports, sizes, notebooks, packaging, and what the README names."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "telekit"
SOURCES = sorted(PACKAGE.rglob("*.py"))
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("[!.]*.ipynb"))

# Ground first. A file imports from its own folder and from floors above it here; those on one line are
# strangers, except the ground floor's files, which may use one another.
GROUND = ("units", "errors", "schemas", "other_names", "catalog", "documents", "timeline")
FLOORS = (
    GROUND,
    ("model",),
    ("cluster",),
    ("training",),
    ("layout",),
    ("job",),
    ("launch",),
    ("operators",),
    ("comm", "pipeline", "fusion"),
    ("packing",),
    ("cost",),
    ("planner",),
    ("accuracy", "diagnose", "validation"),
    ("exercises", "companions"),
    ("ui",),
    ("cli",),
)
FLOOR = {part: level for level, parts in enumerate(FLOORS) for part in parts}
DRAWING = {"altair", "ipywidgets", "anywidget", "IPython"}
MAX_LINES = 450


def modules():
    """Every module but the package's own face: dotted name to file."""
    return {_dotted(path): path for path in SOURCES if path != PACKAGE / "__init__.py"}


def _dotted(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(path):
    """Every module that a file imports, at the top, in functions and for type checkers alike."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, (
                f"{path}: relative import; write it out, the floors are read from the names"
            )
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _part(module):
    """The floor's folder or file that a module belongs to."""
    return module.split(".")[1]


def faults_of_floor(module, imported):
    """Why ``module`` may not import ``imported``; nothing when it may."""
    here, there = _part(module), _part(imported)
    if there not in FLOOR:
        return f"{imported} is on no floor"
    if here == there or {here, there} <= set(GROUND):
        return ""
    if FLOOR[there] == FLOOR[here]:
        return f"{here}/ and {there}/ are on one floor"
    return f"{there} is above {here} in the house" if FLOOR[there] > FLOOR[here] else ""


def test_every_part_has_its_floor():
    parts = {_part(name) for name in modules()}
    assert parts <= set(FLOOR), "new part: give it a floor in FLOORS"


@pytest.mark.parametrize("name", sorted(modules()))
def test_floors(name):
    known = modules()
    for imported in _imports(known[name]):
        if (
            imported.count(".") == 1
            and imported.startswith("telekit.")
            and not name.startswith("telekit.cli")
        ):
            assert _part(imported) in FLOOR, f"{imported}: the package's face is for users; import the module"
        if imported in known:
            assert not faults_of_floor(name, imported), f"{name} imports {imported}"


def test_the_rule_of_floors_itself():
    assert faults_of_floor("telekit.model.config", "telekit.cluster.config")
    assert faults_of_floor("telekit.comm.alpha_beta", "telekit.pipeline.simulate")
    assert faults_of_floor("telekit.units", "telekit.model.config")
    assert not faults_of_floor("telekit.ui.lab", "telekit.catalog")
    assert not faults_of_floor("telekit.catalog", "telekit.errors")
    assert not faults_of_floor("telekit.planner.search", "telekit.planner.solver")


def test_no_circles():
    known = modules()
    graph = {name: {i for i in _imports(path) if i in known and i != name} for name, path in known.items()}
    assert tuple(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_ui_draws_and_only_the_command_line_prints(path):
    inside_ui = path.is_relative_to(PACKAGE / "ui")
    if not inside_ui:
        assert not {name.split(".")[0] for name in _imports(path)} & DRAWING
    if not path.is_relative_to(PACKAGE / "cli"):
        tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        calls = [node for node in tree if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        assert not [
            node.lineno for node in calls if node.func.id in ("print", "input", "breakpoint", "exec", "eval")
        ]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_is_too_long(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES, "two files want out of this one"


IMPORT = """
import sys, time
start = time.perf_counter()
import telekit
print(time.perf_counter() - start)
print(*sorted({name.split(".")[0] for name in sys.modules}))
"""
HEAVY = {"numpy", "scipy", "pandas", "pulp", "highspy", "altair", "vl_convert", "typer", "rich", *DRAWING}


def _import_telekit():
    run = subprocess.run(
        [sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True, timeout=60
    )
    seconds, loaded = run.stdout.splitlines()
    return float(seconds), set(loaded.split())


def test_importing_telekit_is_cheap():
    seconds, loaded = min((_import_telekit() for _ in range(3)), key=lambda pair: pair[0])
    assert not loaded & HEAVY
    assert seconds < 0.5


def test_the_public_face_is_there_and_loads_nothing_that_draws():
    code = "import sys, telekit\nfor name in telekit.__all__: getattr(telekit, name)\n"
    code += "print(*{n.split('.')[0] for n in sys.modules})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert not set(run.stdout.split()) & ({"pandas", "vl_convert"} | DRAWING)


def _pyproject():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_environment_yml_only_points_at_pyproject():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    *conda, pip = environment["dependencies"]
    assert conda == [f"python{_pyproject()['project']['requires-python']}", "pip"]
    assert pip == {"pip": ["-e ."]}, "one list of dependencies, in pyproject.toml"
    assert environment["name"] == _pyproject()["project"]["name"]


def test_every_import_is_a_declared_dependency():
    declared = {_module(text) for text in _pyproject()["project"]["dependencies"]}
    found = {name.split(".")[0] for path in SOURCES for name in _imports(path)} - set(sys.stdlib_module_names)
    assert found - {"telekit"} <= declared | IMPLIED | {"torch"}, (
        "torch is an extra, imported where it is used"
    )


IMPLIED = {"traitlets", "IPython", "jupyter_server"}  # ipywidgets and jupyterlab bring them


def _module(requirement):
    name = re.match(r"[\w.-]+", requirement)[0].lower().replace("-", "_")
    return {"pyyaml": "yaml", "vl_convert_python": "vl_convert"}.get(name, name)


def test_version_is_said_once_and_logged():
    version = _pyproject()["project"]["version"]
    face = (PACKAGE / "__init__.py").read_text(encoding="utf-8")
    assert f'__version__ = "{version}"' in face
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_data_and_notebooks_go_into_the_wheel():
    included = _pyproject()["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {"data": "telekit/data", "notebooks": "telekit/notebooks"}


DATA = sorted((ROOT / "data").rglob("*.json"))


@pytest.mark.parametrize("path", DATA, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_fact_has_a_source(path):
    def no_constant(name):
        raise AssertionError(f"{name} is not JSON")

    record = json.loads(path.read_text(encoding="utf-8"), parse_constant=no_constant)
    rows = record if isinstance(record, list) else [record]
    assert rows and all(row.get("source") for row in rows)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_hold_no_state_and_only_checked_outputs(path):
    book = json.loads(path.read_text(encoding="utf-8"))
    assert book["nbformat"] == 4 and book["metadata"]["kernelspec"]["name"] == "python3"
    assert "widgets" not in book["metadata"]
    ids = [cell["id"] for cell in book["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in book["cells"]:
        if cell["cell_type"] != "code":
            continue
        checked = "# NBVAL_CHECK_OUTPUT" in "".join(cell["source"])
        assert checked == ("keep_output" in cell["metadata"].get("tags", [])), cell["id"]
        assert checked == bool(cell["outputs"]) == bool(cell["execution_count"]), cell["id"]


def test_there_is_an_index():
    assert "index" in {path.stem for path in NOTEBOOKS}


def readme_commands():
    """Shell lines of the README's code blocks."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(?:bash|sh)\n(.*?)```", text, re.S)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def test_readme_commands_exist():
    commands = readme_commands()
    assert sum("telekit lab" in line for line in commands) >= 1
    assert sum("tests/run.py" in line for line in commands) == 1
    scripts = _pyproject()["project"]["scripts"]
    for line in commands:
        for used in re.findall(r"\.venv/bin/(\w+)", line):
            assert used in {"pip", "python", *scripts}, line
        for script in re.findall(r"\b[\w/]+\.py\b", line):
            assert (ROOT / script).is_file(), line


def test_readme_links_lead_somewhere():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (ROOT / target).exists(), target


def test_readme_names_commands_that_the_command_line_has():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`telekit ([a-z-]+)", text))
    run = subprocess.run(
        [sys.executable, "-c", "from telekit.cli import main; main()", "--help"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert named and all(re.search(rf"\b{name}\b", run.stdout) for name in named)
