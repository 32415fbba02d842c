"""By which names the configs of transformers' classes give a value, and which of them counts.

    python tests/record/spellings.py crates/models/src/huggingface/spellings.json tests/golden/spellings.json

Wants transformers 5.17. Asks the class of each config in `tests/golden/huggingface` what it makes of two names with different numbers,
in either order: those of its `attribute_map`, and those that it takes out of its arguments. The first file has, by family and by what
batchfit or transformers calls a value, the names that count where they are there. The second has configs, one a line: `said` are members
in place of those of the golden config `of` (null leaves one out), `read` what transformers makes of them; among them what transformers
itself writes of a config and would not have to be told.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import re
import sys
from pathlib import Path

os.environ["TRANSFORMERS_VERBOSITY"] = "critical"
import transformers

GOLDEN = Path(__file__).parent.parent / "golden/huggingface"
ENDINGS = r"(For[A-Z]\w+|LMHeadModel|Model)$"
Config = dict[str, object]


def numbers(config_class: type, config: Config) -> Config:
    """The whole numbers that the class reads in a config."""
    read = config_class.from_dict(dict(config)).to_dict()
    return {name: value for name, value in read.items() if isinstance(value, int) and not isinstance(value, bool)}


def value(config_class: type, config: Config, name: str) -> object:
    try:
        return getattr(config_class.from_dict(dict(config)), name, None)
    except Exception:  # The class refuses this number, or a number here.
        return None


def others(config_class: type) -> dict[str, list[str]]:
    """The names that count in place of another."""
    mapped = config_class.attribute_map
    taken = re.findall(r'kwargs\.pop\("(\w+)"', inspect.getsource(config_class.__post_init__))
    names = {*mapped, *mapped.values(), *taken}
    found: dict[str, list[str]] = {}
    for name in sorted(names | {field.name for field in dataclasses.fields(config_class)}):
        for other in sorted(names):
            both = [{name: 24, other: 48}, {other: 48, name: 24}]
            if name != other and all(value(config_class, config, name) == 48 for config in both):
                found.setdefault(name, []).append(other)
    return found


def cases(of: str, config: Config, config_class: type, spellings: dict[str, list[str]]) -> list[Config]:
    """The golden config under each other name alone, and under that after all others with another number."""
    made = []
    for name, names in spellings.items():
        size = value(config_class, config, name)
        nothing = dict.fromkeys([name, *names])
        for other in names:
            for before_it in ({}, {key: size * 2 for key in nothing if key != other}):
                said = {**before_it, other: size}
                rest = {key: value for key, value in config.items() if key not in nothing}
                before, after = numbers(config_class, config), numbers(config_class, {**rest, **said})
                changed = {key: value for key, value in after.items() if before.get(key) != value}
                made.append({"of": of, "said": said if before_it else {**nothing, **said}, "read": {**nothing, name: size, **changed}})
    return made


def written(config: Config, config_class: type) -> Config:
    """Members that the class writes besides what it was given and takes as arguments, or writes otherwise."""
    own = {field.name for field in dataclasses.fields(config_class)} - set(config) | {"model_type", "transformers_version"}
    saved = json.loads(config_class.from_dict(dict(config)).to_json_string())
    plain = {name: value for name, value in saved.items() if isinstance(value, bool | int | float | str)}
    return {name: value for name, value in plain.items() if name not in own and config.get(name) != value}


if __name__ == "__main__":
    families, lines = {}, []
    for path in sorted(GOLDEN.glob("*.json")):
        config = json.loads(path.read_text())["hf"]
        family = re.sub(ENDINGS, "", config["architectures"][0])
        config_class = getattr(transformers, config["architectures"][0]).config_class
        if family not in families:
            families[family] = others(config_class)
            lines += cases(path.stem, config, config_class, families[family])
        if said := written(config, config_class):
            lines.append({"of": path.stem, "said": said, "read": {}})
    families = {family: found for family, found in sorted(families.items()) if found}
    rows = [f"{json.dumps(family)}: {json.dumps(found)}" for family, found in families.items()]
    Path(sys.argv[1]).write_text("{\n  " + ",\n  ".join(rows) + "\n}\n")
    Path(sys.argv[2]).write_text("[\n  " + ",\n  ".join(map(json.dumps, lines)) + "\n]\n")
