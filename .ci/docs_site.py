"""Makes the site of docs/ whole: README.md is its first page, and files outside docs/ that pages link to come along."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
RESULTS = "benchmarks/results"
LINK = re.compile(r'(?:(?<=\]\()|(?<=src=")|(?<=srcset="))(?![a-z]+:|[#/])([^)#\s"]+)')


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the first page, the measurements, and what pages link to beside docs/, under the same paths."""
    readme = (ROOT / "README.md").read_text()
    files.append(File.generated(config, "index.md", content=readme))
    results = sorted(f"{RESULTS}/{path.name}" for path in (ROOT / RESULTS).iterdir())
    pages = ["README.md", *(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")), *results]
    linked = {
        target
        for page in pages
        if page.endswith(".md")
        for link in LINK.findall((ROOT / page).read_text())
        if not (target := _resolved(page, link)).startswith("docs/") and (ROOT / target).is_file()
    }
    for name in sorted(linked.union(results) - {"README.md"}):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name), inclusion=InclusionLevel.INCLUDED))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as they are in the site: docs/ is its root, and README.md its first page."""
    site = page.file.src_uri
    outside = site == "index.md" or site.startswith(RESULTS)
    source = "README.md" if site == "index.md" else site if outside else f"docs/{site}"

    def moved(link: re.Match[str]) -> str:
        target = _resolved(source, link[1])
        target = "index.md" if target == "README.md" else target.removeprefix("docs/")
        return posixpath.relpath(target, posixpath.dirname(site) or ".")

    return LINK.sub(moved, markdown)


def _resolved(page: str, link: str) -> str:
    """The path from the root of the repository of what a page links to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
