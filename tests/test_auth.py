"""Who a request comes from, and that nobody learns of what is not theirs."""

from __future__ import annotations

import base64
import hashlib
import hmac
from itertools import product

import pytest
from multidict import CIMultiDict

from adapters.contract.faces import Action
from adapters.wire.errors import DragomanError, ErrorCode
from proxy.config.settings import (
    SHADOWS,
    BackendSettings,
    KeySettings,
    RouteSettings,
    Settings,
    Share,
)
from proxy.http.auth import (
    Key,
    Principal,
    authenticate,
    authorize,
    authorize_action,
    authorize_admin,
    may_use,
)

WEB, OPS = "k-web-71", "k-öps-72"
KEYS = tuple(
    Key(name, hashlib.sha256(value.encode()).digest())
    for name, value in (("web", WEB), ("ops", OPS))
)


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({"Authorization": f"Bearer {WEB}"}, "web"),
        ({"authorization": f"bearer  {WEB} "}, "web"),
        ({"X-Api-Key": WEB}, "web"),
        ({"x-engine-key": OPS}, "ops"),
        ({"Authorization": basic("anybody", WEB)}, "web"),
        ({"Authorization": basic("", WEB)}, "web"),
        # A frontend's own credential beside ours does not hide ours.
        ({"Authorization": "Bearer of-something-else", "x-api-key": OPS}, "ops"),
    ],
)
def test_each_dialects_way_to_send_a_key_is_understood(headers: dict[str, str], name: str) -> None:
    assert authenticate(CIMultiDict(headers), KEYS) == Principal(name)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer"},
        {"Authorization": WEB},
        {"Authorization": f"Digest {WEB}"},
        {"Authorization": basic(WEB, "")},
        {"Authorization": "Basic ???"},
        {"Authorization": "Basic \N{SNOWMAN}"},
        {"x-api-key": ""},
        {"x-api-key": "\udcff"},
        # The hash is not a key.
        {"x-api-key": hashlib.sha256(WEB.encode()).hexdigest()},
        {"Cookie": WEB},
    ],
)
def test_anything_else_is_unauthorized_and_is_not_quoted(headers: dict[str, str]) -> None:
    with pytest.raises(DragomanError) as refused:
        authenticate(CIMultiDict(headers), KEYS)
    assert refused.value.code is ErrorCode.UNAUTHORIZED
    for value in headers.values():
        given = value.removeprefix("Bearer").strip()
        assert not given or given not in refused.value.message


def test_without_configured_keys_everybody_is_local() -> None:
    assert authenticate(CIMultiDict({"Authorization": "Bearer x"}), ()) == Principal("local")
    assert authenticate(CIMultiDict(), ()) == Principal("local")


def test_the_work_does_not_tell_which_key_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []
    real = hmac.compare_digest

    def counting(left: bytes, right: bytes) -> bool:
        compared.append(right)
        return real(left, right)

    monkeypatch.setattr("proxy.http.auth.hmac.compare_digest", counting)
    counts = []
    for value in (WEB, OPS, "wrong"):
        compared.clear()
        try:
            authenticate(CIMultiDict({"x-api-key": value}), KEYS)
        except DragomanError:
            assert value == "wrong"
        counts.append(len(compared))
    assert counts == [2, 2, 2]


def test_keys_come_from_the_configuration() -> None:
    setting = KeySettings(name="web", sha256=hashlib.sha256(WEB.encode()).hexdigest())
    assert Key.from_settings([setting]) == KEYS[:1]


def settings_with_keys() -> Settings:
    def key(name: str, backends: tuple[str, ...] | None) -> KeySettings:
        digest = hashlib.sha256(name.encode()).hexdigest()
        return KeySettings(name=name, sha256=digest, backends=backends)

    def backend(name: str) -> BackendSettings:
        return BackendSettings(name=name, dialect="engine", url="http://127.0.0.1:1")

    return Settings(
        backends=(backend("a"), backend("b")),
        routes=(
            RouteSettings(name="only-a", backends=(Share(name="a"),)),
            RouteSettings(name="both", backends=(Share(name="a"), Share(name="b"))),
        ),
        keys=(key("all", None), key("of-a", ("a",)), key("by-route", ("both",)), key("none", ())),
    )


MAY_USE = {
    "all": {"a", "b", "only-a", "both"},
    "of-a": {"a", "only-a"},
    "by-route": {"both"},
    "none": set(),
    # No key of that name: it was taken out of the configuration.
    "gone": set(),
    "local": set(),
}


def test_a_key_sees_exactly_its_routes() -> None:
    settings = settings_with_keys()
    for name, routes in MAY_USE.items():
        seen = {
            r for r in [*settings.route_names, "no-such"] if may_use(Principal(name), r, settings)
        }
        assert seen == routes


def refusal(principal: str, owner: str | None, action: Action, route: str) -> ErrorCode | None:
    try:
        authorize(Principal(principal), owner, action, route, settings_with_keys())
    except DragomanError as error:
        return error.code
    return None


def test_whatever_is_not_allowed_is_not_found_and_never_forbidden() -> None:
    names = [*MAY_USE]
    routes = ["a", "b", "only-a", "both", "no-such"]
    for principal, owner, action, route in product(names, [None, *names], Action, routes):
        own = owner is None or owner == principal
        allowed = own and route in MAY_USE[principal]
        if principal == "all" and owner == "all" and action is Action.READ:
            allowed = True
        expected = None if allowed else ErrorCode.NOT_FOUND
        assert refusal(principal, owner, action, route) is expected, (
            principal,
            owner,
            action,
            route,
        )


def test_a_refusal_does_not_tell_a_foreign_session_from_a_missing_one() -> None:
    settings = settings_with_keys()
    with pytest.raises(DragomanError) as foreign:
        authorize(Principal("of-a"), "all", Action.READ, "a", settings)
    with pytest.raises(DragomanError) as foreign_elsewhere:
        authorize(Principal("of-a"), "all", Action.READ, "b", settings)
    assert foreign.value.message == foreign_elsewhere.value.message == "There is no such session."
    with pytest.raises(DragomanError) as hidden:
        authorize(Principal("of-a"), None, Action.CREATE, "b", settings)
    with pytest.raises(DragomanError) as missing:
        authorize(Principal("of-a"), None, Action.CREATE, "c", settings)
    assert hidden.value.message.replace("`b`", "`c`") == missing.value.message


def test_a_session_whose_route_is_gone_can_be_read_but_not_driven() -> None:
    assert refusal("all", "all", Action.READ, "no-such") is None
    for action in (Action.WRITE, Action.ANSWER, Action.CONTROL):
        assert refusal("all", "all", action, "no-such") is ErrorCode.NOT_FOUND
    assert refusal("of-a", "of-a", Action.READ, "no-such") is ErrorCode.NOT_FOUND


def test_without_keys_local_may_do_everything_with_its_own() -> None:
    backend = BackendSettings(name="a", dialect="engine", url="http://127.0.0.1:1")
    settings = Settings(backends=(backend,))
    for action in Action:
        authorize(Principal("local"), "local", action, "a", settings)
    with pytest.raises(DragomanError):
        authorize(Principal("local"), "web", Action.READ, "a", settings)
    assert not may_use(Principal("web"), "a", settings)


def settings_with_an_administrator() -> Settings:
    digest = hashlib.sha256(b"ops").hexdigest()
    ops = KeySettings(name="ops", sha256=digest, admin=True)
    settings = settings_with_keys()
    return settings.model_copy(update={"keys": (*settings.keys, ops)})


def test_a_key_administers_that_is_said_to_and_without_keys_everybody_does() -> None:
    settings = settings_with_an_administrator()
    authorize_admin(Principal("ops"), settings)
    authorize_admin(Principal("local"), Settings())
    for name in MAY_USE:
        with pytest.raises(DragomanError) as refused:
            authorize_admin(Principal(name), settings)
        assert refused.value.code is ErrorCode.FORBIDDEN


def test_an_administrator_reads_and_settles_every_session_and_does_nothing_else() -> None:
    settings, ops = settings_with_an_administrator(), Principal("ops")
    for owner, action, route in product(
        (None, "ops", "all", "local"), Action, (*settings.route_names, "no-such")
    ):
        if owner is not None and action in (Action.READ, Action.SETTLE):
            authorize(ops, owner, action, route, settings)
            continue
        with pytest.raises(DragomanError, match="Use a key without `admin = true`") as refused:
            authorize(ops, owner, action, route, settings)
        assert refused.value.code is ErrorCode.FORBIDDEN
    # A shadow is nobody's.
    with pytest.raises(DragomanError) as refused:
        authorize(ops, SHADOWS, Action.READ, "a", settings)
    assert refused.value.code is ErrorCode.NOT_FOUND
    for action in Action:
        authorize_action(Principal("all"), action, settings)
        authorize_action(Principal("local"), action, Settings())
