"""What a route has besides sessions: one agent and one environment, so that a program gets to a
session, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

from adapters.contract.faces import Action, Incoming, Route, RouteContext, Static
from adapters.contract.faces.answers import json_answer
from adapters.managed_agents import answers
from adapters.model.base import Response
from adapters.wire.errors import DragomanError, ErrorCode
from adapters.wire.jsonvalue import format_json


def check_agent(name: str, place: RouteContext) -> None:
    """Check that the route has an agent of this name.

    Raises:
        DragomanError: it does not.
    """
    backend = place.draw()
    # Whichever is drawn, and wherever the route leads by now: frontends keep the name they have.
    known = {place.route, *(called for one in place.known for called in (one.agent, one.name))}
    if name not in known and not backend.any_agent:
        raise DragomanError(
            f"There is no agent `{name[:80]}`; this route has `{backend.agent}`.",
            code=ErrorCode.NOT_FOUND,
        )


def _agents(_: Incoming, place: RouteContext) -> Response:
    agent = format_json(answers.agent_object(place.draw()))
    return answers.data_answer([agent], next_page=None)


def _agent(incoming: Incoming, place: RouteContext) -> Response:
    check_agent(incoming.names["agent"], place)
    return json_answer(200, answers.agent_object(place.draw()))


def _same_agent(_: Incoming, place: RouteContext) -> Response:
    return json_answer(200, answers.agent_object(place.draw()))


def _environments(_: Incoming, place: RouteContext) -> Response:
    own = answers.environment_object(answers.environment_id(place.route), place.route)
    return answers.data_answer([format_json(own)], next_page=None)


def _environment(incoming: Incoming, place: RouteContext) -> Response:
    name = incoming.names["environment"]
    return json_answer(200, answers.environment_object(name, place.route))


def _same_environment(_: Incoming, place: RouteContext) -> Response:
    name = answers.environment_id(place.route)
    return json_answer(200, answers.environment_object(name, place.route))


def _route(
    method: str,
    path: str,
    answer: Callable[[Incoming, RouteContext], Response],
    needs: Action = Action.READ,
) -> Route:
    return Route(method=method, path=path, needs=needs, does=Static(answer))


_AGENT = "/v1/agents/{agent}"
_ENVIRONMENT = "/v1/environments/{environment}"

CATALOGUE = (
    _route("GET", "/v1/agents", _agents),
    _route("GET", _AGENT, _agent),
    _route("POST", "/v1/agents", _same_agent, Action.CREATE),
    _route("GET", "/v1/environments", _environments),
    _route("GET", _ENVIRONMENT, _environment),
    _route("POST", "/v1/environments", _same_environment, Action.CREATE),
)
"""The routes."""
