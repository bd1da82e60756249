"""YAML without its traps: what suites are written in."""

import re
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from fedhet_app.errors import FedhetError

_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """Plain data; a key that stands twice or is no text is an error, and 1e-4 is a number."""

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node] | None) -> yaml.MappingNode:
        """Check the keys as they are written: later, merged ones are among them."""
        node = super().compose_mapping_node(anchor)  # type: ignore[arg-type]
        seen = set()
        for key, _ in node.value:
            if key.tag not in (f"{_TAG}str", f"{_TAG}merge"):
                problem = f"the key {key.value} is not read as text: quote it"
                raise ConstructorError(None, None, problem, key.start_mark)
            if key.value in seen:
                raise ConstructorError(None, None, f"{key.value} stands twice", key.start_mark)
            seen.add(key.value)
        return node


_Loader.add_implicit_resolver(
    f"{_TAG}float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def read_yaml(file: Path) -> dict[str, Any]:
    """Return the table that a YAML file holds.

    Raises:
        FedhetError: There is no such file, it is not YAML, or holds something else than a table.
    """
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        remedy = f"cannot be read ({error.strerror}); give the path of a suite"
        raise FedhetError("suite", str(file), remedy) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        problem = " ".join(str(error).split())
        raise FedhetError("suite", str(file), f"is not valid YAML: {problem}") from None
    if not isinstance(content, dict):
        raise FedhetError("suite", str(file), "must be a table with name, base, seeds and runs")
    return content
