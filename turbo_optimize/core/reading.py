"""What is wrong with a text that a person wrote: strict YAML, and a model's first defect. Pure: text in, words out."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError


class StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, where YAML's last one would win unseen."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a word", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def yaml_defect(e: yaml.YAMLError) -> tuple[int | None, str]:
    """The line (from 1; None where the parser names none) and the problem, on one line."""
    mark = getattr(e, "problem_mark", None) or getattr(e, "context_mark", None)
    problem = getattr(e, "problem", None) or getattr(e, "reason", None) or str(e)
    return (mark.line + 1 if mark else None), flat(problem)


def flat(text: str) -> str:
    return " ".join(text.split())


def kind(value: object) -> str:
    return "nothing" if value is None else type(value).__name__


def by_weight(e: ValidationError) -> list[Any]:
    """A model's defects; unknown keys come first, for a misspelt key is also a missing one."""
    return sorted(e.errors(include_url=False), key=lambda err: err["type"] != "extra_forbidden")


def fields_at(model: type[BaseModel], loc: Sequence[int | str]) -> list[str]:
    """The known keys at `loc`: walks from the model through the fields' own models."""
    here: type[BaseModel] | None = model
    for part in loc:
        field = here.model_fields.get(part) if here and isinstance(part, str) else None
        if field is not None:
            here = _model_in(field.annotation)
    return list(here.model_fields) if here else []


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model within an annotation such as `tuple[Shape, ...]` or `dict[str, Op]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((m for a in get_args(annotation) if (m := _model_in(a))), None)
