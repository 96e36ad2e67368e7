"""JSON schemas of settings, in which the string below a field describes it."""

from __future__ import annotations

import ast
from inspect import cleandoc, getsource
from itertools import pairwise

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import ModelSchema

from swarm.settings import Settings


def json_schema(model: type[BaseModel]) -> JsonSchemaValue:
    """The schema of a model, with the strings below its fields and those of models in it."""
    return model.model_json_schema(schema_generator=_Described)


class _Described(GenerateJsonSchema):
    """Reads the strings from the source. pydantic would do so in every process, when a model is defined."""

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        """See `GenerateJsonSchema`."""
        made = super().model_schema(schema)
        fields = made.get("properties", {})
        for name, text in _strings_below(schema["cls"]).items():
            if name in fields:  # and not a constant of the class
                fields[name]["description"] = text
        return made


def _strings_below(model: type[BaseModel]) -> dict[str, str]:
    """The string below each field of a model and of those that it extends."""
    found: dict[str, str] = {}
    for ancestor in reversed(model.__mro__):
        if not issubclass(ancestor, Settings):
            continue
        (definition,) = ast.parse(getsource(ancestor)).body
        assert isinstance(definition, ast.ClassDef)
        for field, below in pairwise(definition.body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    found[name] = cleandoc(text)
    return found
