"""Sphinx's settings for the site, which `make docs` builds from the pages where they lie in the repository."""

import importlib.metadata

project = "metasched"
author = "the metasched authors"
release = importlib.metadata.version("metasched")
root_doc = "docs/site/contents"
include_patterns = [
    "docs/site/**.rst",
    "docs/**.md",
    "contrib/*/README.md",
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md"),
]
exclude_patterns = [".*", "build", "dist", "tests", "**/__pycache__"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

myst_heading_anchors = 6  # links to headings are written as GitHub wants them
highlight_language = "text"
default_role = "literal"  # docstrings write code between single backticks, too

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
autodoc_class_signature = "separated"
napoleon_use_ivar = True  # attributes stand in the docstring of their class

html_theme = "furo"
html_title = "metasched"
html_extra_path = ["root"]
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
