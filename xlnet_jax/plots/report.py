"""A page about a run: one HTML file without scripts that loads no others. Every text in it is escaped."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

SHOWN = 12  # steps with samples

Records = Sequence[Mapping[str, Any]]


def report_page(title: str, summary: Iterable[str], sections: Mapping[str, str]) -> str:
    """Return the page. summary: lines below the title. sections: HTML by heading; empty ones are left out."""
    body = "".join(f"<p>{escape(line)}</p>\n" for line in summary if line)
    body += "".join(f"<h2>{escape(heading)}</h2>\n{html}\n" for heading, html in sections.items() if html)
    template = resources.files(__package__).joinpath("report.html").read_text(encoding="utf-8")
    return template.replace("{{title}}", escape(title)).replace("{{body}}", body)


def picture(png: bytes, about: str) -> str:
    """Return a picture. about: what it shows, for those who do not see it."""
    data = base64.b64encode(png).decode()
    return f'<div class="scroll"><img src="data:image/png;base64,{data}" alt="{escape(about)}"></div>'


def table(rows: Mapping[str, object]) -> str:
    """Return a table of names and values; "" if there are none."""
    lines = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>\n" for name, value in rows.items())
    return f'<div class="scroll"><table>\n{lines}</table></div>' if lines else ""


def lines(texts: Iterable[str]) -> str:
    """Return lines as they are printed; "" if there are none."""
    text = "\n".join(texts)
    return f"<pre>{escape(text)}</pre>" if text else ""


def folded(heading: str, html: str) -> str:
    """Return HTML behind a heading to click."""
    return f"<details><summary>{escape(heading)}</summary>\n{html}\n</details>" if html else ""


def samples_by_step(records: Records) -> str:
    """Return what the network drew at each evaluation, after what the text says; "" without samples. Of many
    evaluations, it has SHOWN at even distances. records: of metrics.jsonl."""
    samples = [r for r in records if r["split"] == "sample"]
    losses = {r["step"]: r["loss"] for r in records if r["split"] == "validation" and "loss" in r}
    html = ""
    for kind in dict.fromkeys(r["kind"] for r in samples):
        of_kind = {r["step"]: r for r in samples if r["kind"] == kind}
        steps = sorted(of_kind)
        shown = steps if len(steps) <= SHOWN else [steps[i * (len(steps) - 1) // (SHOWN - 1)] for i in range(SHOWN)]
        rows = [("the text", "", "held_out", of_kind[steps[-1]])]
        rows += [(f"step {n:,}", f", loss {losses[n]:.3f}" if n in losses else "", "drawn", of_kind[n]) for n in shown]
        html += f'<p class="quiet">{escape(kind)}</p>\n<dl>\n'
        for name, loss, part, record in rows:
            before, drawn, after = (escape(str(record[of])) for of in ("before", part, "after"))
            html += f"<dt>{name}{loss}</dt><dd>{before}<mark>{drawn}</mark>{after}</dd>\n"
        html += "</dl>\n"
    return html
