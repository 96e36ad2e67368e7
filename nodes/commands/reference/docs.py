"""`swarm docs`: the documents in a terminal, a section at a time."""

from __future__ import annotations

from rich.console import Console
from rich.markdown import Markdown

from swarm.page.documents import names, section


def show_document(where: str | None, console: Console) -> None:
    """Print a document, or the section behind `#`; without a name their names. Raises `ConfigError`."""
    if where is None:
        console.print("\n".join(names()), highlight=False)
        return
    name, _, heading = where.removeprefix("docs/").partition("#")
    console.print(Markdown(section(name if name.endswith(".md") else f"{name}.md", heading)))
