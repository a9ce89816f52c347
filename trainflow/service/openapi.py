"""How the service describes itself: problems at every address, and the token.

Process: a replica of the service.  Pure.
"""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from trainflow.service.problems import MEDIA_TYPE, ProblemDocument, ProblemType

_OPEN = (413, 421, 422, 500)
_ALWAYS = (401, 403, 429, 503, *_OPEN)
_DESCRIPTION = """Jobs of TrainFlow: submit, follow, stop, resume, read what became of them.

Errors are problem details (RFC 9457). Tokens have scopes: `read` for what is asked by GET, `submit`
for the rest. Whoever may submit runs code on the cluster.
"""


def problems_for(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the descriptions of a route's problems."""
    return {status: _describe(status) for status in statuses}


def _describe(status: int) -> dict[str, Any]:
    of_status = [each for each in ProblemType if each.status == status]
    return {
        "description": "; ".join(each.title for each in of_status),
        "content": {
            MEDIA_TYPE: {
                "schema": {"$ref": f"#/components/schemas/{ProblemDocument.__name__}"},
                "example": ProblemDocument(
                    type=of_status[0].urn,
                    title=of_status[0].title,
                    status=status,
                    detail="setting: got ..., expected ...; what to change",
                ).model_dump(),
            }
        },
    }


def describe_app(app: FastAPI, open_paths: frozenset[str]) -> dict[str, Any]:
    """Return the OpenAPI document of an app."""
    document = get_openapi(
        title="TrainFlow", version=app.version, description=_DESCRIPTION, routes=app.routes
    )
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    reference = "#/components/schemas/{model}"
    problem = ProblemDocument.model_json_schema(ref_template=reference)
    schemas |= problem.pop("$defs", {}) | {ProblemDocument.__name__: problem}
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            _complete(operation, needs_token=path not in open_paths)
    return document


def _complete(operation: dict[str, Any], *, needs_token: bool) -> None:
    """Add what is answered before a route is asked; drop what FastAPI has of invalid input."""
    responses = operation["responses"]
    if "application/json" in responses.get("422", {}).get("content", {}):
        del responses["422"]
    for status in _ALWAYS if needs_token else _OPEN:
        responses.setdefault(str(status), _describe(status))
    if needs_token:
        operation["security"] = [{"token": []}]
