"""Import contracts about every dialect: their lists come from the registry.

`pyproject.toml` names these two types in place of import-linter's own. Where they stand for modules
in a contract, they add the folder of each dialect, so that a new one needs no edit there.
"""

from __future__ import annotations

from typing import Any

from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.independence import IndependenceContract

from adapters.registry import DIALECTS

__all__ = ["DialectsForbidden", "DialectsIndependent"]


def _folders() -> list[str]:
    return [f"adapters.{known.folder}" for known in DIALECTS.values()]


class DialectsIndependent(IndependenceContract):
    """No dialect imports another one."""

    type_name = "dialects_independent"

    def __init__(
        self, name: str, session_options: dict[str, Any], contract_options: dict[str, Any]
    ) -> None:
        options = {**contract_options, "modules": _folders()}
        super().__init__(name, session_options, options)


class DialectsForbidden(ForbiddenContract):
    """Some modules import no dialect, besides what `forbidden_modules` names."""

    type_name = "dialects_forbidden"

    def __init__(
        self, name: str, session_options: dict[str, Any], contract_options: dict[str, Any]
    ) -> None:
        forbidden = [*_folders(), *contract_options.get("forbidden_modules", ())]
        super().__init__(
            name, session_options, {**contract_options, "forbidden_modules": forbidden}
        )
