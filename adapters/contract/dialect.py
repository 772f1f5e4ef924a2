"""What a dialect is: a face for frontends, a codec that drives backends, or both."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, overload

if TYPE_CHECKING:
    from adapters.captures.dialect import CaptureFormat
    from adapters.captures.secrets import DeltaFormat
    from adapters.contract.faces import Face
    from adapters.contract.probing import Probe
    from adapters.contract.receiving import Receiver
    from adapters.model.base import Call, ClientCodec, Encoder

Only = Literal["frontends", "backends"]

T = TypeVar("T")


class Part(Generic[T]):
    """A part of a dialect: itself, or where it is in the folder of the dialect, as `module:NAME`.
    One that is named is imported when it is first asked for."""

    def __set_name__(self, owner: type[Dialect], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, dialect: None, owner: type[Dialect]) -> None: ...

    @overload
    def __get__(self, dialect: Dialect, owner: type[Dialect]) -> T | None: ...

    def __get__(self, dialect: Dialect | None, owner: type[Dialect]) -> T | None:
        # The default, where it is the class that is asked.
        if dialect is None:
            return None
        found = dialect.__dict__[self._name]
        if isinstance(found, str):
            found = dialect.__dict__[self._name] = dialect.import_part(found)
        return cast("T | None", found)

    def __set__(self, dialect: Dialect, value: T | str | None) -> None:
        dialect.__dict__[self._name] = value


@dataclasses.dataclass(frozen=True)
class Dialect:
    """A wire protocol: its name and its two halves, where built.

    Its parts are imported when they are first asked for, see `Part`: a process that has one backend
    loads no codec of another. `has_client`, `has_face` and `has_receiver` import nothing.

    `face` and `encoder` serve frontends: `encoder` makes the newest version, `older` has those that
    stored sessions may still need, by `Encoder.version`. `client` drives backends, and takes the
    settings of one. `only` says that a protocol has one side by nature: `frontends` that nobody is
    a backend of it, `backends` that nobody talks to it. What is not built and not excluded by
    `only` is still to come. `captured` says what is known of its captures, `probe` what a backend
    is asked by `dragoman check`. `receiver` reads what backends send by themselves, of a dialect
    whose backends call us: they have no address. `deltas` are its frames that have more of a text:
    a secret may be spelled by several. Of a recorded body, `session_members` are those by which
    frames name their session, and `recorded_call` is the call that it answers, where it is not a
    plain stream of the session.

    Of its backends: `silence_seconds` is how long an open stream may bring no byte before it is
    taken for dead, where the configuration does not say. `chosen_names` says that a backend knows a
    session by a name that the one who makes it chooses. `backend_settings` are the members of
    `[backends.settings]` that other dialects do not have. `url_schemes` are those of a backend's
    URL, `other_urls` values that may stand in its place, and `example_url` is where one listens
    that somebody tries out.

    Of its frontends: `shaped_by` are the keys that shape frames, of the table of settings that has
    the dialect's name.

    Of HTTP: `key_header` is the header with a key, where it is not a bearer token, and
    `page_headers` are those of answers that a web page needs to read.
    """

    name: str
    encoder: Part[type[Encoder]] = Part()
    older: Mapping[int, type[Encoder]] = dataclasses.field(default_factory=dict)
    client: Part[Callable[[Mapping[str, Any]], ClientCodec]] = Part()
    face: Part[Face] = Part()
    only: Only | None = None
    captured: Part[CaptureFormat] = Part()
    probe: Part[Probe] = Part()
    receiver: Part[Receiver] = Part()
    deltas: Part[tuple[DeltaFormat, ...]] = Part()
    session_members: tuple[str, ...] = ("sessionId", "session_id")
    recorded_call: Part[Call] = Part()
    silence_seconds: float = 60.0
    chosen_names: bool = False
    shaped_by: tuple[str, ...] = ()
    backend_settings: frozenset[str] = frozenset()
    url_schemes: tuple[str, ...] = ("http", "https")
    other_urls: tuple[str, ...] = ()
    example_url: str = ""
    key_header: str = ""
    page_headers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check that what is built agrees.

        Raises:
            ValueError: a half is missing, or is one that the dialect does not have.
        """
        if self._has("encoder") != self.has_face:
            raise ValueError(
                f"Dialect `{self.name}` has an encoder or a face, and needs both to be served."
            )
        if self.only == "frontends" and (self.has_client or not self.has_face):
            raise ValueError(
                f"Dialect `{self.name}` is for frontends only: it has an encoder and a face, and "
                "no client codec."
            )
        if self.only == "backends" and (self.has_face or not self.has_client):
            raise ValueError(
                f"Dialect `{self.name}` is for backends only: it has a client codec, and neither "
                "an encoder nor a face."
            )

    def _has(self, part: str) -> bool:
        return self.__dict__[part] is not None

    @property
    def has_client(self) -> bool:
        """Say whether its backends can be driven."""
        return self._has("client")

    @property
    def has_face(self) -> bool:
        """Say whether its frontends are served, which takes an encoder too."""
        return self._has("face")

    @property
    def has_receiver(self) -> bool:
        """Say whether its backends call us."""
        return self._has("receiver")

    def load(self, *parts: str) -> None:
        """Import parts, by their names here: it may take some tens of milliseconds."""
        for part in parts:
            getattr(self, part)

    def is_loaded(self, part: str) -> bool:
        """Say whether a part, by its name here, is imported or is not there."""
        return not isinstance(self.__dict__[part], str)

    def import_part(self, place: str) -> Any:
        """Import what a place `module:NAME` in the folder of the dialect has.

        Raises:
            ImportError: there is no such module.
            AttributeError: it has no such name.
        """
        module, _, name = place.partition(":")
        # In a wheel `adapters` is a package of another one.
        adapters = __name__.removesuffix(".contract.dialect")
        return getattr(importlib.import_module(f"{adapters}.{self.folder}.{module}"), name)

    @property
    def folder(self) -> str:
        """Return the folder below `adapters`: a dialect's name may have a dash, a package's may
        not."""
        return self.name.replace("-", "_")

    @property
    def not_driven(self) -> str:
        """Say why no session can be given to its backends, where that is so."""
        if not self.has_client:
            return "which cannot be driven yet"
        return "whose backends begin all sessions themselves" if self.has_receiver else ""

    @property
    def rewinds(self) -> bool:
        """Say whether its backends answer again from any message: they remember nothing, so what
        they are sent decides."""
        return not getattr(self.client, "remembers", True)

    @property
    def no_backends(self) -> str:
        """Say that it has no backends, where that is so."""
        if self.only != "frontends":
            return ""
        return f"`{self.name}` is a dialect of frontends only: no backend speaks it"

    @property
    def no_frontends(self) -> str:
        """Say that it has no frontends, where that is so."""
        if self.only != "backends":
            return ""
        return f"`{self.name}` is a dialect of backends only: no frontend speaks it"
