"""The configuration: one TOML file, overridden by the environment, checked before anything starts.

The models are what the file says and can be built in code as well: nothing here reads the
environment or a file but `load_settings`. It merges file, environment and options, turns each
complaint into one line that names where the value came from, the key and the nearest known name,
and resolves the backends' credentials, so that a missing one stops the start and not the first
request.

Why one module: it is the catalogue of all settings, with their checks.
"""

from __future__ import annotations

import functools
import ipaddress
import itertools
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self
from urllib.parse import SplitResult, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from adapters.captures.secrets import BadPattern, SecretFinder
from adapters.contract.dialect import Only
from adapters.registry import DIALECTS
from proxy.base.errors import ConfigError
from proxy.config.complaints import Place, complaints, nearest, not_toml, spell, spell_below
from proxy.config.credentials import file_value, looks_like_key, variable_value

PREFIX = "DRAGOMAN_"
DELIMITER = "__"

CLIENT_VARIABLES = frozenset({"DRAGOMAN_CONFIG", "DRAGOMAN_URL", "DRAGOMAN_KEY"})
"""Variables of the command line, which are not settings."""

LOCAL = "local"
"""The name of everybody while no keys are configured, and the owner of the sessions made then."""

OWNER = "owner:"
"""What stands before the name of the key that owns the sessions of a backend which calls us."""

SHADOWS = "(shadows)"
"""The owner of shadows: no key can have this name, so no frontend ever sees one."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# RFC 9110, section 5.6.2.
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_MEDIA_TYPE = re.compile(r"(?:\*/\*|[\w.+-]+/(?:\*|[\w.+-]+))")
# Those of browsers (HTML standard, "serialization of an origin") and of the apps that are made with
# them, such as `tauri://localhost`; `null` is that of every sandboxed page, and names nobody.
_ORIGIN = re.compile(
    r"(?!http://[^/]*:80$)(?!https://[^/]*:443$)"
    r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[1-9][0-9]{0,4})?"
)
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9}(?=\s*[A-Za-z]))?)\s*((?i:[KMGT]i?B)|)")

_ANY_HOST: Mapping[str, str] = {"0.0.0.0": "127.0.0.1", "::": "::1"}

ANY_ORIGIN = "*"
"""Every origin."""


class Address(NamedTuple):
    """Where to listen; port 0 takes a free one."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """The base URL of what listens here."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def reached(self) -> Self:
        """The address at which this machine reaches it: 0.0.0.0 is not an address to connect to."""
        return self._replace(host=_ANY_HOST.get(self.host, self.host))

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_listen(text: str) -> Address:
    """Return the address that `HOST:PORT` or `[IPV6]:PORT` names.

    Raises:
        ValueError: it names none.
    """
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]\s/]+)):([0-9]{1,5})", text)
    if match is None or int(match[3]) > 65_535:
        raise ValueError(f"`{text}` is not an address: write HOST:PORT, like 127.0.0.1:8787")
    return Address(match[1] or match[2], int(match[3]))


def _listen(text: str) -> str:
    parse_listen(text)
    return text


def is_name(text: str) -> bool:
    """Say whether a backend, a route or a key can have this name."""
    return _NAME.fullmatch(text) is not None


def _name(text: str) -> str:
    if not is_name(text):
        shown = "this, which looks like a key," if looks_like_key(text) else f"`{text}`"
        raise ValueError(
            f"{shown} cannot be a name: it stands in URLs, "
            "so write up to 64 letters, digits, `.`, `_` or `-`"
        )
    return text


def _origin(text: str) -> str:
    if text != ANY_ORIGIN and _ORIGIN.fullmatch(text) is None:
        raise ValueError(
            f"`{text}` is not an origin: write it as a browser sends it, scheme, host and a port "
            "that is not the usual one, in lower case, like `https://app.example.com`"
        )
    return text


def _size(value: object) -> object:
    """Return the bytes that a text like `10GB` says; what is not a text is left to be checked."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError(
            f"`{value[:40]}` is not a size: write bytes, or a number with kB, MB, GB, TB, KiB, "
            "MiB, GiB or TiB, like `36MiB`"
        )
    unit = match[2].upper()
    base = 1024 if "I" in unit else 1000
    return round(float(match[1]) * base ** " KMGT".index(unit[0])) if unit else int(match[1])


def _sha256(text: str) -> str:
    if _SHA256.fullmatch(text) is None:
        # The value is not shown: it may be the key itself.
        raise ValueError(
            "is not a SHA-256 in lower-case hex; print one with `printf %s KEY | sha256sum`"
        )
    return text


def _header(text: str) -> str:
    if _HEADER.fullmatch(text) is None:
        # The value is not shown: it may be the whole header, with the key.
        raise ValueError("is not a name of a header: write it alone, like `X-API-Key`")
    if looks_like_key(text):
        raise ValueError(
            "is the name of a header, and this looks like the key itself: name what holds the key "
            "with `env` or `file`"
        )
    return text


def _media_type(text: str) -> str:
    if _MEDIA_TYPE.fullmatch(text) is None:
        raise ValueError(f"`{text}` is not a media type: write `image/png`, `image/*` or `*/*`")
    return text


SECRET_CHARACTERS = 32
"""The least that a secret of `[cluster]` has."""


def is_postgres(url: str) -> bool:
    """Say whether a URL names a journal in PostgreSQL."""
    return url.startswith(("postgresql://", "postgres://"))


def _journal_url(text: str) -> str:
    if text in ("sqlite:///:memory:", "sqlite://"):
        raise ValueError("has no file: write `memory:` for a journal that goes with its server")
    if text == "memory:" or (text.startswith("sqlite:///") and text.strip("/") != "sqlite:"):
        return text
    if is_postgres(text):
        return text
    raise ValueError(
        "is not a journal: write `sqlite:///FILE`, `postgresql://USER@HOST/DATABASE` or `memory:`"
    )


def _adopt(text: str) -> str:
    owner = text.removeprefix(OWNER)
    if text != "never" and (owner == text or not is_name(owner)):
        raise ValueError("is not a way to adopt sessions: write `never` or `owner:KEY`")
    return text


def _dialect(value: object, only: Only) -> str:
    """Return the name of a dialect that has frontends, or backends."""
    fit = [name for name, known in DIALECTS.items() if known.only in (None, only)]
    given = str(value)[:40]
    if given in fit:
        return given
    if given in DIALECTS:
        known = DIALECTS[given]
        raise ValueError(
            f"{known.no_backends or known.no_frontends}; write one of {', '.join(_built(only))}"
        )
    raise ValueError(f"`{given}` is unknown{nearest(given, _built(only))}")


def _built(only: Only) -> list[str]:
    """Return the dialects whose half for frontends, or for backends, is there."""
    return [
        name
        for name, known in DIALECTS.items()
        if (known.has_face if only == "frontends" else known.has_client)
    ]


def _listener_dialect(value: object) -> str:
    return _dialect(value, "frontends")


def _backend_dialect(value: object) -> str:
    return _dialect(value, "backends")


Name = Annotated[str, AfterValidator(_name)]
ListenerDialect = Annotated[str, BeforeValidator(_listener_dialect)]
BackendDialect = Annotated[str, BeforeValidator(_backend_dialect)]
Listen = Annotated[str, AfterValidator(_listen)]
Origin = Annotated[str, AfterValidator(_origin)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Size = Annotated[int, BeforeValidator(_size)]
"""Bytes, as a number or like `10GB`."""


def _refuse(problems: Sequence[tuple[Place, str]]) -> None:
    """Raise an error for problems at places below a model, if there are any."""
    if problems:
        text = "; ".join(f"{spell_below(place)}: {why}" for place, why in problems)
        # A custom error takes its text as a format string.
        text = text.replace("{", "{{").replace("}", "}}")
        raise PydanticCustomError("contradiction", text, {"problems": problems})


class Table(BaseModel):
    """A table of the file: unknown keys are errors, which a model inherits by class only."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class ServerSettings(Table):
    """`[server]`: the main listener and the limits of all requests."""

    listen: Listen = "127.0.0.1:8787"
    shutdown_seconds: Seconds = 10.0
    # eve page, section 7.4: a reader with a lease expects a blank line every 10 s.
    heartbeat_seconds: Annotated[float, Field(gt=0, le=10)] = 10.0
    write_timeout_seconds: Seconds = 30.0
    # An eve upload of 25 MiB (eve page, section 4.2) is 33.3 MiB as base64.
    max_body_bytes: Annotated[Size, Field(ge=1024)] = 36 * 2**20
    # Half of what a Herm takes (Herm page, section 3.1); no model reads as much.
    max_text_bytes: Annotated[Size, Field(ge=1024)] = 2**20
    allowed_origins: tuple[Origin, ...] = ()
    # Seven of the largest at once.
    max_bodies_bytes: Annotated[Size, Field(ge=0)] = 256 * 2**20
    # The largest body comes in time over 5 Mbit/s.
    body_timeout_seconds: Seconds = 60.0
    ui: bool = True

    @property
    def address(self) -> Address:
        """`listen`, taken apart."""
        return parse_listen(self.listen)


class LimitSettings(Table):
    """`[limits]`: what one key may have; without keys that of everybody together."""

    # Five times the streams of the bench, which are those of one key.
    streams_per_key: Annotated[int, Field(ge=1)] = 10_000
    readers_per_key: Annotated[int, Field(ge=1)] = 500
    new_sessions_per_minute: Annotated[int, Field(ge=1)] = 6_000


class LogSettings(Table):
    """`[log]`: what is written to stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"


class JournalSettings(Table):
    """`[journal]`: where events are kept, and for how long the backends' own frames are."""

    url: Annotated[str, AfterValidator(_journal_url)] = "sqlite:///dragoman.db"
    pooled: bool = False
    frames: bool = True
    frame_retention_hours: Annotated[float, Field(gt=0)] = 24.0
    frame_limit_bytes: Annotated[Size, Field(ge=256)] = 64 * 1024
    window_ms: Annotated[float, Field(ge=0, le=1000)] = 2.0

    @property
    def path(self) -> Path | None:
        """The SQLite file, or None for a journal in memory or in PostgreSQL."""
        if not self.url.startswith("sqlite:///"):
            return None
        return Path(self.url.removeprefix("sqlite:///"))


def _pattern(text: str) -> str:
    try:
        SecretFinder(b"", patterns=(text,))
    except BadPattern as error:
        raise ValueError(str(error)) from None
    return text


class ClusterSettings(Table):
    """`[cluster]`: how the processes that share a journal reach each other. `listen` is an internal
    listener for them, `advertise` its URL as the others see it."""

    listen: Listen
    advertise: str
    secret_env: str | None = None
    secret_file: Path | None = None
    _secret: SecretStr = PrivateAttr(default=SecretStr(""))

    @model_validator(mode="after")
    def _one_secret(self) -> Self:
        if (self.secret_env is None) == (self.secret_file is None):
            raise ValueError("takes one of `secret_env` and `secret_file`")
        return self

    @field_validator("advertise")
    @classmethod
    def _base_url(cls, text: str) -> str:
        if why := _wrong_address(text):
            raise ValueError(why)
        return text.rstrip("/")

    @property
    def address(self) -> Address:
        """`listen`, taken apart."""
        return parse_listen(self.listen)

    @property
    def secret(self) -> bytes:
        """The secret that signs what processes say to each other, once `load_settings` put it
        here."""
        return self._secret.get_secret_value().encode()

    @classmethod
    def local(cls, secret: str) -> Self:
        """Return the settings of processes of one machine that nobody else is to reach."""
        listen = "127.0.0.1:0"
        made = cls(listen=listen, advertise=f"http://{listen}", secret_env="-")
        return made.with_secret(secret)

    def at(self, *, listen: str | None = None, port: int | None = None) -> Self:
        """Return a copy that listens elsewhere, or says that it is reached at another port."""
        update: dict[str, str] = {}
        if listen is not None:
            update["listen"] = listen
        if port is not None:
            parts = urlsplit(self.advertise)
            host = parts.netloc.rpartition(":")[0] if parts.port is not None else parts.netloc
            update["advertise"] = parts._replace(netloc=f"{host}:{port}").geturl()
        copy = self.model_copy(update=update)
        copy._secret = self._secret
        return copy

    def with_secret(self, secret: str) -> Self:
        """Return a copy that has the secret; nothing shows it."""
        copy = self.model_copy()
        copy._secret = SecretStr(secret)
        return copy

    def resolved(self, environ: Mapping[str, str]) -> Self:
        """Return a copy with the secret that the configuration names.

        Raises:
            ValueError: there is none, or it is too short to be one.
        """
        if self.secret_env is not None:
            secret = variable_value(self.secret_env, environ)
        else:
            assert self.secret_file is not None
            secret = file_value(self.secret_file)
        if len(secret) < SECRET_CHARACTERS:
            raise ValueError(
                f"the secret has fewer than {SECRET_CHARACTERS} characters: make one with "
                "`openssl rand -hex 32`"
            )
        return self.with_secret(secret)


def _wrong_address(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment or parts.path not in ("", "/"):
        return "must be like `http://HOST:8788`: how other machines reach this process"
    if parts.username is not None:
        return "must not hold a credential, since others are shown it"
    return ""


class RetentionSettings(Table):
    """`[retention]`: how long sessions are kept in which nothing is open; None is for ever."""

    max_age_days: Annotated[float, Field(gt=0)] | None = None
    max_bytes_per_backend: Annotated[Size, Field(gt=0)] | None = None
    max_bytes: Annotated[Size, Field(gt=0)] | None = None


class CaptureSettings(Table):
    """`[capture]`: which sessions are recorded, and where; without `routes` those of all."""

    dir: Path
    routes: tuple[str, ...] = ()
    header: bool = False
    redact_keys: tuple[str, ...] = ()
    redact_patterns: tuple[Annotated[str, AfterValidator(_pattern)], ...] = ()


class OtelSettings(Table):
    """`[otel]`: spans for OpenTelemetry, whose own variables say where they go."""

    enabled: bool = False


class AuthSettings(Table):
    """A backend's credential, by reference: the file never holds the value."""

    bearer_env: str | None = None
    bearer_file: Path | None = None
    header: Annotated[str, AfterValidator(_header)] | None = None
    env: str | None = None
    file: Path | None = None

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        forms = ({"bearer_env"}, {"bearer_file"}, {"header", "env"}, {"header", "file"})
        given = {name for name in type(self).model_fields if getattr(self, name) is not None}
        if given not in forms:
            raise ValueError(
                "takes one of `{ bearer_env }`, `{ bearer_file }`, `{ header, env }` "
                "and `{ header, file }`"
            )
        return self


@dataclass(frozen=True, slots=True)
class Credential:
    """The header that a backend wants with every request; only its client may read `value`."""

    header: str
    secret: SecretStr
    scheme: str = ""

    @property
    def value(self) -> str:
        """What stands in the header."""
        return self.scheme + self.secret.get_secret_value()


class CreateSettings(Table):
    """What a create names and frontends of other dialects cannot say."""

    agent: str | None = None
    environment_id: str | None = None
    user_id: str | None = None


class DialectSettings(Table):
    """Settings of how a backend is driven. `silence_seconds` is how long an open stream may bring
    no byte before it is opened anew. `interrupt` and `task_ids_of` are for engine backends:
    the one owner whose frontends' names of tasks go to the backend as they are.
    """

    patience_seconds: Annotated[float, Field(gt=0)] | None = None
    silence_seconds: Annotated[float, Field(gt=0)] | None = None
    quiet_seconds: Annotated[float, Field(gt=0)] = 60.0
    interrupt: Literal["impossible", "deny"] | None = None
    task_ids_of: str | None = None

    @property
    def patience_ms(self) -> int | None:
        """Return the configured patience in milliseconds, None where its dialect's own holds."""
        return None if self.patience_seconds is None else round(self.patience_seconds * 1000)

    @property
    def quiet_ms(self) -> int:
        """Return how long a turn may be silent until the backend is asked, in milliseconds."""
        return round(self.quiet_seconds * 1000)


class BackendSettings(Table):
    """`[[backends]]`: one agent server."""

    name: Name
    dialect: BackendDialect
    url: str
    auth: AuthSettings | None = None
    create: CreateSettings = CreateSettings()
    adopt: Annotated[str, AfterValidator(_adopt)] = "never"
    max_frame_bytes: Annotated[Size, Field(ge=1024)] = 36 * 2**20
    sandbox: bool = False
    settings: DialectSettings = DialectSettings()

    _credential: Credential | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _fits_its_dialect(self) -> Self:
        problems: list[tuple[Place, str]] = []
        if why := wrong_url(self.url, self.dialect):
            problems.append((("url",), why))
        if self.adopt != "never" and not DIALECTS[self.dialect].has_receiver:
            why = "sessions that existed before cannot be adopted yet: write `never`"
            problems.append((("adopt",), why))
        for dialect in DIALECTS.values():
            for name in sorted(dialect.backend_settings - DIALECTS[self.dialect].backend_settings):
                if getattr(self.settings, name) is not None:
                    why = f"is for backends of the dialect `{dialect.name}` only"
                    problems.append((("settings", name), why))
        _refuse(problems)
        return self

    @functools.cached_property
    def own_route(self) -> RouteSettings:
        """The route that every backend is by itself; each request asks for it several times."""
        return RouteSettings(name=self.name, backends=(Share(name=self.name),))

    @property
    def owner(self) -> str:
        """Whose the sessions are that a backend begins by itself."""
        return LOCAL if self.adopt == "never" else self.adopt.removeprefix(OWNER)

    @property
    def credential(self) -> Credential | None:
        """The credential, once `load_settings` or `with_credential` put it here."""
        return self._credential

    def with_credential(self, header: str, secret: str, *, scheme: str = "") -> Self:
        """Return a copy that sends `scheme` and `secret` in `header`; nothing shows them."""
        copy = self.model_copy()
        copy._credential = Credential(header, SecretStr(secret), scheme)
        return copy


class Share(Table):
    """A backend's part in a route: new sessions are spread by weight. A name alone is a share."""

    name: str
    weight: Annotated[int, Field(ge=0, le=1_000_000)] = 100

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, given: object) -> object:
        return {"name": given} if isinstance(given, str) else given


class AisdkRouteSettings(Table):
    """`aisdk` of `[[routes]]`: what a route has otherwise than `[aisdk]`."""

    words_while_asked: Literal["decline", "refuse"] | None = None
    memory: Literal["server", "page"] | None = None


class AguiRouteSettings(Table):
    """`agui` of `[[routes]]`: what a route has otherwise than `[agui]`."""

    memory: Literal["server", "page"] | None = None


class RouteSettings(Table):
    """`[[routes]]`: a name that frontends use. Every backend is a route without being listed.

    `shadow` is a backend that gets the inputs of new sessions too, and serves nobody. A table with
    the name of a dialect has what its face does otherwise here.
    """

    name: Name
    backends: tuple[Share, ...]
    shadow: str | None = None
    aisdk: AisdkRouteSettings = AisdkRouteSettings()
    agui: AguiRouteSettings = AguiRouteSettings()


class KeySettings(Table):
    """`[[keys]]`: a frontend's key, known by its hash. Without `backends` it may use every route.

    `backends` names backends or routes: a route may be used if it or all of its backends are named.
    `admin` makes it an administrator's: it does what concerns all keys, and serves no frontend.
    """

    name: Name
    sha256: Annotated[str, AfterValidator(_sha256)]
    backends: tuple[str, ...] | None = None
    admin: bool = False

    @model_validator(mode="after")
    def _admin_of_all(self) -> Self:
        if self.admin and self.backends is not None:
            raise ValueError(
                "`admin` is for keys without `backends`: it may lead every route anywhere"
            )
        return self


class ListenerSettings(Table):
    """`[[listeners]]`: one dialect and route at the root of a port of its own."""

    listen: Listen
    dialect: ListenerDialect
    route: str

    @property
    def address(self) -> Address:
        """`listen`, taken apart."""
        return parse_listen(self.listen)


class UploadSettings(Table):
    """`[eve.upload]`: which files the eve face takes (eve page, section 4.2)."""

    max_bytes: Annotated[Size, Field(ge=0)] = 26_214_400
    media_types: tuple[Annotated[str, AfterValidator(_media_type)], ...] = ("*/*",)


class EveSettings(Table):
    """`[eve]`: the form of the eve face."""

    form: Literal["all", "tokens", "newest"] = "all"
    token_rotation: bool = True
    upload: UploadSettings = UploadSettings()


class AisdkSettings(Table):
    """`[aisdk]`: the tool by which pages are asked what is not the approval of a call, what words
    do that come while something is asked, and whose history counts."""

    ask_tool: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = "dragoman_ask"
    words_while_asked: Literal["decline", "refuse"] = "decline"
    memory: Literal["server", "page"] = "server"


class AguiSettings(Table):
    """`[agui]`: whose history counts."""

    memory: Literal["server", "page"] = "server"


class ManagedAgentsSettings(Table):
    """`[managed_agents]`: the custom tool by which a program is asked what is not the approval of a
    call."""

    ask_tool: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = "dragoman_ask"


class Settings(BaseSettings):
    """The whole configuration. Built in code it reads nothing.

    Raises:
        pydantic.ValidationError: a value or a reference is wrong.
    """

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        env_prefix=PREFIX,
        env_nested_delimiter=DELIMITER,
    )

    server: ServerSettings = ServerSettings()
    limits: LimitSettings = LimitSettings()
    log: LogSettings = LogSettings()
    journal: JournalSettings = JournalSettings()
    cluster: ClusterSettings | None = None
    retention: RetentionSettings = RetentionSettings()
    capture: CaptureSettings | None = None
    otel: OtelSettings = OtelSettings()
    backends: tuple[BackendSettings, ...] = ()
    routes: tuple[RouteSettings, ...] = ()
    keys: tuple[KeySettings, ...] = ()
    listeners: tuple[ListenerSettings, ...] = ()
    eve: EveSettings = EveSettings()
    aisdk: AisdkSettings = AisdkSettings()
    agui: AguiSettings = AguiSettings()
    managed_agents: ManagedAgentsSettings = ManagedAgentsSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take arguments only; `load_settings` is who reads file and environment."""
        return (init_settings,)

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        _refuse(list(_contradictions(self)))
        return self

    @property
    def route_names(self) -> list[str]:
        """The names that frontends can use, backends first."""
        backends = [backend.name for backend in self.backends]
        return backends + [route.name for route in self.routes]

    def backend(self, name: str) -> BackendSettings | None:
        """Return the backend of that name, or None."""
        for backend in self.backends:
            if backend.name == name:
                return backend
        return None

    def route(self, name: str) -> RouteSettings | None:
        """Return the route of that name, a backend's own included, or None."""
        for route in self.routes:
            if route.name == name:
                return route
        backend = self.backend(name)
        return None if backend is None else backend.own_route

    def key(self, name: str) -> KeySettings | None:
        """Return the key of that name, or None."""
        for key in self.keys:
            if key.name == name:
                return key
        return None

    def face(self, dialect: str, route: str = "") -> Mapping[str, Any]:
        """Return the table that has a dialect's name: how its face is served, on a route where one
        is named; empty without one."""
        name = DIALECTS[dialect].folder
        table = getattr(self, name, None)
        known = table.model_dump() if isinstance(table, Table) else {}
        own = getattr(self.route(route), name, None)
        return known | own.model_dump(exclude_none=True) if isinstance(own, Table) else known

    def secrets(self) -> list[str]:
        """Return the backends' credentials, for anybody who must recognise them to hide them."""
        return [
            backend.credential.secret.get_secret_value()
            for backend in self.backends
            if backend.credential is not None
        ]


def contradictions(settings: Settings) -> list[str]:
    """Return what is wrong between the tables of settings that were put together from others."""
    return [f"{spell(place)}: {why}" for place, why in _contradictions(settings)]


def wrong_url(url: str, dialect: str) -> str:
    """Say what is wrong with a backend's URL, if anything."""
    known = DIALECTS[dialect]
    if url in known.other_urls:
        return ""
    schemes = known.url_schemes
    if not schemes:
        return f"must be {' or '.join(f'`{one}`' for one in known.other_urls)}"
    try:
        parts: SplitResult = urlsplit(url)
        usable = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
        # A name of a host that has no form for the resolver, or blanks, is not one.
        usable = usable and bool(parts.netloc.encode("idna")) and not re.search(r"\s", url)
    except ValueError:
        usable = False
    if not usable:
        return f"must begin with {' or '.join(f'{s}://' for s in schemes)} and name a host"
    if parts.username is not None or parts.password is not None:
        # The value is not shown: it holds the credential.
        return "must not hold a credential, since it is shown in lists: use `auth`"
    if parts.query or parts.fragment:
        return "is the base of all paths: it has no `?` and no `#`"
    return ""


def _contradictions(settings: Settings) -> Iterator[tuple[Place, str]]:
    """Yield what is wrong between tables: names used twice, names of nothing, no keys."""
    yield from itertools.chain(_repeated(settings), _nothing_shared(settings))
    backends = [backend.name for backend in settings.backends]
    for at, route in enumerate(settings.routes):
        for number, share in enumerate(route.backends):
            if share.name not in backends:
                place: Place = ("routes", at, "backends", number)
                yield place, f"there is no backend `{share.name}`{nearest(share.name, backends)}"
        if not route.backends:
            yield ("routes", at, "backends"), "is empty: write the names of the route's backends"
        elif not any(share.weight for share in route.backends):
            why = "needs a backend whose weight is not 0: no session could be made"
            yield ("routes", at, "backends"), why
    routes = settings.route_names
    for at, key in enumerate(settings.keys):
        for number, name in enumerate(key.backends or ()):
            if name not in routes:
                place = ("keys", at, "backends", number)
                yield place, f"there is no backend or route `{name}`{nearest(name, routes)}"
    yield from _undriven(settings)
    yield from _unowned_deliveries(settings)
    yield from _misnamed_captures(settings)
    yield from _misnamed_tasks(settings)
    yield from _wrong_shadows(settings)
    for at, listener in enumerate(settings.listeners):
        if listener.route not in routes:
            why = (
                f"there is no backend or route `{listener.route}`{nearest(listener.route, routes)}"
            )
            yield ("listeners", at, "route"), why
    if not settings.keys:
        if ANY_ORIGIN in settings.server.allowed_origins:
            why = (
                "`*` would let every web page use this server, which without keys asks nobody who "
                "they are: name the origins, or add [[keys]]"
            )
            yield ("server", "allowed_origins"), why
        for place, listen in _listens(settings):
            if not parse_listen(listen).loopback:
                yield (
                    place,
                    (
                        f"`{listen}` can be reached from other machines, which needs a key: "
                        "add [[keys]], or listen on 127.0.0.1"
                    ),
                )


def _undriven(settings: Settings) -> Iterator[tuple[Place, str]]:
    """Yield the parts of routes in backends that can be given no session."""
    for at, route in enumerate(settings.routes):
        named: list[tuple[Place, str]] = [
            (("backends", number), one.name) for number, one in enumerate(route.backends)
        ]
        if route.shadow is not None:
            named.append((("shadow",), route.shadow))
        for place, name in named:
            backend = settings.backend(name)
            why = "" if backend is None else DIALECTS[backend.dialect].not_driven
            if backend is not None and why:
                text = f"backend `{name}` is of dialect `{backend.dialect}`, {why}"
                yield ("routes", at, *place), text


def _unowned_deliveries(settings: Settings) -> Iterator[tuple[Place, str]]:
    """Yield the backends that call us and whose sessions would be nobody's, or anybody's."""
    for at, backend in enumerate(settings.backends):
        known = DIALECTS[backend.dialect]
        if not known.has_receiver:
            continue
        owner = backend.owner
        if not settings.keys:
            if owner != LOCAL:
                why = f"there is no key `{owner}`: without [[keys]] write `never`"
                yield ("backends", at, "adopt"), why
            continue
        key = settings.key(owner)
        if backend.adopt == "never":
            why = "must name the key that owns the sessions which this backend sends: `owner:KEY`"
            yield ("backends", at, "adopt"), why
        elif key is None or key.admin:
            names = [one.name for one in settings.keys if not one.admin]
            why = f"there is no key `{owner}` for frontends{nearest(owner, names)}"
            yield ("backends", at, "adopt"), why
        if backend.auth is None:
            why = (
                "is missing: other machines reach this server, so deliveries must be signed; write "
                f'`auth = {{ header = "{known.key_header}", env = "VARIABLE" }}`'
            )
            yield ("backends", at, "auth"), why


def _nothing_shared(settings: Settings) -> Iterator[tuple[Place, str]]:
    """Yield the cluster that has nothing in common."""
    if settings.cluster is not None and not is_postgres(settings.journal.url):
        why = 'needs a journal that processes can share: `url = "postgresql://…"` in `[journal]`'
        yield ("cluster",), why


def _misnamed_captures(settings: Settings) -> Iterator[tuple[Place, str]]:
    """Yield the routes that are to be recorded and are not there."""
    routes = settings.route_names
    for at, name in enumerate(() if settings.capture is None else settings.capture.routes):
        if name not in routes:
            why = f"there is no backend or route `{name}`{nearest(name, routes)}"
            yield ("capture", "routes", at), why


def _wrong_shadows(settings: Settings) -> Iterator[tuple[Place, str]]:
    """Yield the shadows that are not there, that may do harm, or that serve."""
    backends = [backend.name for backend in settings.backends]
    for at, route in enumerate(settings.routes):
        name, place = route.shadow, ("routes", at, "shadow")
        if name is None:
            continue
        backend = settings.backend(name)
        if backend is None:
            yield place, f"there is no backend `{name}`{nearest(name, backends)}"
        elif not backend.sandbox:
            why = (
                f"backend `{name}` would do again what the agent does: if its tools do no harm, "
                "say so there with `sandbox = true`"
            )
            yield place, why
        elif any(share.name == name for share in route.backends):
            yield place, f"backend `{name}` serves this route, and a shadow serves nobody"


def _misnamed_tasks(settings: Settings) -> Iterator[tuple[Place, str]]:
    """Yield what would let two sessions meet in one task of an Engine, or no name pass at all."""
    owners = [key.name for key in settings.keys] or [LOCAL]
    for at, backend in enumerate(settings.backends):
        owner = backend.settings.task_ids_of
        if owner is None:
            continue
        place: Place = ("backends", at, "settings", "task_ids_of")
        if owner not in owners:
            shown = "of this name, which looks like a key itself" if looks_like_key(owner) else ""
            yield place, f"there is no key {shown or f'`{owner}`'}{nearest(owner, owners)}"
        for other in settings.backends:
            if other is not backend and other.url.rstrip("/") == backend.url.rstrip("/"):
                why = f"backend `{other.name}` has the same url, so its sessions could meet these"
                yield place, why


def _listens(settings: Settings) -> Iterator[tuple[Place, str]]:
    yield ("server", "listen"), settings.server.listen
    if settings.cluster is not None:
        yield ("cluster", "listen"), settings.cluster.listen
    for at, listener in enumerate(settings.listeners):
        yield ("listeners", at, "listen"), listener.listen


def _repeated(settings: Settings) -> Iterator[tuple[Place, str]]:
    names: list[tuple[Place, str]] = [
        *((("backends", at, "name"), entry.name) for at, entry in enumerate(settings.backends)),
        *((("routes", at, "name"), entry.name) for at, entry in enumerate(settings.routes)),
    ]
    yield from _twice(names, "`{}` is the name of {} too")
    keys: list[tuple[Place, str]] = [
        (("keys", at, "name"), key.name) for at, key in enumerate(settings.keys)
    ]
    yield from _twice(keys, "`{}` is the name of {} too")
    hashes: list[tuple[Place, str]] = [
        (("keys", at, "sha256"), key.sha256) for at, key in enumerate(settings.keys)
    ]
    yield from _twice(hashes, "is the hash of {1} too: give each key its own value")
    fixed = ((place, listen) for place, listen in _listens(settings) if parse_listen(listen).port)
    yield from _twice(fixed, "`{}` is taken by {}")


def _twice(found: Iterable[tuple[Place, str]], why: str) -> Iterator[tuple[Place, str]]:
    first: dict[str, Place] = {}
    for place, value in found:
        if value in first:
            yield place, why.format(value, spell(first[value][:-1]))
        first.setdefault(value, place)


@dataclass(frozen=True, slots=True)
class SettingsOverrides:
    """What a command line says: `listen` and `origins` override all else, `backends` (entries of
    `[[backends]]`, each with the option that gave it) are added.
    """

    listen: str | None = None
    backends: Sequence[tuple[str, Mapping[str, Any]]] = ()
    origins: Sequence[str] = ()

    def added_to(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return file and environment with what is said here."""
        added = dict(data)
        if self.listen is not None:
            added = _merged(added, {"server": {"listen": self.listen}})
        if self.origins:
            added = _merged(added, {"server": {"allowed_origins": list(self.origins)}})
        configured = data.get("backends", [])
        # What is not a list is complained of as it is.
        if self.backends and isinstance(configured, list):
            added["backends"] = [*configured, *(dict(entry) for _, entry in self.backends)]
        return added

    def of(self, place: Place, data: Mapping[str, Any]) -> str:
        """Return the option that gave the value at `place`, or an empty string; `data` is what
        this was added to."""
        if place == ("server", "listen") and self.listen is not None:
            return "--listen"
        if place[:2] == ("server", "allowed_origins") and self.origins:
            return "--origin"
        configured = data.get("backends", [])
        if place[:1] == ("backends",) and len(place) > 1 and isinstance(configured, list):
            at = place[1]
            if isinstance(at, int) and at >= len(configured):
                return self.backends[at - len(configured)][0]
        return ""


def load_settings(
    path: Path | None,
    environ: Mapping[str, str],
    *,
    resolved: bool = True,
    options: SettingsOverrides | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Settings:
    """Return the settings of the file at `path`, overridden by `environ`, then by `options`, with
    credentials if they are to be `resolved`: what asks no backend needs none.

    Without a path they are the defaults and `environ`; `defaults` has other ones for the demo.

    Raises:
        ConfigError: something is wrong with them; the text has a line for each complaint.
    """
    from_file = dict(defaults or {}) if path is None else _read(path)
    options = options or SettingsOverrides()
    # A credential's variable may be called like a table of ours.
    credentials = _credential_variables(options.added_to(from_file))
    variables = _Variables({name: environ[name] for name in environ if name not in credentials})
    configured = _merged(from_file, variables.values)
    data = options.added_to(configured)
    source = "the environment" if path is None else str(path)

    def where(place: Place) -> str:
        if option := options.of(place, configured):
            return f"`{option}`:"
        variable = variables.of(place)
        if variable:
            return f"{variable}:"
        return f"{source}: {spell(place)}:" if place else f"{source}:"

    problems = list(variables.unknown(_credential_variables(data)))
    problems += [f"{where(place)} {why}" for place, why in _unbuilt(data)]
    try:
        settings = Settings.model_validate(data)
    except ValidationError as error:
        found = error.errors(include_url=False)
        problems += [f"{where(place)} {why}" for place, why in complaints(found, Settings)]
        # `from None`: the library's error shows values, and a misplaced value may be a credential.
        raise _config_error(problems) from None
    backends: list[BackendSettings] = []
    for at, backend in enumerate(settings.backends if resolved else ()):
        try:
            backends.append(_with_resolved_credential(backend, environ))
        except ValueError as error:
            problems.append(f"{where(('backends', at, 'auth'))} {error} (backend `{backend.name}`)")
    cluster = settings.cluster
    if cluster is not None and resolved:
        try:
            cluster = cluster.resolved(environ)
        except ValueError as error:
            problems.append(f"{where(('cluster',))} {error}")
    if problems:
        raise _config_error(problems)
    if not resolved:
        return settings
    with_values: dict[str, object] = {"backends": tuple(backends)}
    if cluster is not None:
        with_values["cluster"] = cluster
    return settings.model_copy(update=with_values)


def load_address(path: Path | None, environ: Mapping[str, str]) -> Address:
    """Return where a server listens that has this configuration. Nothing else in it is checked:
    who asks for its health needs no credentials.

    Raises:
        ConfigError: the file cannot be read, or the `[server]` table is wrong.
    """
    from_file = {} if path is None else _read(path)
    credentials = _credential_variables(from_file)
    variables = _Variables({name: environ[name] for name in environ if name not in credentials})
    server = _merged(from_file, variables.values).get("server", {})
    try:
        return ServerSettings.model_validate(server).address
    except ValidationError as error:
        errors = error.errors(include_url=False)
        found = complaints(({**one, "loc": ("server", *one["loc"])} for one in errors), Settings)
        raise _config_error([f"{spell(place)}: {why}" for place, why in found]) from None


def _config_error(problems: list[str]) -> ConfigError:
    return ConfigError("\n".join(problems), details={"problems": problems})


_LISTS = ("backends", "routes", "keys", "listeners")
"""Tables that are written in double brackets."""


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path}: there is no such file: name one that is there with --config or "
            "DRAGOMAN_CONFIG, or none for the defaults"
        ) from error
    except IsADirectoryError as error:
        raise ConfigError(f"{path}: is a folder: name the file in it") from error
    except PermissionError as error:
        raise ConfigError(f"{path}: give this user the right to read it") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text: byte {error.start} is wrong") from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {not_toml(error, text, _LISTS)}") from error


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the values of `over`, table by table; a list is replaced as a whole."""
    merged = dict(base)
    for name, value in over.items():
        below = merged.get(name)
        if isinstance(value, dict) and isinstance(below, dict):
            merged[name] = _merged(below, value)
        else:
            merged[name] = value
    return merged


class _Variables:
    """The environment as a source: `DRAGOMAN_SERVER__LISTEN` is `listen` in `[server]`."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._names = {name.lower(): name for name in environ if name.upper().startswith(PREFIX)}
        source = EnvSettingsSource(Settings)
        # The library reads the process's environment by itself; ours is an argument.
        source.env_vars = {lower: environ[name] for lower, name in self._names.items()}
        try:
            self.values: dict[str, Any] = source()
        except SettingsError as error:
            field = re.search(r'field "(\w+)"', str(error))
            table = f"{PREFIX}{field[1].upper()}" if field else PREFIX
            why = str(error.__cause__)
            raise ConfigError(
                f"{table}: a list or a table in a variable is written as JSON: {why}"
            ) from None

    def of(self, place: Place) -> str:
        """Return the variable that gave the value at `place`, or an empty string."""
        names = [part for part in place if isinstance(part, str)]
        for length in range(len(names), 0, -1):
            variable = f"{PREFIX}{DELIMITER.join(names[:length])}".lower()
            if variable in self._names:
                rest = spell_below(place[place.index(names[length - 1]) + 1 :])
                return self._names[variable] + (f": {rest}" if rest else "")
        return ""

    def unknown(self, credentials: set[str]) -> Iterator[str]:
        """Yield a complaint for each variable that nobody would read."""
        tables = list(Settings.model_fields)
        for name in sorted(self._names.values()):
            if name in credentials or name.upper() in CLIENT_VARIABLES:
                continue
            table = name[len(PREFIX) :].lower().split(DELIMITER)[0]
            if table not in tables:
                near = nearest(table, tables)
                yield f"{name}: the environment has a setting for the unknown table `{table}`{near}"


_SIDES: Mapping[str, Only] = {"backends": "backends", "listeners": "frontends"}


def _unbuilt(data: Mapping[str, Any]) -> Iterator[tuple[Place, str]]:
    """Yield the dialects, in data not checked yet, that are known and whose half is to come."""
    for name, only in _SIDES.items():
        entries = data.get(name)
        built = _built(only)
        for at, entry in enumerate(entries if isinstance(entries, list) else ()):
            dialect = entry.get("dialect") if isinstance(entry, dict) else None
            known = DIALECTS.get(dialect) if isinstance(dialect, str) else None
            if known is not None and known.name not in built and known.only in (None, only):
                why = f"`{dialect}` is not built yet; write one of {', '.join(built)}"
                yield (name, at, "dialect"), why


def _credential_variables(data: Mapping[str, Any]) -> set[str]:
    """Return the variables that backends name for credentials, in data not checked yet."""
    backends = data.get("backends")
    tables = [
        entry.get("auth")
        for entry in (backends if isinstance(backends, list) else [])
        if isinstance(entry, dict)
    ]
    return {
        str(table[name])
        for table in tables
        if isinstance(table, dict)
        for name in ("bearer_env", "env")
        if name in table
    } | _secret_variables(data)


def _secret_variables(data: Mapping[str, Any]) -> set[str]:
    cluster = data.get("cluster")
    named = cluster.get("secret_env") if isinstance(cluster, dict) else None
    return {named} if isinstance(named, str) else set()


def _with_resolved_credential(
    backend: BackendSettings, environ: Mapping[str, str]
) -> BackendSettings:
    """Return the backend with the value that its `auth` refers to.

    Raises:
        ValueError: there is none, or it cannot stand in a header.
    """
    auth = backend.auth
    if auth is None:
        return backend
    if (variable := auth.bearer_env or auth.env) is not None:
        secret = variable_value(variable, environ)
    else:
        file = auth.bearer_file or auth.file
        assert file is not None
        secret = file_value(file)
    if auth.header is None:
        return backend.with_credential("Authorization", secret, scheme="Bearer ")
    return backend.with_credential(auth.header, secret)
