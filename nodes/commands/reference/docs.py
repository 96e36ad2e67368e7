"""`swarm docs`: the documents in a terminal, a section at a time."""

from __future__ import annotations

from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from swarm.documents import found, names, section, title


def show_document(where: str | None, console: Console) -> None:
    """Print a document, or the section behind `#`; without a name, which there are. Raises `ConfigError`."""
    if where is None:
        table = Table.grid(padding=(0, 2))
        for name in names():
            table.add_row(name.removesuffix(".md"), Text(title(name), "dim"))
        console.print(table)
        return
    name, _, heading = where.removeprefix("docs/").partition("#")
    console.print(Markdown(section(found(name), heading)))
