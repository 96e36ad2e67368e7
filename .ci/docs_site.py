"""Makes the site of docs/ whole: README.md is its first page, and files outside docs/ that pages link to come along."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
OUTSIDE = re.compile(r"\]\(\.\./([^)#\s]+)")
FROM_README = re.compile(r"\]\((?!docs/|[a-z]+:|#)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the first page, and what pages link to beside docs/, under the same paths."""
    readme = (ROOT / "README.md").read_text()
    files.append(File.generated(config, "index.md", content=readme))
    linked = set(FROM_README.findall(readme))
    for path in (ROOT / "docs").glob("*.md"):
        linked |= set(OUTSIDE.findall(path.read_text()))
    for name in sorted(linked - {"README.md"}):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name), inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as they are in the site: docs/ is its root, and README.md its first page."""
    if page.file.src_uri == "index.md":
        return markdown.replace("](docs/", "](")
    return OUTSIDE.sub(r"](\1", markdown.replace("](../README.md", "](index.md"))
