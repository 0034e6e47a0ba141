"""make reference: write the settings of each command (settings.md, settings/) and the public names (api.md, api/) from
the dataclasses, signatures and docstrings of the code, and the results of the benchmarks (benchmarks/results.py) and
the lines of links to code (code_links.py) into all pages."""

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from benchmarks.results import fill_pages
from docs.code_links import with_lines
from xlnet_jax import PUBLIC
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.objectives.presets import demo
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.fields import docstrings_of, fields_of, is_marked, unflagged_of
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.defaults import DEFAULTS

DOCS = Path(__file__).resolve().parent
WIDTH = 78  # characters that a code block of the site shows
NOTE = "<!-- `make reference` writes this page from the code. -->"
STARTS = {Config: demo, FinetuneConfig: DEFAULTS["classification"]}
"""Functions that return the defaults of a command, where they are not those of the dataclass"""
ADDS = {"compare", "plan"}
"""Commands that have the settings of `train` and a few of their own."""
SETTINGS = f"""# Settings

{NOTE}

Each command has a page with its settings, their defaults and units. `--help` lists the settings that people use most,
and `--help-all` all that have a flag.

- `train` starts from `--preset demo`. Other presets and tasks change many defaults: `--preset base --help` and
  `--task squad --help` print theirs.
- A setting whose default is `True` or `False` is a switch: `--tpu` turns it on, `--no-tpu` turns it off.
- A setting that takes several values takes them one after another: `--corpus a.txt b.txt`.
- In Python and in the JSON file of `--config`, `--data.seq-len` is `seq_len` in the section `data`.
- A setting without dashes, such as `model.activation`, has no flag, because presets, tasks and checkpoints decide it.
  Python and the file of `--config` can set it.
- † marks settings that may change when a run resumes. If any other setting has changed, the run refuses to resume.
- Each setting has a link of its own, such as [settings/train.md#data.seq-len](settings/train.md#data.seq-len).
"""
NAMES = {
    "Checkpoints": ("load", "Pretrained", "save", "on_device", "convert", "ConvertSettings", "export", "examine"),
    "Pretraining": ("pretrain", "preset", "Config", "ModelConfig", "DataConfig", "Result", "Callback", "Trackio"),
    "Training loop": ("XLNetLM", "initial_params", "batch_source", "inputs_of", "empty_memory"),
    "Finetuning": ("finetune", "FinetuneConfig", "predict", "Model", "Prediction"),
    "Scores and losses": (
        *("evaluate", "EvaluateSettings", "score_texts", "score_variants", "score_files", "ScoreSettings"),
        *("factorize", "recl", "ReclSettings"),
    ),
    "Text": ("generate", "fill_in", "GenerateSettings"),
    "Attention": ("attention_weights", "draw_attention", "AttentionSettings"),
    "Vectors": ("embed_texts", "embed_tokens", "embed_files", "EmbedSettings"),
    "Corpora": ("prepare_corpus", "PrepareSettings", "inspect_window", "InspectSettings"),
    "Errors": ("InputError",),
}
"""Names of PUBLIC by section; each section is a page."""
API = f"""# Python API

{NOTE}

`import xlnet_jax` gives these names, and loads neither jax nor TensorFlow. [model.md](model.md) has examples. The
letters at the end of a name such as `hidden_BLD` are the axes of the array: [dims.py](../xlnet_jax/dims.py) lists them.
"""


def pages() -> dict[str, str]:
    """Return the content of each generated page, by its path below docs/."""
    if sorted(name for names in NAMES.values() for name in names) != sorted(PUBLIC):
        raise ValueError("docs/reference.py: list each name of xlnet_jax.PUBLIC once in NAMES")
    found = {"settings.md": SETTINGS + "".join(map(_links_to_settings, COMMANDS))}
    found |= {f"settings/{command}.md": _command(command) for command in COMMANDS}
    found["api.md"] = API + "".join(map(_links_to_names, NAMES))
    return found | {_api_page(title): _section(title) for title in NAMES}


# ---- settings.md, settings/ ------------------------------------------------------------------------------------------


def _kinds(command: str) -> dict[str, type]:
    """Return the dataclasses of a command's settings by what is typed after its module: nothing, or a first word."""
    kind, *_ = COMMANDS[command].load()
    return {option.__name__.lower(): option for option in get_args(kind)} or {"": kind}


def _command(command: str) -> str:
    """Return the page of a command."""
    about = f"`python -m {COMMANDS[command].module}`: {escape(COMMANDS[command].about)}"
    parts = [f"# Settings of {command}\n\n{NOTE}\n\n{about} [How to read the tables](../settings.md).\n"]
    for word, kind in _kinds(command).items():
        parts += [f"## {command} {word}\n\n{escape(' '.join(inspect.getdoc(kind).split()))}\n"] if word else []
        parts += ["All settings of [train](train.md), and:\n"] if command in ADDS else []
        parts += _tables(word, kind, _fields(command, kind), start() if (start := STARTS.get(kind)) else None)
    return "\n".join(parts)


def _fields(command: str, kind: type) -> list[dataclasses.Field]:
    """Return the settings of a command in the order of --help, without those of `train` that it has too."""
    own = vars(kind)["__annotations__"]
    fields = [field for field in fields_of(kind) if command not in ADDS or field.name in own]
    return sorted(fields, key=lambda field: field.name not in own)


def _links_to_settings(command: str) -> str:
    """Return links to all settings of a command, a line for each dataclass."""
    page = f"settings/{command}.md"
    lines = []
    for word, kind in _kinds(command).items():
        for title, settings in _grouped(kind, _fields(command, kind)).items():
            about = " ".join(filter(None, (word, title)))
            names = " · ".join(f"[{flag.rpartition('.')[2]}]({page}#{_anchor(word, flag)})" for flag in settings)
            lines.append(f"- {about}: {names}" if about else f"{names}\n")
    settings = "\n".join(lines).rstrip()
    return f"\n## {command}\n\n[{command}]({page}): {escape(COMMANDS[command].about)}\n\n{settings}\n"


def _grouped(kind: type, fields: Iterable[dataclasses.Field], at: str = "") -> dict[str, list[str]]:
    """Return the dotted names of settings by the dotted name of their dataclass."""
    hints, groups = get_type_hints(kind), {at.rstrip("."): []}
    for field in fields:
        flag = at + field.name.replace("_", "-")
        if dataclasses.is_dataclass(hints[field.name]):
            groups |= _grouped(hints[field.name], fields_of(hints[field.name]), f"{flag}.")
        else:
            groups[at.rstrip(".")].append(flag)
    return {title: flags for title, flags in groups.items() if flags}


def _anchor(word: str, flag: str) -> str:
    """Return the name of a setting's link. word: the first word after the command, or ""."""
    return f"{word}--{flag}" if word else flag


def _tables(word: str, kind: type, fields: Iterable[dataclasses.Field], start: Any = None, at: str = "") -> list[str]:
    """Return a table of the settings of a dataclass, and one of each dataclass in it.

    word: the first word after the command, or "". start: the values that the settings have by default; None = those of
    the fields. at: dotted name of the dataclass.
    """
    rows, sections = [], []
    hints, about = get_type_hints(kind, include_extras=True), docstrings_of(kind)
    for field in fields:
        default = _default(field) if start is None else getattr(start, field.name)
        hint = hints[field.name]
        extras = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        flag = at + field.name.replace("_", "-")
        if dataclasses.is_dataclass(hint):
            sections += [f"## {flag}\n", *_tables(word, hint, fields_of(hint), default, f"{flag}.")]
        else:
            name = f"--{flag}" if field.name not in unflagged_of(kind) else flag.replace("-", "_")
            argument = next((extra.metavar for extra in extras if getattr(extra, "metavar", None)), name)
            link = _anchor(word, flag)
            mark = " †" if is_marked(field, "operational") else ""
            text = _linked(escape(about.get(field.name, ""))) + _choices(hint, about.get(field.name, ""))
            rows.append((f'<a id="{link}"></a>[`{argument}`](#{link}){mark}', _shown(default), text))
    return [*([_table(("setting", "default", "what it does"), rows)] if rows else []), *sections]


def _linked(text: str) -> str:
    """Return a text of settings/ with links to the pages that it names."""
    return re.sub(r"\bdocs/(\w+\.md)", r"[\1](../\1)", text)


def _default(field: dataclasses.Field) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _shown(default: Any) -> str:
    """Return a default as it is written on the command line."""
    if default is dataclasses.MISSING:
        return "required"
    if isinstance(default, tuple):
        return f"`{' '.join(map(str, default))}`" if default else "none"
    return f"`{default}`" if default != "" else "empty"


def _choices(hint: Any, about: str) -> str:
    """Return the values that a setting may have where its docstring leaves some out."""
    options = [hint, *get_args(hint), *(inner for option in get_args(hint) for inner in get_args(option))]
    choices = [str(choice) for option in options if get_origin(option) is Literal for choice in get_args(option)]
    if all(re.search(rf"\b{re.escape(choice)}\b", about) for choice in choices):
        return ""
    return f" (one of {', '.join(f'`{choice}`' for choice in dict.fromkeys(choices))})"


# ---- api.md, api/ ----------------------------------------------------------------------------------------------------


class Parameter(NamedTuple):
    """A parameter of a function, or a field or property of a class."""

    name: str
    """as in a signature: *words, **settings"""
    type: str
    default: str = ""
    about: str = ""


def _api_page(title: str) -> str:
    return f"api/{title.lower().replace(' ', '_')}.md"


def _links_to_names(title: str) -> str:
    """Return a section of api.md: a link to each name, and the first sentence about it."""
    page, things = _api_page(title), [(name, getattr(import_module(PUBLIC[name]), name)) for name in NAMES[title]]
    rows = (
        (f"[`{name}`]({page}#{name.lower()})", _summary(thing).partition(". ")[0].rstrip(".")) for name, thing in things
    )
    return f"\n## {title}\n\n{_table(('name', 'what it is'), rows)}"


def _section(title: str) -> str:
    """Return the page of a section of names."""
    described: set[type] = set()
    parts = (_public(name, described) for name in NAMES[title])
    return f"# {title}\n\n{NOTE}\n\n[All names of `import xlnet_jax`](../api.md).\n\n" + "\n".join(parts)


def _public(name: str, described: set[type]) -> str:
    """Return what its page says about a public name. described: result types already on the page; this adds to them."""
    module = import_module(PUBLIC[name])
    thing = getattr(module, name)
    if inspect.isclass(thing):
        return f"## {name}\n\n{_of_class(name, thing, described)}"
    return f"## {name}\n\n{_of_function(name, _definition(thing), module, described)}"


def _definition(thing: Any) -> Any:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(thing))).body
    return node


def _of_function(name: str, node: ast.FunctionDef, module: ModuleType, described: set[type]) -> str:
    parameters = list(_parameters(node.args, module))
    shown = [f"{p.name}={p.default}" if p.default else p.name for p in parameters]
    if node.args.kwonlyargs:
        shown.insert(-len(node.args.kwonlyargs) - (node.args.kwarg is not None), "*")
    text, about = _split(ast.get_docstring(node) or "", [p.name for p in parameters])
    parts = [_signature(name, shown, _unquoted(node.returns)), text]
    parts += [_parameter_table(p._replace(about=about.get(p.name, "")) for p in parameters)] if parameters else []
    for result in _results(node, module):
        if result not in described:
            described.add(result)
            parts.append(f"`{result.__name__}`: {_summary(result)}\n\n{_parameter_table(_members(result))}")
    return "\n".join(part for part in parts if part)


def _of_class(name: str, kind: type, described: set[type]) -> str:
    if link := _settings_link(kind):
        return f"{_summary(kind)}\n\nIts fields: {link}.\n"
    members = list(_members(kind))
    text, about = _split(inspect.getdoc(kind) or "", [m.name for m in members])
    above = [base.__name__ for base in kind.__mro__[1:] if base.__name__ in PUBLIC]
    parts = [text, *(f"It has everything that {_link_to_name(name)} has, and:\n" for name in above)]
    if members:
        parts.append(_parameter_table([m._replace(about=m.about or about.get(m.name, "")) for m in members]))
    for node in _definition(kind).body:
        if isinstance(node, ast.FunctionDef) and not node.decorator_list and _is_public(node.name):
            module = import_module(kind.__module__)
            parts.append(f"### `{name}.{node.name}`\n\n{_of_function(node.name, node, module, described)}")
    return "\n".join(parts)


def _link_to_name(name: str) -> str:
    """Return a link from a page in api/ to a public name."""
    (page,) = (_api_page(title) for title, names in NAMES.items() if name in names)
    return f"[{name}](../{page}#{name.lower()})"


def _is_public(method: str) -> bool:
    return method == "__call__" or not (method.startswith("_") or method == "setup")


def _settings_link(kind: type) -> str:
    """Return a link to the table that has the fields of a dataclass of settings; "" for other classes."""
    for command in COMMANDS:
        for root in _kinds(command).values():
            if kind is root:
                return f"the settings of [{command}](../settings/{command}.md)"
    for field in fields_of(_kinds("train")[""]):
        if get_type_hints(_kinds("train")[""])[field.name] is kind:
            return f"the settings `--{field.name}.*` of [train](../settings/train.md#{field.name})"
    return ""


def _parameters(arguments: ast.arguments, module: ModuleType) -> Iterator[Parameter]:
    """Yield the parameters of a function in order, without `self`."""
    plain = arguments.posonlyargs + arguments.args
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    pairs = [*zip(plain, defaults, strict=True), *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    for argument, default in pairs:
        if argument.arg not in ("self", "cls"):
            shown = "…" if isinstance(default, ast.Lambda) else ast.unparse(default) if default else ""
            shown = repr(getattr(module, default.id)) if isinstance(default, ast.Name) else shown
            yield Parameter(argument.arg, _resolved(argument.annotation, module), shown)
    if arguments.kwarg:
        yield Parameter(f"**{arguments.kwarg.arg}", _resolved(arguments.kwarg.annotation, module))


def _members(kind: type) -> Iterator[Parameter]:
    """Yield the fields and properties of a class, and of classes above it that are not public names."""
    for base in reversed(kind.__mro__):
        if not _is_ours(base) or (base is not kind and base.__name__ in PUBLIC):
            continue
        lines, body = inspect.getsource(base).splitlines(), _definition(base).body
        for node, below in zip(body, [*body[1:], None], strict=True):
            if isinstance(node, ast.AnnAssign) and not ast.unparse(node.target).startswith("_"):
                default = "…" if isinstance(node.value, ast.Call) else ast.unparse(node.value) if node.value else ""
                about = lines[node.end_lineno - 1].partition("  # ")[2]
                if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                    about = below.value.value
                annotation = _resolved(node.annotation, import_module(base.__module__))
                yield Parameter(ast.unparse(node.target), annotation, default, about)
            elif isinstance(node, ast.FunctionDef) and [ast.unparse(d) for d in node.decorator_list] == ["property"]:
                yield Parameter(node.name, _unquoted(node.returns), "property", ast.get_docstring(node) or "")


def _results(node: ast.FunctionDef, module: ModuleType) -> Iterator[type]:
    """Yield the classes of values that a function returns and that are not public names."""
    for word in re.findall(r"\w+", _unquoted(node.returns)):
        found = getattr(module, word, None)
        is_record = dataclasses.is_dataclass(found) or hasattr(found, "_fields")
        if word not in PUBLIC and is_record and _is_ours(found):
            yield found


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith(("xlnet_jax", "data_pipelines"))


def _resolved(annotation: ast.expr | None, module: ModuleType) -> str:
    """Return an annotation as it is written, but for names of a list of choices and of type variables."""

    def resolve(name: re.Match) -> str:
        meaning = module
        for part in name[0].split("."):
            meaning = getattr(meaning, part, None)
        if get_origin(meaning) is Literal:
            return f"Literal[{', '.join(map(repr, get_args(meaning)))}]"
        bound = getattr(meaning, "__bound__", None) if isinstance(meaning, TypeVar) else None
        return getattr(bound, "__forward_arg__", None) or getattr(bound, "__name__", name[0])

    return re.sub(r"(?<![\w.'\"])[A-Za-z][\w.]*", resolve, _unquoted(annotation))


def _unquoted(annotation: ast.expr | None) -> str:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value
    return ast.unparse(annotation) if annotation else ""


def _split(docstring: str, names: Iterable[str]) -> tuple[str, dict[str, str]]:
    """Return a docstring without what it says about parameters ("name: …"), and that by their names."""
    said = {name: name for full in names for name in (full.lstrip("*"), re.sub(r"_[A-Z]+$", "", full.lstrip("*")))}
    full_name = {short: full for full in names for short in said if full.lstrip("*").startswith(short)}
    start = re.compile(rf"(?:^|(?<=[.;] ))`?({'|'.join(map(re.escape, said)) or '$^'})`?: ")
    paragraphs, about = [], {}
    for paragraph in re.split(r"\n\s*\n", docstring):
        kept, *rest = start.split(" ".join(paragraph.split()))
        for name, text in zip(rest[::2], rest[1::2], strict=True):
            text, raises, errors = text.partition(". Raises ")
            about[full_name[name]] = text.strip().rstrip(".;")
            kept += f" Raises {errors}" if raises else ""
        paragraphs += [escape(kept.strip()) + "\n"] if kept.strip() else []
    return "\n".join(paragraphs).replace("  Raises", " Raises"), about


def _signature(name: str, arguments: list[str], result: str) -> str:
    line = f"{name}({', '.join(arguments)})" + (f" -> {result}" if result else "")
    if len(line) > WIDTH:
        line = line.replace(", ".join(arguments), "\n    " + ",\n    ".join(arguments) + ",\n")
    return f"```python\n{line}\n```\n"


def _summary(kind: type) -> str:
    return escape(" ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split()))


def _parameter_table(parameters: Iterable[Parameter]) -> str:
    """Return a table of parameters, without the columns that would be empty."""
    titles = ("name", "type", "default", "what it is")
    rows = [
        (f"`{p.name}`", _type_cell(p.type), f"`{p.default}`" if p.default else "", escape(" ".join(p.about.split())))
        for p in parameters
    ]
    kept = [i for i in range(len(titles)) if any(row[i] for row in rows)]
    return _table([titles[i] for i in kept], [[row[i] for i in kept] for row in rows])


def _type_cell(annotation: str) -> str:
    """Return a type, with "or" between the members of a union: a table cannot have | in code."""
    options = re.split(
        r" \| (?![^\[]*\])", re.sub(r"Literal\[([^\]]*)\]", lambda l: l[1].replace(", ", " | "), annotation)
    )
    return " or ".join(f"`{option.replace(' | ', ' or ')}`" for option in options if option)


# ---- Markdown --------------------------------------------------------------------------------------------------------


def escape(text: str) -> str:
    """Return text whose characters mean themselves in a paragraph or a table of Markdown, except in backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"([|*]|(?<!\w)_|_(?!\w))", r"\\\1", part).replace("<", "&lt;") for part in parts[::2]]
    return "".join(parts)


def _table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = tuple(titles)
    lines = [titles, ("---",) * len(titles), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def main() -> None:
    """Write the pages from the code, and results and lines of code into the others."""
    written = pages()
    for folder in ("settings", "api"):
        (DOCS / folder).mkdir(exist_ok=True)
        for page in (DOCS / folder).glob("*.md"):
            if f"{folder}/{page.name}" not in written:
                page.unlink()
    for name, content in written.items():
        (DOCS / name).write_text(content)
    for page, content in fill_pages().items():
        page.write_text(with_lines(content, page))


if __name__ == "__main__":
    main()
